//! The last line's maps, from this side ([`plimsoll_abi::last_line`] says what they hold, [`plimsoll_core::policy::oom::last_line`] who is in them).
//!
//! A pod gets into the order as a [`CondemnedPod`], and only what the core has condemned can become one.

use std::collections::BTreeMap;

use aya::maps::{Array, HashMap, MapData, MapError};
use plimsoll_abi::last_line::{UID_BYTES, UID_WORDS, condemned, kills, line, seen};
use plimsoll_core::model::event::LastLineReason;
use plimsoll_core::policy::oom::last_line::Condemned;

use super::BpfError;
use super::error::map_error;
use crate::kernel::decode::last_line_reason;

const REPORTED: &str = "KILLS_REPORTED";

/// A pod of the order, with the cgroup that it is known by in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CondemnedPod {
    /// The pod, as the core has condemned it.
    pub pod: Condemned,
    /// Its cgroup in the hierarchy that accounts memory.
    pub cgroup_id: u64,
}

/// What is in force until the next time. Amounts in pages, times CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LineSetting {
    /// Until then.
    pub until_ns: u64,
    /// Below this, a condemned pod is killed if the agent does not acknowledge in time.
    pub line_pages: u64,
    /// Below this, it is killed at once.
    pub critical_pages: u64,
    /// A crossing is to be acknowledged within this time.
    pub budget_ns: u64,
    /// Until so much has been charged, memory cannot be at the line.
    pub check_at_pages: u64,
    /// So much page cache does not count as available.
    pub cache_kept_pages: u64,
    /// Crossings up to then are acknowledged.
    pub acked_ns: u64,
}

/// What was done to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodKills {
    /// Its cgroup.
    pub cgroup_id: u64,
    /// Processes killed.
    pub count: u64,
    /// When the last one was.
    pub last_ns: u64,
    /// Why; `None` for a number that this plimsoll does not know.
    pub why: Option<LastLineReason>,
    /// Its process id.
    pub tgid: u32,
    /// The pod's UID, padded with NULs.
    pub uid: [u8; UID_BYTES],
}

/// The maps.
pub struct LastLineMaps {
    pub(super) line: Array<MapData, [u64; line::WORDS]>,
    pub(super) seen: Array<MapData, u64>,
    pub(super) condemned: HashMap<MapData, u64, [u64; condemned::WORDS]>,
    pub(super) kills: HashMap<MapData, u64, [u64; kills::WORDS]>,
    pub(super) reported: HashMap<MapData, u64, u64>,
    /// What `condemned` holds, by cgroup: the place.
    pub(super) order: BTreeMap<u64, u64>,
    /// Whether `order` is known to be what is there.
    pub(super) order_known: bool,
}

impl LastLineMaps {
    /// Puts a setting in force. One map update, no allocation.
    ///
    /// # Errors
    /// When the kernel refuses the update.
    pub fn set(&mut self, setting: &LineSetting) -> Result<(), BpfError> {
        let mut value = [0; line::WORDS];
        value[line::UNTIL_NS] = setting.until_ns;
        value[line::LINE_PAGES] = setting.line_pages;
        value[line::CRITICAL_PAGES] = setting.critical_pages;
        value[line::BUDGET_NS] = setting.budget_ns;
        value[line::CHECK_AT_PAGES] = setting.check_at_pages;
        value[line::CACHE_KEPT_PAGES] = setting.cache_kept_pages;
        value[line::ACKED_NS] = setting.acked_ns;
        self.line.set(0, value, 0).map_err(map_error("LAST_LINE"))
    }

    /// Replaces the order. Pods that are no longer in it are removed first, so that at no time a pod is condemned that neither order
    /// names.
    ///
    /// # Errors
    /// When the kernel refuses an update; what is there expires by itself.
    pub fn condemn(&mut self, order: &[CondemnedPod], until_ns: u64) -> Result<(), BpfError> {
        const MAP: &str = "CONDEMNED";
        if !self.order_known {
            // What an earlier agent has left.
            for id in self.condemned.keys() {
                self.order.insert(id.map_err(map_error(MAP))?, u64::MAX);
            }
            self.order_known = true;
        }
        let places = || (0u64..).zip(order);
        let is_same = self.order.len() == order.len()
            && places().all(|(place, pod)| self.order.get(&pod.cgroup_id) == Some(&place));
        let gone: Vec<u64> = self
            .order
            .keys()
            .filter(|id| order.iter().all(|pod| pod.cgroup_id != **id))
            .copied()
            .collect();
        for id in gone {
            self.condemned.remove(&id).map_err(map_error(MAP))?;
            self.order.remove(&id);
        }
        for (place, pod) in places() {
            let mut value = [0; condemned::WORDS];
            value[condemned::PLACE] = place;
            value[condemned::UNTIL_NS] = until_ns;
            value[condemned::UID..].copy_from_slice(&uid_words(pod.pod.uid().as_str()));
            self.condemned
                .insert(pod.cgroup_id, value, 0)
                .map_err(map_error(MAP))?;
            self.order.insert(pod.cgroup_id, place);
        }
        if !is_same {
            // Places belong to other pods now.
            for word in [seen::DONE, seen::LAST_KILL_NS] {
                self.seen
                    .set(word, 0, 0)
                    .map_err(map_error("LAST_LINE_SEEN"))?;
            }
        }
        Ok(())
    }

