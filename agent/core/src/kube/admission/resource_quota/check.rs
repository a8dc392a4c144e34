//! Whether the quotas of a namespace allow a request, and what is in use afterwards (`CheckRequest`).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::enforced::{EnforcedQuota, Row};
use super::evaluator::Evaluator;
use super::scope::{self, Facts};
use super::usage::{Charges, Place, Usage};
use super::{Plugin, shown};
use crate::kube::admission::object::{Object, Scope, ScopeRequirement};
use crate::kube::admission::request::{Operation, Phase, Refusal, Request};

/// What the quotas have in common about a request.
#[derive(Default)]
struct Covered<'a> {
    /// The quotas that apply, each with its place among all quotas.
    applying: Vec<(usize, &'a EnforcedQuota)>,
    /// How many names these limit.
    rows: usize,
    /// Names that these count.
    names: BTreeSet<&'a str>,
    /// Scopes that match the object; in [`Admission::Upstream`](super::Admission) also those of quotas that do not
    /// apply.
    scopes: Vec<Scope<'a>>,
}

/// An object as it was, and by how much it counts more now.
type Grown<'a> = (&'a Object, Arc<Usage>);

impl Plugin<'_> {
    /// The quotas whose usage changes once the request is granted, in their order.
    ///
    /// # Errors
    /// If a quota does not allow it.
    pub fn check(&self, request: &Request, quotas: &[&EnforcedQuota]) -> Result<Charges, Refusal> {
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
        let mut charges = Charges::with_capacity(covered.applying.len(), covered.rows);
        for ((at, quota), usage) in covered.applying.into_iter().zip(additions) {
            charge(request, quota, usage, &mut charges)?;
            charges.end_quota(at, &quota.name, usage);
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
        quotas: &[&'a EnforcedQuota],
        evaluator: &Evaluator,
    ) -> Result<Covered<'a>, Refusal> {
        let mut covered = Covered {
            applying: Vec::with_capacity(quotas.len()),
            ..Covered::default()
        };
        let facts = Facts::of(&request.object);
        let has_limits = !self.configuration.limited_resources.is_empty();
        let unset = evaluator.unset(&request.object);
        for (at, &quota) in quotas.iter().enumerate() {
            let name = quota.name();
            let before = covered.scopes.len();
            let matching = |scope| {
                if has_limits {
                    covered.scopes.push(scope);
                }
            };
            let is_matched = quota.matches(&facts, matching).map_err(|(scope, error)| {
                Refusal::plain_error(format!(
                    "error matching scopes of quota {name}, err: error on matching scope {scope}: {error}"
                ))
                .by(name)
            })?;
            let counted = || {
                let rows = quota.rows.iter();
                rows.filter(|row| row.is_counted(evaluator, self.cluster))
            };
            if !is_matched || counted().next().is_none() {
                if !self.admission.is_upstream() {
                    covered.scopes.truncate(before);
                }
                continue;
            }
            if unset & quota.pod_names != 0 {
                let is_unset = |row: &&Row| row.known.is_some_and(|it| it.bit() & unset != 0);
                let missing: Vec<&str> = counted()
                    .filter(is_unset)
                    .map(|row| row.name.as_str())
                    .collect();
                let missing = Evaluator::missing(&missing, &request.object);
                let why = format!("failed quota: {name}: must specify {}", missing.join("; "));
                return Err(request.forbidden(Phase::Validate, &why).by(name));
            }
            if counted().any(|row| row.used.is_none()) {
                let counted: Vec<&str> = counted().map(|row| row.name.as_str()).collect();
                let why = format!(
                    "status unknown for quota: {name}, resources: {}",
                    counted.join(",")
                );
                return Err(request.forbidden(Phase::Validate, &why).by(name));
            }
            if has_limits {
                covered.names.extend(counted().map(|row| row.name.as_str()));
            }
            covered.rows += quota.rows.len();
            covered.applying.push((at, quota));
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

    /// What the object adds to each applying quota, under all names; none if nothing changes anywhere. `grown`: the
    /// object as it was, and by how much it counts more.
    fn additions<'a>(
        &self,
        applying: &[(usize, &EnforcedQuota)],
        evaluator: &Evaluator,
        grown: Option<&'a Grown<'_>>,
        usage: &'a Arc<Usage>,
    ) -> Result<Option<Vec<&'a Arc<Usage>>>, Refusal> {
        let mut changes = vec![usage; applying.len()];
        if let Some((old, grown)) = grown {
            let facts = Facts::of(old);
            for ((_, quota), change) in applying.iter().zip(&mut changes) {
                let applied = quota.applies(evaluator, &facts, self.cluster);
                let applied = applied
                    .map_err(|error| Refusal::plain_error(error.to_string()).by(quota.name()))?;
                if applied {
                    *change = grown;
                }
            }
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
    quota: &EnforcedQuota,
    usage: &Usage,
    charges: &mut Charges,
) -> Result<(), Refusal> {
    // What has been allocated is a fact, whatever the quota says.
    let is_enforced = request.subresource != "status";
    let mut exceeded: Vec<&Row> = Vec::new();
    for (at, row) in quota.rows.iter().enumerate() {
        let Some(amount) = usage.position(&row.name, row.known) else {
            continue;
        };
        charges.add_place(Place { row: at, amount });
        let exceeds = usage.at(amount).is_some_and(|amount| match &row.used {
            Some(used) => used.exceeds_with(amount, &row.hard),
            None => amount > &row.hard,
        });
        if is_enforced && exceeds {
            exceeded.push(row);
        }
    }
    if !exceeded.is_empty() {
        let name = quota.name();
        let rows = exceeded.iter().map(|row| (row.name.as_str(), *row));
        let requested = rows.clone();
        let requested = requested.filter_map(|(name, _)| Some((name, usage.get(name)?)));
        let used = rows.clone();
        let used = used.filter_map(|(name, row)| Some((name, row.used.as_ref()?)));
        let why = format!(
            "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
            shown(requested),
            shown(used),
            shown(rows.map(|(name, row)| (name, &row.hard))),
        );
        return Err(request.forbidden(Phase::Validate, &why).by(name));
    }
    Ok(())
}
