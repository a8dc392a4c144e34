//! Minimum, maximum and ratio of one item of a LimitRange, for containers, pods and claims.

use std::cmp::Ordering;

use num_bigint::BigInt;

use super::{CONTAINER, POD};
use crate::kube::admission::Admission;
use crate::kube::admission::field::float_text;
use crate::kube::admission::object::LimitRangeItem;
use crate::kube::pod::Pod;
use crate::kube::quantity::Quantity;
use crate::kube::resources::{self, CPU, MEMORY, ResourceList};

/// The largest whole amount whose thousandths fit an `i64` (upstream `MaxMilliValue`).
pub(super) const MILLI_VALUE_MAX: i64 = i64::MAX / 1000;

/// Upstream's `Value`.
pub(super) fn whole(amount: &Quantity) -> i64 {
    amount.wrapping_scaled_value(0)
}

/// Upstream's `MilliValue`.
pub(super) fn thousandths(amount: &Quantity) -> i64 {
    amount.wrapping_scaled_value(-3)
}

/// Amounts at a precision that fits all of them: thousandths, or whole units if one is too large
/// (`requestLimitEnforcedValues`). What 64 bits do not hold wraps around or is 0.
fn comparable<const N: usize>(amounts: [Option<&Quantity>; N]) -> [i64; N] {
    let value = |amount: Option<&Quantity>| amount.map_or(0, whole);
    let milli = |amount: Option<&Quantity>| amount.map_or(0, thousandths);
    if amounts
        .iter()
        .all(|amount| value(*amount) <= MILLI_VALUE_MAX)
    {
        amounts.map(milli)
    } else {
        amounts.map(value)
    }
}

/// How a request and a limit compare with a bound.
fn compared(
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
    bound: &Quantity,
    admission: Admission,
) -> [Option<Ordering>; 2] {
    let amounts = [request, limit];
    match admission {
        Admission::Upstream => {
            let [request, limit, bound] = comparable([request, limit, Some(bound)]);
            let [has_request, has_limit] = amounts.map(|amount| amount.is_some());
            [
                has_request.then(|| request.cmp(&bound)),
                has_limit.then(|| limit.cmp(&bound)),
            ]
        }
        Admission::Corrected => amounts.map(|amount| amount.map(|amount| amount.cmp(bound))),
    }
}

/// What an item says against a pod (`PodValidateLimitFunc`).
pub(super) fn of_pod(item: &LimitRangeItem, pod: &Pod, admission: Admission) -> Vec<String> {
    let mut causes = Vec::new();
    match item.kind.as_str() {
        CONTAINER => {
            for container in pod.all_containers() {
                let resources = &container.resources;
                check(
                    item,
                    &resources.requests,
                    &resources.limits,
                    admission,
                    &mut causes,
                );
            }
        }
        POD => {
            let requests =
                with_pod_level(resources::aggregate_container_requests(pod), pod, |level| {
                    &level.requests
                });
            let limits = with_pod_level(resources::aggregate_container_limits(pod), pod, |level| {
                &level.limits
            });
            check(item, &requests, &limits, admission, &mut causes);
        }
        _ => {}
    }
    causes
}

/// Pod-level values replace the sum for cpu and memory, and for nothing else here. Overhead is not counted.
fn with_pod_level(
    mut sum: ResourceList,
    pod: &Pod,
    list: fn(&crate::kube::pod::Resources) -> &ResourceList,
) -> ResourceList {
    if let Some(level) = &pod.spec.resources {
        for name in [CPU, MEMORY] {
            if let Some(quantity) = list(level).get(name) {
                sum.insert(name.to_owned(), quantity.clone());
            }
        }
    }
    sum
}

