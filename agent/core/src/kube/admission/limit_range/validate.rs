//! What the API refuses in a LimitRange.
//!
//! Source: `ValidateLimitRange` in `pkg/apis/core/validation/validation.go` of 1.36.

use std::collections::{BTreeMap, BTreeSet};

use super::bounds::{MILLI_VALUE_MAX, thousandths, whole};
use super::{CLAIM, CONTAINER, POD};
use crate::kube::admission::Admission;
use crate::kube::admission::field::{FieldError, float_text, json_text};
use crate::kube::admission::names;
use crate::kube::admission::object::{LimitRange, LimitRangeItem, STORAGE};
use crate::kube::admission::object_meta::Scope;
use crate::kube::admission::resource_rules;
use crate::kube::quantity::{Format, Quantity};

/// Everything wrong with a LimitRange that has its defaults.
pub fn validate(range: &LimitRange, admission: Admission) -> Vec<FieldError> {
    let mut errors = range.metadata.create_errors(Scope::Namespaced);
    let mut kinds = BTreeSet::new();
    for (at, item) in range.spec.limits.iter().enumerate() {
        let path = format!("spec.limits[{at}]");
        type_errors(&item.kind, &format!("{path}.type"), &mut errors);
        if !kinds.insert(item.kind.as_str()) {
            errors.push(FieldError::duplicate(
                format!("{path}.type"),
                &json_text(&item.kind),
            ));
        }
        item_errors(item, &path, admission, &mut errors);
    }
    errors
}

fn type_errors(kind: &str, path: &str, errors: &mut Vec<FieldError>) {
    let value = json_text(kind);
    let malformed = names::qualified_name_errors(kind);
    if malformed.is_empty() && !kind.contains('/') && ![CONTAINER, POD, CLAIM].contains(&kind) {
        let what = "must be a standard limit type or fully qualified";
        errors.push(FieldError::invalid(path, &value, what));
    }
    errors.extend(
        malformed
            .iter()
            .map(|what| FieldError::invalid(path, &value, what)),
    );
}

fn item_errors(
    item: &LimitRangeItem,
    path: &str,
    admission: Admission,
    errors: &mut Vec<FieldError>,
) {
    let mut resources = BTreeSet::new();
    let may_default = item.kind != POD;
    for (field, list, allowed) in [
        ("max", &item.max, true),
        ("min", &item.min, true),
        ("default", &item.default, may_default),
        ("defaultRequest", &item.default_request, may_default),
        ("maxLimitRequestRatio", &item.max_limit_request_ratio, true),
    ] {
        if !allowed {
            if !list.is_empty() {
                let what = "may not be specified when `type` is 'Pod'";
                errors.push(FieldError::forbidden(format!("{path}.{field}"), what));
            }
            continue;
        }
        for name in list.keys() {
            let path = format!("{path}.{field}[{name}]");
            if matches!(item.kind.as_str(), POD | CONTAINER) {
                resource_rules::container_name_errors(name, &path, errors);
            } else {
                resource_rules::name_errors(name, &path, errors);
            }
            resources.insert(name.as_str());
        }
    }
    if item.kind == CLAIM && !item.min.contains_key(STORAGE) && !item.max.contains_key(STORAGE) {
        let what = "either minimum or maximum storage value is required, but neither was provided";
        errors.push(FieldError::required(format!("{path}.limits"), what));
    }
    for name in resources {
        Values::of(item, name, may_default).errors(path, name, admission, errors);
    }
}

/// What an item says about one resource.
struct Values<'a> {
    min: Option<&'a Quantity>,
    max: Option<&'a Quantity>,
    default: Option<&'a Quantity>,
    request: Option<&'a Quantity>,
    ratio: Option<&'a Quantity>,
}

impl<'a> Values<'a> {
    fn of(item: &'a LimitRangeItem, name: &str, may_default: bool) -> Self {
        let get = |list: &'a BTreeMap<String, Quantity>| list.get(name);
        let get_default =
            |list: &'a BTreeMap<String, Quantity>| list.get(name).filter(|_| may_default);
        Self {
            min: get(&item.min),
            max: get(&item.max),
            default: get_default(&item.default),
            request: get_default(&item.default_request),
            ratio: get(&item.max_limit_request_ratio),
        }
    }

    fn errors(&self, path: &str, name: &str, admission: Admission, errors: &mut Vec<FieldError>) {
        let mut above = |field: &str,
                         shown: Option<&Quantity>,
                         (low, low_name): (Option<&Quantity>, &str),
                         (high, high_name): (Option<&Quantity>, &str)| {
            if let (Some(low), Some(high), Some(shown)) = (low, high, shown)
                && low > high
            {
                errors.push(FieldError::invalid(
                    format!("{path}.{field}[{name}]"),
                    &json_text(&shown.to_string()),
                    &format!("{low_name} value {low} is greater than {high_name} value {high}"),
                ));
            }
        };
        let Self {
            min,
            max,
            default,
            request,
            ..
        } = *self;
        // Upstream shows the other bound where it means the default.
        let shown = |other| {
            if admission.is_upstream() {
                other
            } else {
                default
            }
        };
        above("min", min, (min, "min"), (max, "max"));
        above(
            "defaultRequest",
            request,
            (min, "min"),
            (request, "default request"),
        );
        above(
            "defaultRequest",
            request,
            (request, "default request"),
            (max, "max"),
        );
        above(
            "defaultRequest",
            request,
            (request, "default request"),
            (default, "default limit"),
        );
        above("default", shown(min), (min, "min"), (default, "default"));
        above("default", shown(max), (default, "default"), (max, "max"));
        self.ratio_errors(path, name, errors);
        if let (Some(default), Some(request)) = (default, request)
            && !names::may_overcommit(name)
            && default != request
        {
            errors.push(FieldError::invalid(
                format!("{path}.defaultRequest[{name}]"),
                &json_text(&request.to_string()),
                &format!(
                    "default value {default} must equal to defaultRequest value {request} in {name}"
                ),
            ));
        }
    }

    fn ratio_errors(&self, path: &str, name: &str, errors: &mut Vec<FieldError>) {
        let Some(ratio) = self.ratio else { return };
        let field = format!("{path}.maxLimitRequestRatio[{name}]");
        let shown = json_text(&ratio.to_string());
        if *ratio < Quantity::from_value(1, Format::DecimalSI) {
            errors.push(FieldError::invalid(
                &field,
                &shown,
                &format!("ratio {ratio} is less than 1"),
            ));
        }
        let (Some(min), Some(max)) = (self.min, self.max) else {
            return;
        };
        let fits = [ratio, min, max]
            .iter()
            .all(|amount| whole(amount) < MILLI_VALUE_MAX);
        #[expect(
            clippy::cast_precision_loss,
            reason = "upstream compares these as floats, and shows one"
        )]
        let (ratio_value, ratio_limit) = if fits {
            (
                thousandths(ratio) as f64 / 1000.0,
                thousandths(max) as f64 / thousandths(min) as f64,
            )
        } else {
            (whole(ratio) as f64, whole(max) as f64 / whole(min) as f64)
        };
        if ratio_value > ratio_limit {
            let what = format!(
                "ratio {ratio} is greater than max/min = {}",
                float_text(ratio_limit)
            );
            errors.push(FieldError::invalid(field, &shown, &what));
        }
    }
}
