//! Amounts and their units, as people read them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a signal counts in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Inodes.
    Inodes,
    /// Processes and threads.
    Processes,
    /// A share of time, in hundredths of a percent.
    Share,
    /// Bytes per second.
    BytesPerSecond,
    /// Thousandths of a CPU.
    MilliCpus,
}

/// Bytes as people write them: `1.5Gi`.
pub(crate) struct Human(pub(crate) u64);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
        for (suffix, shift) in UNITS {
            if self.0 >= 1 << shift {
                let tenths = (u128::from(self.0) * 10) >> shift;
                let (whole, tenth) = (tenths / 10, tenths % 10);
                return match tenth {
                    0 => write!(f, "{whole}{suffix}"),
                    _ => write!(f, "{whole}.{tenth}{suffix}"),
                };
            }
        }
        write!(f, "{}", self.0)
    }
}

/// An amount in a signal's unit, as people write it.
#[derive(Clone, Copy, Debug)]
pub struct In(pub Unit, pub u64);

impl fmt::Display for In {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(unit, amount) = *self;
        match unit {
            Unit::Bytes => Human(amount).fmt(f),
            Unit::Inodes => write!(f, "{amount} inodes"),
            Unit::Processes => write!(f, "{amount} processes"),
            Unit::Share => write!(f, "{}.{:02}%", amount / 100, amount % 100),
            Unit::BytesPerSecond => write!(f, "{}/s", Human(amount)),
            Unit::MilliCpus => write!(f, "{amount}m CPU"),
        }
    }
}
