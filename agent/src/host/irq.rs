//! Interrupts moved off exclusive CPUs: `/proc/irq/*/smp_affinity_list` and `/proc/irq/default_smp_affinity`.
//!
//! **Problem.** A CPU that is one container's own still serves whatever devices interrupt it. **Approach.** Each
//! interrupt may go to the CPUs that it could go to before, less the exclusive ones; where nothing is left, to all that
//! are not exclusive. New interrupts start from the default, which is treated alike. Everything goes through a ledger
//! of its own, and is as before when no CPU is exclusive any more, when this ends, and after `kill -9` at the next
//! start.
//!
//! Interrupts of one CPU and those whose queues the kernel spreads itself (managed affinity) refuse with EIO
//! (Documentation/core-api/irq/irq-affinity.rst, kernel/irq/proc.c `write_irq_affinity`): they are counted, and not
//! asked again for the same. What somebody else writes meanwhile is what an interrupt has from then on, less the
//! exclusive CPUs. irqbalance would undo this: tell it the same CPUs (IRQBALANCE_BANNED_CPULIST), or stop it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_core::placement::cpu_set::CpuSet;
use rustix::io::Errno;

use super::HostRoot;
use super::file::{FileError, read_text};
use super::ledger::{KnobError, Ledger, Restoration};

use crate::host::shown::Show as _;

/// Its ledger, in the state directory.
pub const IRQ_LEDGER: &str = "irqs.jsonl";
/// Interrupts that are looked at; `NR_IRQS` of x86 is 524,544, and a large server has some thousands.
const IRQS_MAX: usize = 1 << 19;

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Moved {
    /// Interrupts whose CPUs were changed.
    pub moved: u32,
    /// Those that are bound to their CPUs, and were to be changed.
    pub refused: u32,
    /// Of these, the CPUs that stay interrupted.
    pub interrupted: CpuSet,
    /// Why the first of the others could not be changed.
    pub failed: Option<String>,
}

/// The interrupts of a host.
#[derive(Debug)]
pub struct IrqAffinity {
    host: HostRoot,
    ledger: Ledger,
    known: BTreeMap<u32, Known>,
    /// What the default is without us, and what was last left there.
    default: Option<[String; 2]>,
}

/// An interrupt.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// The CPUs that it has without us.
    before: CpuSet,
    /// What it was last left with.
    left: CpuSet,
    /// What it refuses, as long as it has what it has.
    refuses: Option<CpuSet>,
}

impl Known {
    fn of(now: CpuSet) -> Self {
        Self {
            before: now,
            left: now,
            refuses: None,
        }
    }
}

impl IrqAffinity {
    /// Puts back what an earlier run has left, and changes nothing else. `ledger` is used by nobody else.
    ///
    /// # Errors
    /// [`KnobError::Ledger`].
    pub fn open(host: &HostRoot, mut ledger: Ledger) -> Result<(Self, Restoration), KnobError> {
        let restoration = ledger.restore()?;
        let irqs = Self {
            host: host.clone(),
            ledger,
            known: BTreeMap::new(),
            default: None,
        };
        Ok((irqs, restoration))
    }

    /// Keeps interrupts off the `exclusive` CPUs, as far as there are others online.
    ///
    /// # Errors
    /// When `/proc/irq` cannot be listed. An interrupt that cannot be moved is in [`Moved`].
    pub fn keep_off(&mut self, exclusive: CpuSet, online: CpuSet) -> Result<Moved, FileError> {
        let mut moved = Moved::default();
        let others = online - exclusive;
        if others.is_empty() {
            return Ok(moved);
        }
        for irq in self.list()? {
            let path = self.file(irq);
            let Some(now) = read_list(&path) else {
                continue;
            };
            let known = self.known.entry(irq).or_insert(Known::of(now));
            if now != known.left {
                *known = Known::of(now);
            }
            let before = known.before;
            let wanted = (before & online) - exclusive;
            let wanted = match (wanted.is_empty(), exclusive.is_disjoint(&before)) {
                (_, true) => before,
                (true, false) => others,
                (false, false) => wanted,
            };
            if wanted == now {
                continue;
            }
            let mut stays = || {
                moved.refused += 1;
                moved.interrupted |= now & exclusive;
            };
            if known.refuses == Some(wanted) {
                stays();
                continue;
            }
            match self.ledger.write(&path, &wanted.to_string()) {
                Ok(()) => {
                    known.left = read_list(&path).unwrap_or(wanted);
                    moved.moved += 1;
                }
                Err(error) if error.is_vanished() => {}
                Err(error) if is_bound(&error) => {
                    known.refuses = Some(wanted);
                    stays();
                }
                // No vector is free on those CPUs now, or a security module refuses.
                Err(error) if is_refused(&error, &[Errno::NOSPC, Errno::PERM, Errno::ACCESS]) => {
                    stays();
                }
                Err(error) => {
                    moved.failed.get_or_insert(error.to_string());
                }
            }
        }
        self.keep_default_off(exclusive, &mut moved);
        Ok(moved)
    }

