//! The name of a set of pins: equal names, equal programs.

use plimsoll_abi::ABI_VERSION;

use super::BpfOptions;
use super::loader::Hierarchies;

/// What must be equal for programs to be taken over: the object, what is in its frozen data, and what was asked for. The kernel is the same
/// by nature: pins do not survive a boot.
pub(super) fn identity(
    object: &[u8],
    options: &BpfOptions,
    hierarchies: Hierarchies,
    cpus: usize,
) -> String {
    let mut hash = Fnv::default();
    hash.write(object);
    let BpfOptions {
        hooks,
        without,
        window,
    } = options;
    hash.write(format!("{hooks:?} {without:?} {window:?} {hierarchies:?} {cpus}").as_bytes());
    format!("abi{ABI_VERSION}-{:016x}", hash.0)
}

/// FNV-1a, 64 bits. It only makes versions that differ have different names; it is no protection.
pub(super) struct Fnv(pub(super) u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    pub(super) fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{HookKind, HookSet};
    use super::*;

    fn options() -> BpfOptions {
        BpfOptions {
            hooks: HookSet::ALL,
            without: &[],
            window: Duration::from_millis(100),
        }
    }

    #[test]
    fn each_thing_that_is_fixed_at_load_time_makes_another_identity() {
        let unified = Hierarchies {
            memory_is_v1: false,
            memory: 0,
            cpu: 0,
        };
        let hybrid = Hierarchies { cpu: 3, ..unified };
        let name = identity(b"object", &options(), unified, 4);
        assert_eq!(name, identity(b"object", &options(), unified, 4));
        for (object, options, hierarchies, cpus) in [
            (&b"objecu"[..], options(), unified, 4),
            (b"object", options(), hybrid, 4),
            (b"object", options(), unified, 8),
            (
                b"object",
                BpfOptions {
                    window: Duration::from_millis(1),
                    ..options()
                },
                unified,
                4,
            ),
            (
                b"object",
                BpfOptions {
                    without: &[HookKind::Fentry],
                    ..options()
                },
                unified,
                4,
            ),
        ] {
            assert_ne!(name, identity(object, &options, hierarchies, cpus));
        }
        assert!(!name.contains('.'), "{name}");
    }
}