fn check(
    item: &LimitRangeItem,
    requests: &ResourceList,
    limits: &ResourceList,
    admission: Admission,
    causes: &mut Vec<String>,
) {
    let kind = &item.kind;
    for (name, bound) in &item.min {
        causes.extend(below_min(
            kind,
            name,
            bound,
            requests.get(name),
            limits.get(name),
            admission,
        ));
    }
    for (name, bound) in &item.max {
        causes.extend(above_max(
            kind,
            name,
            bound,
            requests.get(name),
            limits.get(name),
            admission,
        ));
    }
    for (name, bound) in &item.max_limit_request_ratio {
        causes.extend(above_ratio(
            kind,
            name,
            bound,
            requests.get(name),
            limits.get(name),
            admission,
        ));
    }
}

/// What an item says against a claim: only requests count (`PersistentVolumeClaimValidateLimitFunc`).
pub(super) fn of_claim(
    item: &LimitRangeItem,
    requests: &ResourceList,
    admission: Admission,
) -> Vec<String> {
    let min = item.min.iter().filter_map(|(name, bound)| {
        below_min(&item.kind, name, bound, requests.get(name), None, admission)
    });
    let max = item.max.iter().filter_map(|(name, bound)| {
        let what = format!("maximum {name} usage per {} is {bound}", item.kind);
        let Some(request) = requests.get(name) else {
            return Some(format!("{what}.  No request is specified"));
        };
        let [asked, _] = compared(Some(request), None, bound, admission);
        (asked == Some(Ordering::Greater)).then(|| format!("{what}, but request is {request}"))
    });
    min.chain(max).collect()
}

fn below_min(
    kind: &str,
    name: &str,
    bound: &Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
    admission: Admission,
) -> Option<String> {
    let what = || format!("minimum {name} usage per {kind} is {bound}");
    let Some(asked) = request else {
        return Some(format!("{}.  No request is specified", what()));
    };
    match (compared(request, limit, bound, admission), limit) {
        ([Some(Ordering::Less), _], _) => Some(format!("{}, but request is {asked}", what())),
        ([_, Some(Ordering::Less)], Some(limit)) => {
            Some(format!("{}, but limit is {limit}", what()))
        }
        _ => None,
    }
}

fn above_max(
    kind: &str,
    name: &str,
    bound: &Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
    admission: Admission,
) -> Option<String> {
    let what = || format!("maximum {name} usage per {kind} is {bound}");
    let Some(limited) = limit else {
        return Some(format!("{}.  No limit is specified", what()));
    };
    match (compared(request, limit, bound, admission), request) {
        ([_, Some(Ordering::Greater)], _) => Some(format!("{}, but limit is {limited}", what())),
        ([Some(Ordering::Greater), _], Some(request)) => {
            Some(format!("{}, but request is {request}", what()))
        }
        _ => None,
    }
}

fn above_ratio(
    kind: &str,
    name: &str,
    bound: &Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
    admission: Admission,
) -> Option<String> {
    let what = || format!("{name} max limit to request ratio per {kind} is {bound}");
    // The bound decides about the precision, too.
    let [requested, limited] = match admission {
        Admission::Upstream => {
            let [requested, limited, _] = comparable([request, limit, Some(bound)]);
            #[expect(
                clippy::cast_precision_loss,
                reason = "the ratio is shown, and upstream compares it, as a float"
            )]
            let floats = [requested as f64, limited as f64];
            floats
        }
        Admission::Corrected => {
            [request, limit].map(|amount| amount.map_or(0.0, Quantity::approximate_f64))
        }
    };
    if requested == 0.0 {
        return Some(format!(
            "{}, but no request is specified or request is 0",
            what()
        ));
    }
    if limited == 0.0 {
        return Some(format!(
            "{}, but no limit is specified or limit is 0",
            what()
        ));
    }
    let ratio = limited / requested;
    #[expect(
        clippy::cast_precision_loss,
        reason = "upstream compares these as floats"
    )]
    let is_above = match admission {
        Admission::Upstream if whole(bound) <= MILLI_VALUE_MAX => {
            ratio * 1000.0 > thousandths(bound) as f64
        }
        Admission::Upstream => ratio > whole(bound) as f64,
        Admission::Corrected => is_above_exactly(request?, limit?, bound),
    };
    is_above.then(|| format!("{}, but provided ratio is {}", what(), float_text(ratio)))
}