    fn keep_default_off(&mut self, exclusive: CpuSet, moved: &mut Moved) {
        let path = self.host.procfs("irq/default_smp_affinity");
        let Ok(text) = read_text(&path) else {
            return;
        };
        let text = text.trim();
        let [before, left] = match &mut self.default {
            Some(default) if default[1] == text => default,
            default => default.insert([text.to_owned(), text.to_owned()]),
        };
        let Some(mask) = without(before, exclusive) else {
            let text = before.clone();
            moved
                .failed
                .get_or_insert(format!("{}: {text:?} is no mask of CPUs", path.shown()));
            return;
        };
        match self.ledger.write(&path, &mask) {
            Ok(()) => *left = mask,
            Err(error) if error.is_vanished() => {}
            Err(error) => {
                moved.failed.get_or_insert(error.to_string());
            }
        }
    }

    /// Puts everything back.
    ///
    /// # Errors
    /// [`KnobError::Ledger`].
    pub fn restore(&mut self) -> Result<Restoration, KnobError> {
        self.known.clear();
        self.default = None;
        self.ledger.restore()
    }

    fn file(&self, irq: u32) -> PathBuf {
        self.host.procfs(format!("irq/{irq}/smp_affinity_list"))
    }

    fn list(&mut self) -> Result<Vec<u32>, FileError> {
        let dir = self.host.procfs("irq");
        let entries = std::fs::read_dir(&dir).map_err(|error| FileError::Unreadable {
            path: dir.as_path().into(),
            source: super::file::errno_of(&error),
        })?;
        let mut irqs: Vec<u32> = entries
            .take(IRQS_MAX)
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect();
        irqs.sort_unstable();
        // A number may come again as another device's.
        self.known.retain(|irq, _| irqs.binary_search(irq).is_ok());
        Ok(irqs)
    }
}

fn read_list(path: &std::path::Path) -> Option<CpuSet> {
    CpuSet::parse(&read_text(path).ok()?).ok()
}

fn is_bound(error: &KnobError) -> bool {
    is_refused(error, &[Errno::IO])
}

fn is_refused(error: &KnobError, by: &[Errno]) -> bool {
    matches!(error, KnobError::Knob(FileError::Unwritable { source, .. }) if by.contains(source))
}

