//! The bandwidth files of one cgroup: what is in force, what was before we changed it, and changing it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_core::model::bandwidth::{CgroupCpu, CpuKnob};

use crate::host::cgroup::Version;
use crate::host::file::{ControlFile, FileError, parse_u64};
use crate::host::ledger::{KnobError, Ledger};

/// Two numbers, or `max` and one.
const MAX_BYTES: usize = 64;

/// What we wrote, and what was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ours {
    found_us: Option<u64>,
    wrote_us: u64,
}

/// The open files of one cgroup.
#[derive(Debug)]
pub(super) struct Bandwidth {
    version: Version,
    dir: PathBuf,
    quota: ControlFile,
    /// v1: the period is a file of its own.
    period: Option<ControlFile>,
    /// `None`: the kernel is older than 5.14.
    burst: Option<ControlFile>,
    stat: ControlFile,
    /// v1: beside, where `cpuacct` is mounted together with `cpu`.
    usage: Option<ControlFile>,
    our_quota: Option<Ours>,
    our_burst: Option<Ours>,
}

/// A reading.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Read {
    /// With usage 0 where `has_usage` is not set.
    pub(super) cpu: CgroupCpu,
    /// Whether the files say how much CPU time was used.
    pub(super) has_usage: bool,
    /// What somebody else has changed since we wrote it, with its file.
    pub(super) overwritten: Vec<(CpuKnob, PathBuf)>,
}

impl Bandwidth {
    /// Opens the files of the cgroup with this directory in the hierarchy of the cpu controller.
    pub(super) fn open(version: Version, dir: &Path) -> Result<Self, FileError> {
        let there = |result: Result<ControlFile, FileError>| match result {
            Err(error) if error.is_vanished() => Ok(None),
            other => other.map(Some),
        };
        let open = |name: &str| ControlFile::open(dir.join(name));
        let v1 = version == Version::V1;
        Ok(Self {
            version,
            dir: dir.to_owned(),
            quota: open(file_name(version, CpuKnob::Quota))?,
            period: v1.then(|| open("cpu.cfs_period_us")).transpose()?,
            burst: there(open(file_name(version, CpuKnob::Burst)))?,
            stat: open("cpu.stat")?,
            usage: match v1 {
                true => there(open("cpuacct.usage"))?,
                false => None,
            },
            our_quota: None,
            our_burst: None,
        })
    }

    /// Reads all of them.
    pub(super) fn read(&mut self, container: &Arc<str>) -> Result<Read, FileError> {
        let (quota_us, period_us) = self.read_quota()?;
        let burst_us = self.burst.as_ref().map(ControlFile::read_u64).transpose()?;
        let [periods, throttled, bursts, usage_us] =
            self.stat
                .read_keyed(&["nr_periods", "nr_throttled", "nr_bursts", "usage_usec"])?;
        let usage_us = match &self.usage {
            Some(usage) => Some(usage.read_u64()? / 1000),
            None => usage_us,
        };
        let mut overwritten = Vec::new();
        let mut found = |ours: &mut Option<Ours>, knob, now_us: Option<u64>| match *ours {
            Some(known) if now_us == Some(known.wrote_us) => known.found_us,
            Some(_) => {
                *ours = None;
                overwritten.push((knob, self.dir.join(file_name(self.version, knob))));
                now_us
            }
            None => now_us,
        };
        let configured_quota_us = found(&mut self.our_quota, CpuKnob::Quota, quota_us);
        let configured_burst_us = found(&mut self.our_burst, CpuKnob::Burst, burst_us);
        Ok(Read {
            cpu: CgroupCpu {
                container: Arc::clone(container),
                period_us,
                quota_us,
                configured_quota_us,
                burst_us,
                configured_burst_us,
                periods: periods.unwrap_or(0),
                throttled: throttled.unwrap_or(0),
                bursts: bursts.unwrap_or(0),
                usage_us: usage_us.unwrap_or(0),
            },
            has_usage: usage_us.is_some(),
            overwritten,
        })
    }

    /// v2: `max 100000` or `50000 100000`; v1: `-1` or `50000`, and the period.
    fn read_quota(&self) -> Result<(Option<u64>, u64), FileError> {
        let mut buffer = [0; MAX_BYTES];
        let text = self.quota.read_into(&mut buffer)?.trim_ascii();
        let mut words = text.split(|byte| *byte == b' ');
        let malformed = || self.quota.malformed(1, "a quota, and on v2 a period");
        let quota = match words.next() {
            Some(b"max" | b"-1") => None,
            Some(number) => Some(parse_u64(number).ok_or_else(malformed)?),
            None => return Err(malformed()),
        };
        let period = match &self.period {
            Some(period) => period.read_u64()?,
            None => words.next().and_then(parse_u64).ok_or_else(malformed)?,
        };
        Ok((quota, period))
    }

    /// Writes a setting; the ledger has it first.
    pub(super) fn set(
        &mut self,
        ledger: &mut Ledger,
        knob: CpuKnob,
        us: u64,
    ) -> Result<(), KnobError> {
        let (quota_us, period_us) = self.read_quota()?;
        let now_us = match (knob, &self.burst) {
            (CpuKnob::Quota, _) => quota_us,
            (CpuKnob::Burst, Some(burst)) => Some(burst.read_u64()?),
            (CpuKnob::Burst, None) => None,
        };
        let text = match (knob, self.version) {
            (CpuKnob::Quota, Version::V2) => format!("{us} {period_us}"),
            _ => us.to_string(),
        };
        let path = self.dir.join(file_name(self.version, knob));
        ledger.write(&path, &text)?;
        let ours = self.ours(knob);
        *ours = Some(Ours {
            found_us: match *ours {
                Some(known) if now_us == Some(known.wrote_us) => known.found_us,
                _ => now_us,
            },
            wrote_us: us,
        });
        Ok(())
    }

    /// Puts a setting back, if it still has what we wrote. What was left alone is said.
    pub(super) fn restore(
        &mut self,
        ledger: &mut Ledger,
        knob: CpuKnob,
    ) -> Result<Vec<String>, KnobError> {
        let path = self.dir.join(file_name(self.version, knob));
        let restoration = ledger.restore_file(&path)?;
        // Else it is ours still, and must not be taken for what was configured.
        if restoration.busy().is_none() {
            *self.ours(knob) = None;
        }
        Ok(restoration.remarks())
    }

    /// Whether anything of it is ours.
    pub(super) fn is_changed(&self) -> bool {
        self.our_quota.is_some() || self.our_burst.is_some()
    }

    fn ours(&mut self, knob: CpuKnob) -> &mut Option<Ours> {
        match knob {
            CpuKnob::Quota => &mut self.our_quota,
            CpuKnob::Burst => &mut self.our_burst,
        }
    }
}

/// The file of a setting.
fn file_name(version: Version, knob: CpuKnob) -> &'static str {
    match (version, knob) {
        (Version::V2, CpuKnob::Quota) => "cpu.max",
        (Version::V2, CpuKnob::Burst) => "cpu.max.burst",
        (Version::V1, CpuKnob::Quota) => "cpu.cfs_quota_us",
        (Version::V1, CpuKnob::Burst) => "cpu.cfs_burst_us",
    }
}
