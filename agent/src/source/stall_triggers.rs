//! Which PSI triggers wake the agent in time for thresholds on pressure signals.
//!
//! **Problem.** Between two samples an average can pass a threshold, and samples of a calm node are seconds apart.
//! **Approach.** The kernel makes a new average every 2 s as a mean of the old one and the newest share of stalled time
//! (kernel/sched/psi.c `calc_avgs`). An average at or below P can therefore pass P only if tasks stalled for more than
//! P of such a period. One trigger for each kind of stall, at [two thirds](TRIGGER_SHARE) of its lowest threshold and
//! in windows of 1 s, fires in each of these periods: a period touches three windows at most, so in one of them tasks
//! stalled for more than 2/3 P of a second. It fires again in each second for as long as the stall goes on, so an
//! average above its threshold is seen within a second. A trigger only wakes; what is decided, is decided by the
//! averages. **Terms.** *stall*, *window*: see [`super::pressure`]. *share*: stalled time in hundredths of a percent,
//! as a threshold has it.

use std::os::fd::{AsFd, BorrowedFd};

use plimsoll_core::model::signal::Signal;
use plimsoll_core::model::signal::pressure::WHOLE;
use plimsoll_core::model::threshold::{Operator, Threshold};

use rustix::event::epoll::EventFlags;

use super::epoll_set::{EpollError, EpollSet};
use super::pressure::{PressureError, PsiTrigger, Stall, Trigger};
use crate::host::HostRoot;
use crate::host::pressure::PressureFile;

/// The part of a threshold's share at which its trigger fires: numerator and denominator.
pub const TRIGGER_SHARE: (u64, u64) = (2, 3);
/// Long enough to be rare, short enough to be in time. Without CAP_SYS_RESOURCE it becomes 2 s with the same stall
/// ([`super::pressure::PsiTrigger::arm_as_allowed`]): two of those windows hold any period, so it still fires.
const WINDOW_MS: u32 = 1_000;

/// A trigger, and the file that it is armed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallTrigger {
    /// Which file of `/proc/pressure`.
    pub file: PressureFile,
    /// What to write to it.
    pub trigger: Trigger,
}

/// The file and the kind of stall of a pressure signal; `None` for any other signal.
pub(crate) fn stall_of(signal: Signal) -> Option<(PressureFile, Stall)> {
    use Signal::*;
    match signal {
        MemorySome10 | MemorySome60 | MemorySome300 => Some((PressureFile::Memory, Stall::Some)),
        MemoryFull10 | MemoryFull60 | MemoryFull300 => Some((PressureFile::Memory, Stall::Full)),
        IoSome10 | IoSome60 | IoSome300 => Some((PressureFile::Io, Stall::Some)),
        IoFull10 | IoFull60 | IoFull300 => Some((PressureFile::Io, Stall::Full)),
        CpuSome10 | CpuSome60 | CpuSome300 => Some((PressureFile::Cpu, Stall::Some)),
        _ => None,
    }
}

/// The triggers to arm for `thresholds`: at most one for each file and kind of stall, in a fixed order.
///
/// None for a threshold that can never be met (100 % or more: an average is not above that).
pub fn stall_triggers(thresholds: &[Threshold]) -> Vec<StallTrigger> {
    let lowest_share = |file, stall| {
        thresholds
            .iter()
            .filter(|threshold| threshold.operator == Operator::GreaterThan)
            .filter(|threshold| stall_of(threshold.signal) == Some((file, stall)))
            .map(|threshold| threshold.amount(WHOLE))
            .filter(|share| *share < WHOLE)
            .min()
    };
    let mut triggers = Vec::new();
    for file in PressureFile::ALL {
        for stall in [Stall::Some, Stall::Full] {
            let Some(share) = lowest_share(file, stall) else {
                continue;
            };
            let (part, whole) = TRIGGER_SHARE;
            let stall_ms = u64::from(WINDOW_MS) * share * part / (WHOLE * whole);
            // Less than the window, since the share is less than the whole; and a stall of 0 is none.
            let stall_ms = u32::try_from(stall_ms).unwrap_or(WINDOW_MS).max(1);
            triggers.extend(
                Trigger::new(stall, stall_ms, WINDOW_MS)
                    .ok()
                    .map(|trigger| StallTrigger { file, trigger }),
            );
        }
    }
    triggers
}

/// Armed triggers behind one descriptor, which is readable when one of them has fired.
#[derive(Debug)]
pub struct ArmedTriggers {
    watched: EpollSet,
    // After `watched`, which they leave by being closed.
    triggers: Vec<PsiTrigger>,
}

impl ArmedTriggers {
    /// Arms `wanted`. One that cannot be armed is passed to `failed`; `None` when that leaves none.
    ///
    /// # Errors
    /// [`EpollError`] when they cannot be watched together.
    pub fn arm(
        host: &HostRoot,
        wanted: &[StallTrigger],
        mut failed: impl FnMut(&PressureError),
    ) -> Result<Option<Self>, EpollError> {
        let mut triggers = Vec::new();
        for StallTrigger { file, trigger } in wanted {
            match PsiTrigger::arm_as_allowed(host.procfs(file.procfs_path()), *trigger) {
                Ok(armed) => triggers.push(armed),
                Err(error) => failed(&error),
            }
        }
        if triggers.is_empty() {
            return Ok(None);
        }
        let watched = EpollSet::new("PSI triggers")?;
        for trigger in &triggers {
            watched.add(trigger.as_fd(), EventFlags::PRI)?;
        }
        Ok(Some(Self { watched, triggers }))
    }

