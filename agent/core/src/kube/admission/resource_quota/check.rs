//! Whether the quotas of a namespace allow a request, and what is in use afterwards (`CheckRequest`).

use std::collections::BTreeSet;

use super::evaluator::Evaluator;
use super::scope;
use super::{Charge, Plugin, increase, shown};
use crate::kube::admission::object::{Object, ResourceQuota, Scope, ScopeRequirement};
use crate::kube::admission::request::{Operation, Phase, Refusal, Request};
use crate::kube::resources::ResourceList;

/// What the quotas have in common about a request.
#[derive(Default)]
struct Covered<'a> {
    /// Indexes of the quotas that apply.
    applying: Vec<usize>,
    /// Names that these count.
    names: BTreeSet<&'a str>,
    /// Scopes that match the object; in [`Admission::Upstream`](super::Admission) also those of quotas that do not apply.
    scopes: Vec<Scope<'a>>,
}

impl Plugin<'_> {
    /// The quotas whose usage changes once the request is granted, in their order.
    ///
    /// # Errors
    /// If a quota does not allow it.
    pub fn check(
        &self,
        request: &Request,
        quotas: &[&ResourceQuota],
    ) -> Result<Vec<Charge>, Refusal> {
        let evaluator = Evaluator::of(&request.resource);
        if !evaluator.handles(request, self.admission) {
            return Ok(Vec::new());
        }
        let Some(limited_scopes) = self.limited_scopes(request)? else {
            return Ok(Vec::new());
        };
        let mut usage = evaluator.usage(&request.object, self.cluster);
        let limited_names = self.limited_names(request, &usage);
        let covered = self.covered(request, quotas, &evaluator)?;
        let negative: Vec<&str> = usage
            .iter()
            .filter(|(_, quantity)| quantity.sign() < 0)
            .map(|(name, _)| name.as_str())
            .collect();
        if !negative.is_empty() {
            let why = format!(
                "quota usage is negative for resource(s): {}",
                negative.join(",")
            );
            return Err(request.forbidden(Phase::Validate, &why));
        }
        let old = self.usage_before(request, &evaluator)?;
        let grown = old.map(|(old, used)| {
            let mut grown = increase(&usage, &used);
            grown.retain(|_, quantity| !quantity.is_zero());
            (old, grown)
        });
        usage.retain(|_, quantity| !quantity.is_zero());
        let additions = self.additions(
            quotas,
            &covered.applying,
            &evaluator,
            grown.as_ref(),
            &usage,
        )?;
        let Some(additions) = additions else {
            return Ok(Vec::new());
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
        let mut charges = Vec::with_capacity(covered.applying.len());
        for (at, added) in covered.applying.into_iter().zip(additions) {
            if let Some(quota) = quotas.get(at) {
                charges.extend(charged(request, quota, added)?);
            }
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
    fn limited_names(&self, request: &Request, usage: &ResourceList) -> BTreeSet<String> {
        let limited = self.configuration.limited_resources.iter();
        let parts = limited
            .filter(|limited| limited.is_about(&request.resource))
            .flat_map(|limited| &limited.match_contains);
        let parts: Vec<&String> = parts.collect();
        let used = usage.iter().filter(|(_, quantity)| quantity.sign() > 0);
        used.map(|(name, _)| name)
            .filter(|name| parts.iter().any(|part| name.contains(part.as_str())))
            .cloned()
            .collect()
    }

    /// The quotas that apply, in their order; each has to have its usage, and what it counts has to be set.
    fn covered<'a>(
        &self,
        request: &Request,
        quotas: &[&'a ResourceQuota],
        evaluator: &Evaluator,
    ) -> Result<Covered<'a>, Refusal> {
        let mut covered = Covered::default();
        let has_scopes = matches!(request.object, Object::Pod(_) | Object::Claim(_));
        let has_limits = !self.configuration.limited_resources.is_empty();
        let mut counted = Vec::new();
        let unset = evaluator.unset(&request.object);
        for (at, quota) in quotas.iter().enumerate() {
            let name = &quota.metadata.name;
            let mut is_matched = true;
            let before = covered.scopes.len();
            for scope in quota.scopes().filter(|_| has_scopes) {
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
            counted.clear();
            if applies {
                counted.extend(evaluator.counted(&quota.status.hard, self.cluster));
            }
            if counted.is_empty() {
                if !self.admission.is_upstream() {
                    covered.scopes.truncate(before);
                }
                continue;
            }
            let mut missing: Vec<&str> = unset.clone();
            missing.retain(|name| counted.contains(name));
            if !missing.is_empty() {
                missing.sort_unstable();
                let missing = Evaluator::missing(&missing, &request.object);
                let why = format!("failed quota: {name}: must specify {}", missing.join("; "));
                return Err(request.forbidden(Phase::Validate, &why).by(name));
            }
            if counted
                .iter()
                .any(|name| !quota.status.used.contains_key(*name))
            {
                let why = format!(
                    "status unknown for quota: {name}, resources: {}",
                    counted.join(",")
                );
                return Err(request.forbidden(Phase::Validate, &why).by(name));
            }
            covered.applying.push(at);
            if has_limits {
                covered.names.extend(&counted);
            }
        }
        Ok(covered)
    }

    /// The object as it was and what it counted, where it is changed.
    fn usage_before<'a>(
        &self,
        request: &'a Request,
        evaluator: &Evaluator,
    ) -> Result<Option<(&'a Object, ResourceList)>, Refusal> {
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
        quotas: &[&ResourceQuota],
        applying: &[usize],
        evaluator: &Evaluator,
        grown: Option<&'a (&Object, ResourceList)>,
        usage: &'a ResourceList,
    ) -> Result<Option<Vec<&'a ResourceList>>, Refusal> {
        let mut changes = Vec::with_capacity(applying.len());
        for quota in applying.iter().filter_map(|at| quotas.get(*at)) {
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

/// What is added to one quota; none if that does not change.
fn charged(
    request: &Request,
    quota: &ResourceQuota,
    usage: &ResourceList,
) -> Result<Option<Charge>, Refusal> {
    let status = &quota.status;
    let name = &quota.metadata.name;
    // A quota has few names, and an object counts under many.
    let counted = status
        .hard
        .iter()
        .filter_map(|(name, hard)| Some((name, usage.get(name)?, hard)));
    // What has been allocated is a fact, whatever the quota says.
    let is_enforced = request.subresource != "status";
    let mut added = Vec::with_capacity(status.hard.len());
    let mut exceeded = Vec::new();
    for (name, amount, hard) in counted {
        let mut sum = amount.clone();
        if let Some(used) = status.used.get(name) {
            sum += used;
        }
        if is_enforced && sum > *hard {
            exceeded.push((name, amount));
        }
        added.push((name.clone(), amount.clone()));
    }
    if !exceeded.is_empty() {
        let of = |list: &ResourceList| {
            let list = list.iter();
            shown(list.filter(|(name, _)| exceeded.iter().any(|(other, _)| other == name)))
        };
        let why = format!(
            "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
            shown(exceeded.iter().copied()),
            of(&status.used),
            of(&status.hard),
        );
        return Err(request.forbidden(Phase::Validate, &why).by(name));
    }
    let charge = Charge {
        quota: name.clone(),
        added,
    };
    Ok(Some(charge).filter(|charge| !charge.added.is_empty()))
}
