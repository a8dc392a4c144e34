//! What admission made of objects, and what quotas have left, for people.

mod objects;

use std::fmt::{Display, Write as _};

use plimsoll_core::kube::admission::chain::{Admitted, Defaulted, Source};
use plimsoll_core::kube::admission::object::Object;
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::kube::quantity::Quantity;
use plimsoll_core::kube::resources::{self, Scope};

use crate::host::output::Style;
use crate::show::table::{Table, Tone};

pub(crate) use objects::{json, label, line};

/// One object and what was made of it.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    /// `Pod team-a/web`.
    pub(crate) label: String,
    /// `pods.yaml:12`.
    pub(crate) place: String,
    /// What was made of it.
    pub(crate) outcome: Outcome<'a>,
}

/// What was made of an object.
#[derive(Debug)]
pub(crate) enum Outcome<'a> {
    /// It was let in.
    Admitted(&'a Admitted),
    /// It decides about others, and is in force.
    InForce,
    /// It was there before.
    Existing,
    /// It was refused: the sentence, and the line of each cause that has one.
    Refused {
        message: &'a str,
        causes: Vec<String>,
    },
    /// It says nothing here.
    LeftOut(&'a str),
}

/// `cpu=1,memory=1Gi`; `-` for nothing.
pub(crate) fn amounts<'a, N>(list: impl IntoIterator<Item = (N, &'a Quantity)>) -> String
where
    N: Display,
{
    let parts: Vec<String> = list
        .into_iter()
        .map(|(name, amount)| format!("{name}={amount}"))
        .collect();
    if parts.is_empty() {
        return "-".to_owned();
    }
    parts.join(",")
}

/// All objects, refusals with their sentences, and what was left out; with `why` also where each default comes from.
pub(crate) fn answer(lines: &[Line<'_>], why: bool, style: Style) -> String {
    let mut text = String::new();
    let shown: Vec<&Line<'_>> = lines
        .iter()
        .filter(|line| !matches!(line.outcome, Outcome::LeftOut(_)))
        .collect();
    if !shown.is_empty() {
        text += &table(&shown).render(style);
    }
    section(&mut text, style, "REFUSED", lines, |line, text| {
        let Outcome::Refused { message, causes } = &line.outcome else {
            return false;
        };
        writeln!(text, "{}: {message}", line.place).ok();
        for cause in causes {
            writeln!(text, "  {cause}").ok();
        }
        true
    });
    if why {
        section(&mut text, style, "WHY", lines, |line, text| {
            let Outcome::Admitted(admitted) = &line.outcome else {
                return false;
            };
            if admitted.defaults.is_empty() && admitted.charges.is_empty() {
                return false;
            }
            writeln!(text, "{}", line.label).ok();
            for default in &admitted.defaults {
                writeln!(text, "  {}", because(default)).ok();
            }
            for charge in admitted.charges.iter() {
                let added = amounts(charge.added());
                writeln!(text, "  ResourceQuota {} counts {added}", charge.quota).ok();
            }
            true
        });
    }
    section(&mut text, style, "LEFT OUT", lines, |line, text| {
        let Outcome::LeftOut(why) = &line.outcome else {
            return false;
        };
        writeln!(text, "{}: {}: {why}", line.place, line.label).ok();
        true
    });
    text
}

/// Adds a heading and what `add` writes about the lines, if it writes anything.
fn section(
    text: &mut String,
    style: Style,
    heading: &str,
    lines: &[Line<'_>],
    add: impl Fn(&Line<'_>, &mut String) -> bool,
) {
    let mut body = String::new();
    let mut any = false;
    for line in lines {
        any |= add(line, &mut body);
    }
    if any {
        if !text.is_empty() {
            text.push('\n');
        }
        *text += &style.bold(heading);
        text.push('\n');
        *text += &body;
    }
}

fn table(lines: &[&Line<'_>]) -> Table {
    let heading = ["OBJECT", "VERDICT", "PRIORITY", "QOS", "REQUESTS", "LIMITS"];
    let mut table = Table::new(&heading, &[2]);
    for line in lines {
        let (tone, verdict) = match &line.outcome {
            Outcome::Admitted(_) => (Tone::Plain, "admitted"),
            Outcome::InForce => (Tone::Faint, "in force"),
            Outcome::Existing => (Tone::Faint, "exists"),
            Outcome::Refused { .. } => (Tone::Marked, "refused"),
            Outcome::LeftOut(_) => (Tone::Faint, "left out"),
        };
        let mut cells = vec![line.label.clone(), verdict.to_owned()];
        match &line.outcome {
            Outcome::Admitted(admitted) => cells.extend(admitted_cells(&admitted.object)),
            _ => cells.extend(NOTHING.map(str::to_owned)),
        }
        table.row(tone, cells);
    }
    table
}

/// Cells that have nothing to say.
const NOTHING: [&str; 4] = ["-"; 4];

/// Priority, QoS class, requests and limits.
fn admitted_cells(object: &Object) -> [String; 4] {
    match object {
        Object::Pod(pod) => [
            pod.pod.priority().to_string(),
            QosClass::of(&pod.pod).to_string(),
            amounts(&resources::pod_requests(&pod.pod, Scope::ALL)),
            amounts(&resources::pod_limits(&pod.pod, Scope::ALL)),
        ],
        Object::Claim(claim) => [
            "-".to_owned(),
            "-".to_owned(),
            amounts(&claim.spec.resources.requests),
            amounts(&claim.spec.resources.limits),
        ],
        _ => NOTHING.map(str::to_owned),
    }
}

fn because(default: &Defaulted) -> String {
    let Defaulted {
        field,
        value,
        source,
    } = default;
    let from = match source {
        Source::Api => "the API's own default".to_owned(),
        Source::LimitRange { name, item, field } => {
            format!("LimitRange {name}, spec.limits[{item}].{field}")
        }
        Source::PriorityClass { name } if name.is_empty() => {
            "no PriorityClass, none is the default".to_owned()
        }
        Source::PriorityClass { name } => format!("PriorityClass {name}"),
    };
    format!("{field} = {value}: {from}")
}

/// One quota.
#[derive(Debug)]
pub(crate) struct QuotaLines {
    /// `team-a/compute`.
    pub(crate) label: String,
    /// `scopes: NotTerminating`, or nothing.
    pub(crate) scopes: String,
    /// Name, used, hard, what is left, and whether it is used beyond that.
    pub(crate) rows: Vec<([String; 4], bool)>,
    /// Who takes how much.
    pub(crate) takers: Vec<(String, String)>,
}

/// All quotas.
pub(crate) fn quotas(quotas: &[QuotaLines], style: Style) -> String {
    let mut text = String::new();
    for quota in quotas {
        if !text.is_empty() {
            text.push('\n');
        }
        text += &style.bold(&format!("ResourceQuota {}", quota.label));
        text.push('\n');
        if !quota.scopes.is_empty() {
            writeln!(text, "{}", quota.scopes).ok();
        }
        let mut table = Table::new(&["RESOURCE", "USED", "HARD", "LEFT"], &[1, 2, 3]);
        for (cells, over) in &quota.rows {
            let tone = if *over { Tone::Marked } else { Tone::Plain };
            table.row(tone, cells.to_vec());
        }
        text += &table.render(style);
        if !quota.takers.is_empty() {
            let mut table = Table::new(&["TAKEN BY", "AMOUNTS"], &[]);
            for (label, amounts) in &quota.takers {
                table.row(Tone::Plain, vec![label.clone(), amounts.clone()]);
            }
            text += &table.render(style);
        }
    }
    text
}
