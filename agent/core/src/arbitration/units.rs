//! Quantities as amounts: the units in which the arbitrator counts (`docs/reference/arbitrator.md`, "Words").

use std::collections::BTreeMap;

use crate::kube::quantity::Quantity;

/// Amounts by the names of resources, in canonical units.
pub type Named = BTreeMap<String, u64>;

/// Which way what is not whole goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// For what is requested.
    Up,
    /// For what there is.
    Down,
}

/// `requests.cpu` is the same as `cpu`.
#[must_use]
pub fn canonical_name(name: &str) -> &str {
    name.strip_prefix("requests.").unwrap_or(name)
}

fn is_cpu(name: &str) -> bool {
    matches!(name, "cpu" | "limits.cpu")
}

/// Takes in an amount under its canonical name. Of two for one resource (`cpu` and `requests.cpu`) the one counts that
/// promises less: the lesser of what there is, the greater of what is asked for.
pub fn insert(amounts: &mut Named, name: &str, quantity: &Quantity, rounding: Rounding) {
    let name = canonical_name(name);
    let amount = canonical(name, quantity, rounding);
    let known = amounts.entry(name.to_owned()).or_insert(amount);
    *known = match rounding {
        Rounding::Up => amount.max(*known),
        Rounding::Down => amount.min(*known),
    };
}

/// In thousandths for CPU, else in whole units; what is below 0 is 0.
#[must_use]
pub fn canonical(name: &str, quantity: &Quantity, rounding: Rounding) -> u64 {
    let unit: u128 = if is_cpu(name) {
        1_000_000
    } else {
        1_000_000_000
    };
    let nanos = u128::try_from(quantity.nanos()).unwrap_or(0);
    let amount = match rounding {
        Rounding::Up => nanos.div_ceil(unit),
        Rounding::Down => nanos / unit,
    };
    u64::try_from(amount).unwrap_or(u64::MAX)
}

/// An amount as a quantity. What is not a whole number of MiB but more than 64 of them is rounded down to one: more
/// digits help no reader.
#[must_use]
pub fn quantity_of(name: &str, amount: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    if is_cpu(name) {
        return if amount.is_multiple_of(1000) {
            (amount / 1000).to_string()
        } else {
            format!("{amount}m")
        };
    }
    let is_bytes = matches!(name, "memory" | "ephemeral-storage" | "limits.memory")
        || name.starts_with("hugepages-");
    match amount {
        _ if !is_bytes || amount == 0 => amount.to_string(),
        _ if amount.is_multiple_of(GIB) => format!("{}Gi", amount / GIB),
        _ if amount.is_multiple_of(MIB) || amount > 64 * MIB => format!("{}Mi", amount / MIB),
        _ if amount.is_multiple_of(KIB) => format!("{}Ki", amount / KIB),
        _ => amount.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_and_quantities() {
        let cases = [
            ("cpu", "0.5", 500, "500m"),
            ("cpu", "20", 20_000, "20"),
            ("memory", "100M", 100_000_000, "95Mi"),
            ("memory", "40Gi", 40 << 30, "40Gi"),
            ("memory", "12Ki", 12 << 10, "12Ki"),
            ("pods", "110", 110, "110"),
            ("nvidia.com/gpu", "2048", 2048, "2048"),
        ];
        for (name, text, amount, shown) in cases {
            let quantity = Quantity::parse(text).unwrap();
            assert_eq!(canonical(name, &quantity, Rounding::Up), amount, "{text}");
            assert_eq!(quantity_of(name, amount), shown);
        }
        // Whichever comes first.
        for names in [["cpu", "requests.cpu"], ["requests.cpu", "cpu"]] {
            for (rounding, counted) in [(Rounding::Down, 3000), (Rounding::Up, 4000)] {
                let mut amounts = Named::new();
                for (name, text) in names.iter().zip(["4", "3"]) {
                    insert(
                        &mut amounts,
                        name,
                        &Quantity::parse(text).unwrap(),
                        rounding,
                    );
                }
                assert_eq!(amounts, Named::from([("cpu".to_owned(), counted)]));
            }
        }
        let odd = Quantity::parse("0.0001").unwrap();
        assert_eq!(canonical("cpu", &odd, Rounding::Up), 1);
        assert_eq!(canonical("cpu", &odd, Rounding::Down), 0);
        assert_eq!(
            canonical("cpu", &Quantity::parse("-1").unwrap(), Rounding::Up),
            0
        );
    }
}