/// Whether `limit / request` is above `bound`, without rounding. The request is not zero.
fn is_above_exactly(request: &Quantity, limit: &Quantity, bound: &Quantity) -> bool {
    let [(request, a), (limit, b), (bound, c)] =
        [request, limit, bound].map(|quantity| quantity.mantissa_and_exponent());
    // limit × 10^b > bound × request × 10^(a + c), where the request is positive.
    let (left, right) = (limit, bound * &request);
    let shift = i64::from(b) - i64::from(a) - i64::from(c);
    let scale = BigInt::from(10).pow(u32::try_from(shift.unsigned_abs()).unwrap_or(u32::MAX));
    let (left, right) = if shift >= 0 {
        (left * scale, right)
    } else {
        (left, right * scale)
    };
    if request.sign() == num_bigint::Sign::Minus {
        left < right
    } else {
        left > right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantity(text: &str) -> Quantity {
        Quantity::parse(text).unwrap()
    }

    #[test]
    fn a_ratio_is_compared_without_rounding() {
        for (request, limit, bound, above) in [
            ("1", "2", "2", false),
            ("1", "2001m", "2", true),
            ("100m", "1.5", "15", false),
            ("3", "10", "3.333", true),
            ("3", "10", "3.334", false),
            ("1Ki", "1Mi", "1024", false),
        ] {
            let exact = is_above_exactly(&quantity(request), &quantity(limit), &quantity(bound));
            assert_eq!(exact, above, "{limit} / {request} > {bound}");
        }
    }

    /// As `limitranger` of 1.36 answers: `Value` of 50E and of 100E is 0, and 8Ei are 2^63 - 1, of which the
    /// thousandths wrap around.
    #[test]
    fn beyond_64_bits_upstream_lets_amounts_pass() {
        let refused = |request: &str, max: &str, admission| {
            let (request, max) = (quantity(request), quantity(max));
            above_max(
                CONTAINER,
                MEMORY,
                &max,
                Some(&request),
                Some(&request),
                admission,
            )
            .is_some()
        };
        for (request, max, upstream, corrected) in [
            ("50E", "1Gi", false, true),
            ("1Gi", "50E", true, false),
            ("100E", "50E", false, true),
            ("50E", "100E", false, false),
            ("8Ei", "1Gi", true, true),
            ("1Gi", "8Ei", false, false),
            ("9223372036854775808", "1Gi", false, true),
            ("18446744073709551617", "1", false, true),
            ("2Gi", "1Gi", true, true),
        ] {
            let answers = [Admission::Upstream, Admission::Corrected]
                .map(|admission| refused(request, max, admission));
            assert_eq!(answers, [upstream, corrected], "{request} against {max}");
        }
        let ratio = |admission| {
            let [request, limit, bound] = ["1", "50E", "2"].map(quantity);
            above_ratio(
                CONTAINER,
                MEMORY,
                &bound,
                Some(&request),
                Some(&limit),
                admission,
            )
        };
        let upstream = "memory max limit to request ratio per Container is 2, but no limit is specified or limit is 0";
        assert_eq!(ratio(Admission::Upstream).as_deref(), Some(upstream));
        let corrected = "memory max limit to request ratio per Container is 2, but provided ratio is 50000000000000000000.000000";
        assert_eq!(ratio(Admission::Corrected).as_deref(), Some(corrected));
    }

    #[test]
    fn a_large_amount_is_compared_in_whole_units() {
        let [a, b] = comparable([
            Some(&quantity("1500m")),
            Some(&quantity("9223372036854776")),
        ]);
        assert_eq!((a, b), (2, 9_223_372_036_854_776));
        assert_eq!(comparable([Some(&quantity("1500m"))]), [1500]);
    }
}
