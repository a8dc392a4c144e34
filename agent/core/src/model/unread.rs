//! The most that a pod uses which was not read with a sample.
//!
//! **Problem.** To read the memory of each pod takes microseconds, and there may be a thousand; one of them is evicted.
//! **Approach.** Two bounds that cost nothing to read. All that pods use together is the usage of the kubepods cgroup:
//! a pod that was not read has at most what those that were read leave of it. And what a pod takes is charged: it has
//! at most what it had, and what was charged to all cgroups since. A pod that cannot be the first of the ranking with
//! that much need not be read.
//!
//! Both may be a little short of the truth: pods change while others are read, and the kernel charges some pages
//! without asking. [`NOISE_BYTES`] is for that.

use serde::{Deserialize, Serialize};

use crate::model::event::Sample;

/// A reading of a pod's memory, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PodReading {
    /// When.
    pub at_ns: u64,
    /// `memory.current`.
    pub usage_bytes: u64,
    /// Usage minus inactive file pages and huge pages, and what is not charged.
    pub working_set_bytes: u64,
    /// What is not charged.
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub uncharged_bytes: u64,
    /// Huge pages in the usage.
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub huge_page_bytes: u64,
    /// Active file pages.
    #[serde(default)]
    pub active_file_bytes: u64,
    /// What is listed as page cache, whether it can be had or not.
    #[serde(default)]
    pub listed_file_bytes: u64,
    /// [`Sample::charged_bytes`] then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged_bytes: Option<u64>,
}

/// The part of a reading from which bounds follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Charged {
    usage_bytes: u64,
    uncharged_bytes: u64,
    charged_bytes: Option<u64>,
}

impl Charged {
    pub(crate) fn of(reading: &PodReading) -> Self {
        Self {
            usage_bytes: reading.usage_bytes,
            uncharged_bytes: reading.uncharged_bytes,
            charged_bytes: reading.charged_bytes,
        }
    }
}

/// What the bounds may be short of.
pub const NOISE_BYTES: u64 = 4 << 20;

/// The bounds that a sample gives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unread {
    charged_bytes: Option<u64>,
    rest_bytes: Option<u64>,
}

impl Unread {
    /// Of one pod what was charged has to do: nearly always it does, and the kubepods cgroup need not be read again. If
    /// more pods are in the sample, it must have been read after them.
    pub(crate) fn of(sample: &Sample) -> Self {
        let kubepods = sample.kubepods.filter(|_| sample.pods.len() > 1);
        let read = sample.pods.iter().map(|memory| memory.usage_bytes);
        let read_bytes = read.fold(0, u64::saturating_add);
        Self {
            charged_bytes: sample.charged_bytes,
            rest_bytes: kubepods.map(|kubepods| {
                let rest = kubepods.usage_bytes.saturating_sub(read_bytes);
                rest.saturating_add(NOISE_BYTES)
            }),
        }
    }

    /// The most that one pod has which was not read, as far as the kubepods cgroup was.
    pub(crate) fn rest_bytes(&self) -> Option<u64> {
        self.rest_bytes
    }

    /// The most that a pod uses of which this was known. What is not charged has not changed since: a sample that
    /// brings another figure of it has all pods.
    pub(crate) fn most_bytes(&self, known: &Charged) -> u64 {
        let charged = self.charged_bytes.zip(known.charged_bytes);
        // Less than before: the programs are others.
        let since = charged.and_then(|(now, then)| now.checked_sub(then));
        let grown = since.map_or(u64::MAX, |since| {
            known
                .usage_bytes
                .saturating_add(since)
                .saturating_add(NOISE_BYTES)
        });
        grown
            .min(self.rest_bytes.unwrap_or(u64::MAX))
            .saturating_add(known.uncharged_bytes)
    }
}