/// A mask as the kernel prints it (`%*pb`: 32 bits between commas, highest first) without some CPUs; all of them, if
/// none would be left. As many digits as before, so that it reads back as it was written.
fn without(mask: &str, cpus: CpuSet) -> Option<String> {
    let groups: Vec<&str> = mask.split(',').collect();
    let mut left = 0;
    let mut text = Vec::new();
    for (group, base) in groups.iter().zip((0..groups.len()).rev()) {
        let mut bits = u32::from_str_radix(group, 16).ok()?;
        let base = u32::try_from(base).ok()? * 32;
        for bit in (0..32).filter(|bit| cpus.contains(base + bit)) {
            bits &= !(1 << bit);
        }
        left |= bits;
        text.push(format!("{bits:0width$x}", width = group.len()));
    }
    Some(if left == 0 {
        mask.to_owned()
    } else {
        text.join(",")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(irqs: &[(u32, &str)]) -> (tempfile::TempDir, HostRoot) {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        for (irq, cpus) in irqs {
            let dir = host.procfs(format!("irq/{irq}"));
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("smp_affinity_list"), format!("{cpus}\n")).unwrap();
        }
        std::fs::write(host.procfs("irq/default_smp_affinity"), "f\n").unwrap();
        (dir, host)
    }

    fn cpus(list: &str) -> CpuSet {
        CpuSet::parse(list).unwrap()
    }

    fn now(host: &HostRoot) -> Vec<String> {
        let files = ["irq/1/smp_affinity_list", "irq/2/smp_affinity_list"];
        let files = files.iter().chain(&["irq/default_smp_affinity"]);
        files
            .map(|file| read_text(host.procfs(file)).unwrap().trim().to_owned())
            .collect()
    }

    fn open(host: &HostRoot) -> IrqAffinity {
        let ledger = Ledger::open(host, host.path("run/irqs.jsonl")).unwrap();
        IrqAffinity::open(host, ledger).unwrap().0
    }

    #[test]
    fn interrupts_leave_and_come_back() {
        let (_dir, host) = host(&[(1, "0-3"), (2, "3")]);
        let mut irqs = open(&host);
        for (exclusive, wanted) in [
            ("2-3", ["0-1", "0-1", "3"]),
            ("1", ["0,2-3", "3", "d"]),
            ("", ["0-3", "3", "f"]),
            ("3", ["0-2", "0-2", "7"]),
        ] {
            let moved = irqs.keep_off(cpus(exclusive), cpus("0-3")).unwrap();
            assert!(moved.moved > 0 && moved.failed.is_none(), "{moved:?}");
            assert_eq!(now(&host), wanted, "{exclusive}");
            let again = irqs.keep_off(cpus(exclusive), cpus("0-3")).unwrap();
            assert_eq!(again, Moved::default());
        }
        // After a death the next one puts back what was there before the first.
        drop(irqs);
        let mut irqs = open(&host);
        assert_eq!(now(&host), ["0-3", "3", "f"]);
        irqs.keep_off(cpus("0"), cpus("0-3")).unwrap();
        irqs.restore().unwrap();
        assert_eq!(now(&host), ["0-3", "3", "f"]);
        assert_eq!(
            irqs.keep_off(cpus("0-3"), cpus("0-3")).unwrap(),
            Moved::default()
        );
    }

    #[test]
    fn what_somebody_else_sets_stays_less_the_exclusive_cpus() {
        let (_dir, host) = host(&[(1, "0-3"), (2, "3")]);
        let mut irqs = open(&host);
        irqs.keep_off(cpus("3"), cpus("0-3")).unwrap();
        assert_eq!(now(&host), ["0-2", "0-2", "7"]);
        let set = |file: &str, text: &str| std::fs::write(host.procfs(file), text).unwrap();
        set("irq/1/smp_affinity_list", "1\n");
        set("irq/2/smp_affinity_list", "2-3\n");
        set("irq/default_smp_affinity", "a\n");
        irqs.keep_off(cpus("3"), cpus("0-3")).unwrap();
        assert_eq!(now(&host), ["1", "2", "2"]);
        irqs.keep_off(CpuSet::EMPTY, cpus("0-3")).unwrap();
        assert_eq!(now(&host), ["1", "2-3", "a"]);
    }

    #[test]
    fn masks_keep_their_width() {
        for (mask, list, wanted) in [
            ("3", "1", "1"),
            ("00ff", "0-3", "00f0"),
            ("ffffffff,ffffffff", "0,32-63", "00000000,fffffffe"),
            ("3", "0-1", "3"),
        ] {
            assert_eq!(without(mask, cpus(list)).as_deref(), Some(wanted), "{mask}");
        }
        assert_eq!(without("x", cpus("0")), None);
    }

    #[test]
    fn a_bound_interrupt_is_counted() {
        let path = std::path::Path::new("/proc/irq/0/smp_affinity_list");
        let error = |source| {
            KnobError::Knob(FileError::Unwritable {
                path: path.into(),
                source,
            })
        };
        assert!(is_bound(&error(Errno::IO)) && !is_bound(&error(Errno::INVAL)));
    }
}
