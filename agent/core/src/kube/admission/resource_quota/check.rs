//! Whether the quotas of a namespace allow a request, and what is in use afterwards (`CheckRequest`).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::evaluator::Evaluator;
use super::scope;
use super::usage::{Charges, Usage};
use super::{Plugin, shown};
use crate::kube::admission::object::{Object, ResourceQuota, Scope, ScopeRequirement};
use crate::kube::admission::request::{Operation, Phase, Refusal, Request};
use crate::kube::quantity::Quantity;

/// What the quotas have in common about a request.
#[derive(Default)]
struct Covered<'a> {
    /// The quotas that apply, each with its part of [`Self::rows`].
    applying: Vec<Applying<'a>>,
    /// What these limit.
    rows: Vec<Row<'a>>,
    /// Names that these count.
    names: BTreeSet<&'a str>,
    /// Scopes that match the object; in [`Admission::Upstream`](super::Admission) also those of quotas that do not apply.
    scopes: Vec<Scope<'a>>,
}

/// A quota that applies.
struct Applying<'a> {
    /// Its place among all quotas.
    at: usize,
    quota: &'a ResourceQuota,
    rows: Range<usize>,
}

/// What a quota says of one name.
struct Row<'a> {
    name: &'a str,
    hard: &'a Quantity,
    used: Option<&'a Quantity>,
    /// Whether objects of this kind count under the name.
    is_counted: bool,
}

/// An object as it was, and by how much it counts more now.
type Grown<'a> = (&'a Object, Arc<Usage>);