    /// What was done so far, by whichever agent's order.
    ///
    /// # Errors
    /// When the kernel refuses to show the map.
    pub fn kills(&self, mut f: impl FnMut(PodKills)) -> Result<(), BpfError> {
        for entry in self.kills.iter() {
            let (cgroup_id, value) = entry.map_err(map_error("LAST_LINE_KILLS"))?;
            let mut uid = [0; UID_BYTES];
            for (bytes, word) in uid.chunks_exact_mut(8).zip(&value[kills::UID..]) {
                bytes.copy_from_slice(&word.to_ne_bytes());
            }
            f(PodKills {
                cgroup_id,
                count: value[kills::COUNT],
                last_ns: value[kills::LAST_NS],
                why: u32::try_from(value[kills::REASON])
                    .ok()
                    .and_then(last_line_reason),
                tgid: u32::try_from(value[kills::TGID]).unwrap_or(0),
                uid,
            });
        }
        Ok(())
    }

    /// Forgets what was done to a pod that is gone, so that there is room for others.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn forget_kills(&mut self, cgroup_id: u64) -> Result<(), BpfError> {
        self.kills
            .remove(&cgroup_id)
            .map_err(map_error("LAST_LINE_KILLS"))?;
        match self.reported.remove(&cgroup_id) {
            // None of its kills was reported.
            Err(MapError::KeyNotFound) => Ok(()),
            removed => removed.map_err(map_error(REPORTED)),
        }
    }

    /// Notes how many of a pod's kills have been reported, for this agent and those after it. Never fewer than before.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn note_reported(&mut self, cgroup_id: u64, kills: u64) -> Result<(), BpfError> {
        if kills > self.reported(cgroup_id)? {
            self.reported
                .insert(cgroup_id, kills, 0)
                .map_err(map_error(REPORTED))?;
        }
        Ok(())
    }

    /// How many of a pod's kills have been reported.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn reported(&self, cgroup_id: u64) -> Result<u64, BpfError> {
        match self.reported.get(&cgroup_id, 0) {
            Err(MapError::KeyNotFound) => Ok(0),
            kills => kills.map_err(map_error(REPORTED)),
        }
    }

    /// Signals that the kernel did not take.
    ///
    /// # Errors
    /// When the kernel refuses to show the map.
    pub fn refused(&self) -> Result<u64, BpfError> {
        self.seen
            .get(&seen::REFUSED, 0)
            .map_err(map_error("LAST_LINE_SEEN"))
    }
}

/// A UID as the kernel keeps it: its first bytes, padded with NULs.
fn uid_words(uid: &str) -> [u64; UID_WORDS] {
    let mut words = [0; UID_WORDS];
    for (word, bytes) in words.iter_mut().zip(uid.as_bytes().chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(padded);
    }
    words
}

/// The text of such a UID.
#[must_use]
pub fn uid_text(uid: &[u8]) -> &str {
    let end = uid.iter().position(|byte| *byte == 0).unwrap_or(uid.len());
    let text = &uid[..end];
    // A long one may have been cut inside a character.
    str::from_utf8(text)
        .unwrap_or_else(|error| str::from_utf8(&text[..error.valid_up_to()]).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_is_kept_as_far_as_it_fits() {
        let kept = |uid: &str| {
            let bytes: Vec<u8> = uid_words(uid)
                .iter()
                .flat_map(|word| word.to_ne_bytes())
                .collect();
            uid_text(&bytes).to_owned()
        };
        let uid = "0a1b2c3d-0000-1111-2222-333344445555";
        assert_eq!(kept(uid), uid);
        assert_eq!(kept(""), "");
        assert_eq!(kept(&"x".repeat(60)), "x".repeat(UID_BYTES));
        let cut = format!("{}é", "x".repeat(UID_BYTES - 1));
        assert_eq!(kept(&cut), "x".repeat(UID_BYTES - 1));
    }
}