    /// Takes what has fired. Which one it was does not matter: all averages are read then. Does not wait or allocate.
    ///
    /// # Errors
    /// [`EpollError::Take`].
    pub fn take(&self) -> Result<(), EpollError> {
        self.watched.take().map(drop)
    }

    /// What is armed.
    pub fn triggers(&self) -> &[PsiTrigger] {
        &self.triggers
    }
}

impl AsFd for ArmedTriggers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::model::threshold::{Amount, Passes};

    fn above(signal: Signal, share: u64) -> Threshold {
        Threshold {
            signal,
            operator: Operator::GreaterThan,
            value: Amount::Absolute(share),
            grace_ns: 0,
            min_reclaim: None,
            passes: Passes::All,
        }
    }

    fn shown(thresholds: &[Threshold]) -> Vec<(PressureFile, String)> {
        stall_triggers(thresholds)
            .into_iter()
            .map(|armed| (armed.file, armed.trigger.to_string()))
            .collect()
    }

    #[test]
    fn the_lowest_threshold_of_each_kind_counts() {
        let thresholds = [
            above(Signal::CpuSome60, 9_000),
            above(Signal::MemorySome300, 3_000),
            above(Signal::MemorySome10, 6_000),
            above(Signal::MemoryFull10, 1_500),
            above(Signal::MemoryAvailable, 1),
        ];
        let wanted = [
            (PressureFile::Memory, "some 200000 1000000"),
            (PressureFile::Memory, "full 100000 1000000"),
            (PressureFile::Cpu, "some 600000 1000000"),
        ];
        assert_eq!(
            shown(&thresholds),
            wanted.map(|(file, text)| (file, text.to_owned()))
        );
    }

    #[test]
    fn every_pressure_signal_has_one_and_no_other() {
        for row in &plimsoll_core::model::signal::SIGNALS {
            let triggers = stall_triggers(&[above(row.signal, 5_000)]);
            assert_eq!(
                triggers.len(),
                usize::from(row.name.contains("Pressure.")),
                "{}",
                row.name
            );
            if let [StallTrigger { file, .. }] = triggers[..] {
                let (what, _) = row.name.split_once("Pressure.").unwrap();
                assert!(file.procfs_path().ends_with(what), "{}", row.name);
            }
        }
    }

    #[test]
    fn the_ends_of_the_scale() {
        assert_eq!(
            shown(&[above(Signal::IoSome10, 0)]),
            [(PressureFile::Io, "some 1000 1000000".to_owned())]
        );
        assert_eq!(
            shown(&[above(Signal::IoSome10, WHOLE - 1)]),
            [(PressureFile::Io, "some 666000 1000000".to_owned())]
        );
        assert_eq!(shown(&[above(Signal::IoSome10, WHOLE)]), []);
        let mut off = above(Signal::IoSome10, 10);
        off.operator = Operator::Never;
        assert_eq!(shown(&[off]), []);
    }

    #[test]
    fn this_kernel_takes_them() {
        let thresholds = [
            above(Signal::MemorySome10, 2_000),
            above(Signal::MemoryFull10, 1),
            above(Signal::IoFull300, 9_999),
            above(Signal::CpuSome60, 5_000),
        ];
        let triggers = stall_triggers(&thresholds);
        assert_eq!(triggers.len(), 4);
        let mut refused = 0;
        let armed = ArmedTriggers::arm(&HostRoot::live(), &triggers, |error| {
            // No PSI, or not allowed to us: neither is about the trigger itself.
            let expected = matches!(
                error,
                PressureError::Disabled { .. } | PressureError::NotPermitted { .. }
            );
            assert!(expected, "{error}");
            refused += 1;
        })
        .unwrap();
        let armed_triggers = armed.as_ref().map_or(0, |armed| armed.triggers().len());
        assert_eq!(armed_triggers + refused, 4);
        if let Some(armed) = armed {
            armed.take().unwrap();
        }
    }

    /// However the stall is spread over an averaging period, and however that lies to the trigger's windows.
    #[test]
    fn a_period_above_the_threshold_always_fires() {
        // Steps of 10 ms; a threshold of 20 %, which a period of 2 s passes with 41 stalled steps.
        const PERIOD: usize = 200;
        let (part, whole) = TRIGGER_SHARE;
        let fires_at_steps = (100 * 2_000 * part / (10_000 * whole)) as usize + 1;
        let mut seed = 1_u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        for _ in 0..2_000 {
            // From one burst to evenly spread.
            let stretch = 41 + random(PERIOD - 40);
            let mut stalled = [false; PERIOD];
            let first = random(PERIOD - stretch + 1);
            for step in 0..41 {
                stalled[first + step * stretch / 41] = true;
            }
            assert_eq!(stalled.iter().filter(|on| **on).count(), 41);
            for window in [100, 200] {
                let offset = random(window);
                let fires = stalled
                    .chunk_by({
                        let mut step = offset;
                        move |_, _| {
                            step += 1;
                            !step.is_multiple_of(window)
                        }
                    })
                    .any(|part| part.iter().filter(|on| **on).count() >= fires_at_steps);
                assert!(fires, "{stretch} from {first}, {window} from {offset}");
            }
        }
    }
}
