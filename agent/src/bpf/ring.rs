//! A ring buffer, read and counted.

use aya::maps::{MapData, RingBuf};
use plimsoll_abi::KIND_SLOTS;

use crate::source::decode::{DecodeError, Record, decode};

pub(super) struct Ring {
    pub(super) ring: RingBuf<MapData>,
    /// By CPU.
    consumed: Box<[[u64; KIND_SLOTS]]>,
    pub(super) unreadable: u64,
    pub(super) last_error: Option<DecodeError>,
}

impl Ring {
    /// Records come from so many CPUs.
    pub(super) fn new(ring: RingBuf<MapData>, cpus: usize) -> Self {
        Ring {
            ring,
            consumed: vec![[0; KIND_SLOTS]; cpus].into(),
            unreadable: 0,
            last_error: None,
        }
    }

    /// Records of a kind (by number) and CPU that were read.
    pub(super) fn consumed(&self, cpu: usize, slot: usize) -> u64 {
        self.consumed
            .get(cpu)
            .and_then(|kinds| kinds.get(slot))
            .copied()
            .unwrap_or(0)
    }

    /// Hands at most `budget` records to `f` and returns how many places were freed.
    pub(super) fn drain(&mut self, budget: usize, mut f: impl FnMut(Record<'_>)) -> usize {
        for taken in 0..budget {
            let Some(item) = self.ring.next() else {
                return taken;
            };
            match decode(&item) {
                Ok(record) => {
                    if let Some(count) = self
                        .consumed
                        .get_mut(record.cpu as usize)
                        .and_then(|kinds| kinds.get_mut(usize::from(record.body.kind().number())))
                    {
                        *count += 1;
                    }
                    f(record);
                }
                Err(error) => {
                    self.unreadable += 1;
                    self.last_error = Some(error);
                }
            }
        }
        budget
    }
}
