//! The table in docs/reference/configuration.md is the table in the code.

use super::*;
use crate::input::config::plimsoll::PlimsollOptions;

const REFERENCE: &str = include_str!("../../../../../docs/reference/configuration.md");
const BEGIN: &str = "<!-- fields: compared with agent/src/input/config by a test -->\n";
const END: &str = "<!-- end of fields -->\n";

fn default_of(field: &Field) -> String {
    match (field.name, field.default) {
        ("evictionHard", _) => {
            let pairs: Vec<String> = kubelet::DEFAULT_EVICTION_HARD
                .iter()
                .map(|(signal, amount)| format!("{signal}: {amount}"))
                .collect();
            format!("`{{{}}}`", pairs.join(", "))
        }
        (_, Some("{}") | None) => String::new(),
        (_, Some(default)) => format!("`{default}`"),
    }
}

/// The tables as they must stand in the reference.
fn tables() -> String {
    let mut text = String::new();
    for (class, heading) in [
        (Class::Used, "### Used"),
        (
            Class::NotActedOn,
            "### Accepted and validated, not acted on",
        ),
    ] {
        text += &format!("\n{heading}\n\n| field | default | meaning |\n|---|---|---|\n");
        for field in kubelet::FIELDS {
            match field.shape {
                Shape::Object(inner) => {
                    for inner in inner.iter().filter(|inner| inner.class == class) {
                        let default = match field.name {
                            "plimsoll" => plimsoll_default(inner.name),
                            _ => default_of(inner),
                        };
                        text += &format!(
                            "| `{}.{}` | {default} | {} |\n",
                            field.name, inner.name, inner.meaning
                        );
                    }
                }
                _ if field.class != class => {}
                _ => {
                    text += &format!(
                        "| `{}` | {} | {} |\n",
                        field.name,
                        default_of(field),
                        field.meaning
                    );
                }
            }
        }
    }
    let names: Vec<String> = kubelet::FIELDS
        .iter()
        .filter(|field| field.class == Class::Kubelet)
        .map(|field| format!("`{}`", field.name))
        .collect();
    text += &format!("\n### Not Plimsoll's\n\n{}.\n\n", names.join(", "));
    text
}

fn plimsoll_default(name: &str) -> String {
    let effective = with_flags("", &EvictionFlags::default()).unwrap();
    let value = &effective.json(false)["plimsoll"][name];
    assert!(!value.is_null(), "{name}: {:?}", PlimsollOptions::default());
    let text = value.as_str().map_or_else(
        || {
            value
                .to_string()
                .replace('"', "")
                .replace(':', ": ")
                .replace(',', ", ")
        },
        str::to_owned,
    );
    format!("`{text}`")
}

#[test]
fn the_reference_lists_the_fields_of_the_code() {
    let (_, rest) = REFERENCE
        .split_once(BEGIN)
        .expect("the beginning of the fields");
    let (written, _) = rest.split_once(END).expect("the end of the fields");
    let wanted = tables();
    assert!(
        written == wanted,
        "docs/reference/configuration.md is not what the code says; put this between its two marks:\n{wanted}"
    );
}

#[test]
fn the_reference_lists_every_signal() {
    for row in plimsoll_core::model::signal::SIGNALS.iter() {
        // Stalls have one line for each resource: `memoryPressure.{some,full}.{avg10,avg60,avg300}`.
        let name = row
            .name
            .split_once(".some.")
            .or(row.name.split_once(".full."));
        let start = match name {
            Some((pressure, _)) => format!("| `{pressure}."),
            None => format!("| `{}` |", row.name),
        };
        let condition = row.condition.map_or("none", |condition| condition.as_str());
        let end = format!("| {condition} |");
        assert!(
            REFERENCE
                .lines()
                .any(|line| line.starts_with(&start) && line.ends_with(&end)),
            "docs/reference/configuration.md: no line under Signals begins with {start:?} and ends with {end:?}"
        );
    }
}