impl Plugin<'_> {
    /// The quotas whose usage changes once the request is granted, in their order.
    ///
    /// # Errors
    /// If a quota does not allow it.
    pub fn check(&self, request: &Request, quotas: &[&ResourceQuota]) -> Result<Charges, Refusal> {
        let evaluator = Evaluator::of(&request.resource);
        if !evaluator.handles(request, self.admission) {
            return Ok(Charges::default());
        }
        let Some(limited_scopes) = self.limited_scopes(request)? else {
            return Ok(Charges::default());
        };
        let usage = evaluator.usage(&request.object, self.cluster);
        let limited_names = self.limited_names(request, &usage);
        let covered = self.covered(request, quotas, &evaluator)?;
        let negative: Vec<&str> = usage
            .iter()
            .filter(|(_, quantity)| quantity.sign() < 0)
            .map(|(name, _)| name)
            .collect();
        if !negative.is_empty() {
            let why = format!(
                "quota usage is negative for resource(s): {}",
                negative.join(",")
            );
            return Err(request.forbidden(Phase::Validate, &why));
        }
        let old = self.usage_before(request, &evaluator)?;
        let grown = old.map(|(old, used)| (old, Arc::new(usage.increase(&used))));
        let usage = Arc::new(usage.without_zeros());
        let additions = self.additions(&covered.applying, &evaluator, grown.as_ref(), &usage)?;
        let Some(additions) = additions else {
            return Ok(Charges::default());
        };
        let uncovered: Vec<&str> = limited_names
            .iter()
            .map(String::as_str)
            .filter(|name| !covered.names.contains(name))
            .collect();
        if !uncovered.is_empty() {
            let why = format!("insufficient quota to consume: {}", uncovered.join(","));
            return Err(request.forbidden(Phase::Validate, &why));
        }
        self.check_scopes(request, &limited_scopes, &covered.scopes)?;
        let mut charges = Charges::with_capacity(covered.applying.len(), covered.rows.len());
        for (applying, usage) in covered.applying.into_iter().zip(additions) {
            let rows = covered.rows.get(applying.rows).unwrap_or_default();
            let name = &applying.quota.metadata.name;
            charge(request, name, rows, usage, &mut charges)?;
            charges.end_quota(applying.at, name, usage);
        }
        Ok(charges)
    }

    /// The limited scopes that match the object; none if the plugin is off for this request.
    fn limited_scopes(&self, request: &Request) -> Result<Option<Vec<Scope<'_>>>, Refusal> {
        let limited = &self.configuration.limited_resources;
        let mut matching = Vec::new();
        let scopes = limited.iter().flat_map(|limited| &limited.match_scopes);
        for scope in scopes.map(ScopeRequirement::borrowed) {
            match scope::matches(scope, &request.object) {
                Ok(true) => matching.push(scope),
                Ok(false) => {}
                Err(_) if self.admission.is_upstream() => return Ok(None),
                Err(error) => {
                    let message = format!("error on matching limited scope {scope}: {error}");
                    return Err(Refusal::plain_error(message));
                }
            }
        }
        Ok(Some(matching))
    }

    /// The names of the usage that are limited by default.
    fn limited_names(&self, request: &Request, usage: &Usage) -> BTreeSet<String> {
        let limited = self.configuration.limited_resources.iter();
        let parts = limited
            .filter(|limited| limited.is_about(&request.resource))
            .flat_map(|limited| &limited.match_contains);
        let parts: Vec<&String> = parts.collect();
        let used = usage.iter().filter(|(_, quantity)| quantity.sign() > 0);
        used.map(|(name, _)| name)
            .filter(|name| parts.iter().any(|part| name.contains(part.as_str())))
            .map(str::to_owned)
            .collect()
    }

    /// The quotas that apply, in their order; each has to have its usage, and what it counts has to be set.
    fn covered<'a>(
        &self,
        request: &Request,
        quotas: &[&'a ResourceQuota],
        evaluator: &Evaluator,
    ) -> Result<Covered<'a>, Refusal> {
        let mut covered = Covered {
            rows: Vec::with_capacity(quotas.len()),
            ..Covered::default()
        };
        let has_scopes = matches!(request.object, Object::Pod(_) | Object::Claim(_));
        let has_limits = !self.configuration.limited_resources.is_empty();
        let unset = evaluator.unset(&request.object);
        for (at, &quota) in quotas.iter().enumerate() {
            let name = &quota.metadata.name;
            let mut is_matched = true;
            let before = covered.scopes.len();
            let scopes = (has_scopes && quota.has_scopes()).then(|| quota.scopes());
            for scope in scopes.into_iter().flatten() {
                let matches = scope::matches(scope, &request.object).map_err(|error| {
                    Refusal::plain_error(format!(
                        "error matching scopes of quota {name}, err: error on matching scope {scope}: {error}"
                    ))
                    .by(name)
                })?;
                is_matched &= matches;
                if matches && has_limits {
                    covered.scopes.push(scope);
                }
            }
            // As `Evaluator::applies`, whose scopes have been read by now.
            let applies = is_matched
                && (has_scopes
                    || evaluator
                        .applies(quota, &request.object, self.cluster)
                        .map_err(|error| Refusal::plain_error(error.to_string()).by(name))?);
            let from = covered.rows.len();
            if applies {
                let mut used = quota.status.used.iter().peekable();
                // Both are sorted.
                covered
                    .rows
                    .extend(quota.status.hard.iter().map(|(name, hard)| {
                        while used.next_if(|(other, _)| *other < name).is_some() {}
                        Row {
                            name,
                            hard,
                            used: used
                                .next_if(|(other, _)| *other == name)
                                .map(|(_, used)| used),
                            is_counted: evaluator.counts(name, self.cluster),
                        }
                    }));
            }
            let rows = covered.rows.get(from..).unwrap_or_default();
            let counted = || rows.iter().filter(|row| row.is_counted);
            if counted().next().is_none() {
                covered.rows.truncate(from);
                if !self.admission.is_upstream() {
                    covered.scopes.truncate(before);
                }
                continue;
            }
            let unset = unset.iter().copied();
            let mut missing: Vec<&str> = unset
                .filter(|unset| counted().any(|row| row.name == *unset))
                .collect();
            if !missing.is_empty() {
                missing.sort_unstable();
                let missing = Evaluator::missing(&missing, &request.object);
                let why = format!("failed quota: {name}: must specify {}", missing.join("; "));
                return Err(request.forbidden(Phase::Validate, &why).by(name));
            }
            if counted().any(|row| row.used.is_none()) {
                let counted: Vec<&str> = counted().map(|row| row.name).collect();
                let why = format!(
                    "status unknown for quota: {name}, resources: {}",
                    counted.join(",")
                );
                return Err(request.forbidden(Phase::Validate, &why).by(name));
            }
            if has_limits {
                covered.names.extend(counted().map(|row| row.name));
            }
            let rows = from..covered.rows.len();
            covered.applying.push(Applying { at, quota, rows });
        }
        Ok(covered)
    }

    /// The object as it was and what it counted, where it is changed.
    fn usage_before<'a>(
        &self,
        request: &'a Request,
        evaluator: &Evaluator,
    ) -> Result<Option<(&'a Object, Usage)>, Refusal> {
        if request.operation != Operation::Update {
            return Ok(None);
        }
        let Some(old) = &request.old_object else {
            let why = "unable to get previous usage since prior version of object was not found";
            return Err(request.forbidden(Phase::Validate, why));
        };
        // Without a version, this may be a creation by update: the whole usage counts.
        let has_version = !old.meta().resource_version.is_empty();
        Ok(has_version.then(|| (old, evaluator.usage(old, self.cluster))))
    }

    /// What the object adds to each applying quota, under all names; none if nothing changes anywhere. `grown`: the object as it was, and by how much it counts
    /// more.
    fn additions<'a>(
        &self,
        applying: &[Applying<'_>],
        evaluator: &Evaluator,
        grown: Option<&'a Grown<'_>>,
        usage: &'a Arc<Usage>,
    ) -> Result<Option<Vec<&'a Arc<Usage>>>, Refusal> {
        let mut changes = Vec::with_capacity(applying.len());
        for Applying { quota, .. } in applying {
            let change = match grown {
                Some((old, grown)) => {
                    let applied = evaluator
                        .applies(quota, old, self.cluster)
                        .map_err(|error| {
                            Refusal::plain_error(error.to_string()).by(&quota.metadata.name)
                        })?;
                    if applied { grown } else { usage }
                }
                None => usage,
            };
            changes.push(change);
        }
        let any_change = if applying.is_empty() {
            let change = grown.map_or(usage, |(_, grown)| grown);
            !change.is_empty()
        } else {
            changes.iter().any(|change| !change.is_empty())
        };
        Ok(any_change.then_some(changes))
    }

    fn check_scopes(
        &self,
        request: &Request,
        limited: &[Scope<'_>],
        covered: &[Scope<'_>],
    ) -> Result<(), Refusal> {
        let is_covered = |scope: &Scope<'_>| {
            covered
                .iter()
                .any(|other| other.scope_name == scope.scope_name)
        };
        let uncovered: Vec<String> = limited
            .iter()
            .filter(|scope| !is_covered(scope))
            .map(ToString::to_string)
            .collect();
        if uncovered.is_empty() {
            return Ok(());
        }
        let why = format!(
            "insufficient quota to match these scopes: [{}]",
            uncovered.join(" ")
        );
        Err(if self.admission.is_upstream() {
            Refusal::plain_error(why)
        } else {
            request.forbidden(Phase::Validate, &why)
        })
    }
}

