//! Whether the quotas of a namespace allow a request, and what is in use afterwards (`CheckRequest`).

use std::collections::BTreeSet;

use super::evaluator::Evaluator;
use super::scope;
use super::{Plugin, add, increase, masked, shown};
use crate::kube::admission::object::{Object, ResourceQuota, ScopeRequirement};
use crate::kube::admission::request::{Operation, Phase, Refusal, Request};
use crate::kube::resources::ResourceList;

/// What the quotas have in common about a request.
#[derive(Default)]
struct Covered {
    /// Indexes of the quotas that apply.
    applying: Vec<usize>,
    /// Names that these count.
    names: BTreeSet<String>,
    /// Scopes that match the object; in [`Admission::Upstream`](super::Admission) also those of quotas that do not apply.
    scopes: Vec<ScopeRequirement>,
}

impl Plugin<'_> {
    /// `status.used` of each quota once the request is granted.
    ///
    /// # Errors
    /// If a quota does not allow it.
    pub fn check(
        &self,
        request: &Request,
        quotas: &[ResourceQuota],
    ) -> Result<Vec<ResourceList>, Refusal> {
        let evaluator = Evaluator::of(&request.resource);
        let unchanged = || {
            quotas
                .iter()
                .map(|quota| quota.status.used.clone())
                .collect()
        };
        if !evaluator.handles(request, self.admission) {
            return Ok(unchanged());
        }
        let Some(limited_scopes) = self.limited_scopes(request)? else {
            return Ok(unchanged());
        };
        let usage = evaluator.usage(&request.object, self.cluster);
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
        let changes = self.changes(request, quotas, &covered.applying, &evaluator, &usage)?;
        let Some(changes) = changes else {
            return Ok(unchanged());
        };
        let uncovered: Vec<&str> = limited_names
            .difference(&covered.names)
            .map(String::as_str)
            .collect();
        if !uncovered.is_empty() {
            let why = format!("insufficient quota to consume: {}", uncovered.join(","));
            return Err(request.forbidden(Phase::Validate, &why));
        }
        self.check_scopes(request, &limited_scopes, &covered.scopes)?;
        let mut used: Vec<ResourceList> = unchanged();
        for (at, change) in covered.applying.into_iter().zip(changes) {
            if let (Some(quota), Some(used)) = (quotas.get(at), used.get_mut(at))
                && !change.is_empty()
            {
                *used = charged(request, quota, &change)?;
            }
        }
        Ok(used)
    }

    /// The limited scopes that match the object; none if the plugin is off for this request.
    fn limited_scopes(&self, request: &Request) -> Result<Option<Vec<ScopeRequirement>>, Refusal> {
        let limited = &self.configuration.limited_resources;
        let mut matching = Vec::new();
        for scope in limited.iter().flat_map(|limited| &limited.match_scopes) {
            match scope::matches(scope, &request.object) {
                Ok(true) => matching.push(scope.clone()),
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
    fn covered(
        &self,
        request: &Request,
        quotas: &[ResourceQuota],
        evaluator: &Evaluator,
    ) -> Result<Covered, Refusal> {
        let mut covered = Covered::default();
        let has_scopes = matches!(request.object, Object::Pod(_) | Object::Claim(_));
        for (at, quota) in quotas.iter().enumerate() {
            let name = &quota.metadata.name;
            let mut matching = Vec::new();
            for scope in quota.scopes().into_iter().filter(|_| has_scopes) {
                let matches = scope::matches(&scope, &request.object).map_err(|error| {
                    Refusal::plain_error(format!(
                        "error matching scopes of quota {name}, err: error on matching scope {scope}: {error}"
                    ))
                    .by(name)
                })?;
                if matches {
                    matching.push(scope);
                }
            }
            if self.admission.is_upstream() {
                covered.scopes.append(&mut matching);
            }
            let applies = evaluator
                .applies(quota, &request.object, self.cluster)
                .map_err(|error| Refusal::plain_error(error.to_string()).by(name))?;
            if !applies {
                continue;
            }
            covered.scopes.append(&mut matching);
            let counted = evaluator.counted(&quota.status.hard, self.cluster);
            let missing = evaluator.missing(&counted, &request.object);
            if !missing.is_empty() {
                let why = format!("failed quota: {name}: must specify {}", missing.join("; "));
                return Err(request.forbidden(Phase::Validate, &why).by(name));
            }
            if counted
                .iter()
                .any(|name| !quota.status.used.contains_key(name))
            {
                let counted: Vec<&str> = counted.iter().map(String::as_str).collect();
                let why = format!(
                    "status unknown for quota: {name}, resources: {}",
                    counted.join(",")
                );
                return Err(request.forbidden(Phase::Validate, &why).by(name));
            }
            covered.applying.push(at);
            covered.names.extend(counted);
        }
        Ok(covered)
    }

    /// What is added to each applying quota; none if nothing changes anywhere.
    fn changes(
        &self,
        request: &Request,
        quotas: &[ResourceQuota],
        applying: &[usize],
        evaluator: &Evaluator,
        usage: &ResourceList,
    ) -> Result<Option<Vec<ResourceList>>, Refusal> {
        let mut grown = None;
        if request.operation == Operation::Update {
            let Some(old) = &request.old_object else {
                let why =
                    "unable to get previous usage since prior version of object was not found";
                return Err(request.forbidden(Phase::Validate, why));
            };
            // Without a version, this may be a creation by update: the whole usage counts.
            if !old.meta().resource_version.is_empty() {
                grown = Some((old, increase(usage, &evaluator.usage(old, self.cluster))));
            }
        }
        let mut changes = Vec::with_capacity(applying.len());
        for quota in applying.iter().filter_map(|at| quotas.get(*at)) {
            let change = match &grown {
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
            changes.push(without_zeros(change));
        }
        let any_change = if applying.is_empty() {
            let change = grown.as_ref().map_or(usage, |(_, grown)| grown);
            !without_zeros(change).is_empty()
        } else {
            changes.iter().any(|change| !change.is_empty())
        };
        Ok(any_change.then_some(changes))
    }

    fn check_scopes(
        &self,
        request: &Request,
        limited: &[ScopeRequirement],
        covered: &[ScopeRequirement],
    ) -> Result<(), Refusal> {
        let is_covered = |scope: &ScopeRequirement| {
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

fn without_zeros(list: &ResourceList) -> ResourceList {
    let kept = list.iter().filter(|(_, quantity)| !quantity.is_zero());
    kept.map(|(name, quantity)| (name.clone(), quantity.clone()))
        .collect()
}

/// What is in use of one quota afterwards.
fn charged(
    request: &Request,
    quota: &ResourceQuota,
    change: &ResourceList,
) -> Result<ResourceList, Refusal> {
    let status = &quota.status;
    let requested = masked(change, &status.hard);
    let used = add(&status.used, &requested);
    // What has been allocated is a fact, whatever the quota says.
    if request.subresource != "status" {
        let mut exceeded = requested;
        exceeded.retain(|name, _| {
            status
                .hard
                .get(name)
                .zip(used.get(name))
                .is_some_and(|(hard, used)| used > hard)
        });
        if !exceeded.is_empty() {
            let name = &quota.metadata.name;
            let why = format!(
                "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
                shown(&exceeded),
                shown(&masked(&status.used, &exceeded)),
                shown(&masked(&status.hard, &exceeded)),
            );
            return Err(request.forbidden(Phase::Validate, &why).by(name));
        }
    }
    Ok(used)
}
