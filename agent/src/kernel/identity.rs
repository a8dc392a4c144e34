//! The name of a set of pins: equal names, equal programs.

use plimsoll_abi::ABI_VERSION;

use super::loader::Hierarchies;
use super::{BpfOptions, Counts, Family};
use crate::host::fnv::Fnv;

/// What must be equal for programs to be taken over: the object, what is in its frozen data, and what was asked for.
/// The kernel is the same by nature: pins do not survive a boot.
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
        counts,
    } = options;
    // Names and numbers of our own choice: how Rust prints a value for debugging may change with any compiler.
    for family in Family::ALL.iter().filter(|family| hooks.contains(**family)) {
        hash.write(family.name().as_bytes());
        hash.write(b" ");
    }
    for kind in *without {
        hash.write(kind.to_string().as_bytes());
        hash.write(b" ");
    }
    let window_ns = window.as_nanos();
    let Hierarchies {
        memory_is_v1,
        memory,
        cpu,
    } = hierarchies;
    let pods_only = *counts == Counts::PodsOnly;
    hash.write(format!("{window_ns} {memory_is_v1} {memory} {cpu} {cpus} {pods_only}").as_bytes());
    format!("abi{ABI_VERSION}-{:016x}", hash.0)
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
            counts: Counts::PodsOnly,
        }
    }

    const UNIFIED: Hierarchies = Hierarchies {
        memory_is_v1: false,
        memory: 0,
        cpu: 0,
    };

    /// Another compiler must find the same programs.
    #[test]
    fn the_name_does_not_depend_on_how_values_are_printed() {
        let options = BpfOptions {
            hooks: HookSet::NONE.with(Family::Charges).with(Family::Oom),
            without: &[HookKind::Fentry, HookKind::TpBtf],
            ..options()
        };
        let name = identity(b"object", &options, UNIFIED, 4);
        assert_eq!(name.split_once('-').unwrap().1, "644cf813892b183d");
    }

    #[test]
    fn each_thing_that_is_fixed_at_load_time_makes_another_identity() {
        let hybrid = Hierarchies { cpu: 3, ..UNIFIED };
        let name = identity(b"object", &options(), UNIFIED, 4);
        assert_eq!(name, identity(b"object", &options(), UNIFIED, 4));
        for (object, options, hierarchies, cpus) in [
            (&b"objecu"[..], options(), UNIFIED, 4),
            (b"object", options(), hybrid, 4),
            (b"object", options(), UNIFIED, 8),
            (
                b"object",
                BpfOptions {
                    window: Duration::from_millis(1),
                    ..options()
                },
                UNIFIED,
                4,
            ),
            (
                b"object",
                BpfOptions {
                    counts: Counts::EachCgroup,
                    ..options()
                },
                UNIFIED,
                4,
            ),
            (
                b"object",
                BpfOptions {
                    without: &[HookKind::Fentry],
                    ..options()
                },
                UNIFIED,
                4,
            ),
        ] {
            assert_ne!(name, identity(object, &options, hierarchies, cpus));
        }
        assert!(!name.contains('.'), "{name}");
    }
}
