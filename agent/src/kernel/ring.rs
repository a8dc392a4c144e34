//! A ring buffer, read and counted.

use aya::maps::{MapData, RingBuf};

use super::consumed::Consumed;
use super::decode::{DecodeError, Record, decode};

pub(super) struct Ring {
    pub(super) ring: RingBuf<MapData>,
    pub(super) unreadable: u64,
    pub(super) last_error: Option<DecodeError>,
}

impl Ring {
    pub(super) fn new(ring: RingBuf<MapData>) -> Self {
        Ring {
            ring,
            unreadable: 0,
            last_error: None,
        }
    }

    /// Hands at most `budget` records to `f`, counts them, and returns how many places were freed.
    pub(super) fn drain(
        &mut self,
        budget: usize,
        consumed: &Consumed,
        mut f: impl FnMut(Record<'_>),
    ) -> usize {
        for taken in 0..budget {
            let Some(item) = self.ring.next() else {
                return taken;
            };
            match decode(&item) {
                Ok((kind, record)) => {
                    let cpu = record.cpu;
                    f(record);
                    drop(item);
                    consumed.count(cpu, kind.number());
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