/// Adds what one quota counts.
///
/// # Errors
/// If that is more than it has left.
fn charge(
    request: &Request,
    name: &str,
    rows: &[Row<'_>],
    usage: &Usage,
    charges: &mut Charges,
) -> Result<(), Refusal> {
    // What has been allocated is a fact, whatever the quota says.
    let is_enforced = request.subresource != "status";
    let mut exceeded: Vec<&Row<'_>> = Vec::new();
    for row in rows {
        let Some(at) = usage.position(row.name) else {
            continue;
        };
        charges.add_place(at);
        let exceeds = usage.at(at).is_some_and(|amount| match row.used {
            Some(used) => used.exceeds_with(amount, row.hard),
            None => amount > row.hard,
        });
        if is_enforced && exceeds {
            exceeded.push(row);
        }
    }
    if !exceeded.is_empty() {
        let rows = exceeded.iter();
        let requested = rows
            .clone()
            .filter_map(|row| Some((row.name, usage.get(row.name)?)));
        let used = rows.clone().filter_map(|row| Some((row.name, row.used?)));
        let why = format!(
            "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
            shown(requested),
            shown(used),
            shown(rows.map(|row| (row.name, row.hard))),
        );
        return Err(request.forbidden(Phase::Validate, &why).by(name));
    }
    Ok(())
}
