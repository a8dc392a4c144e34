//! Room that a ledger keeps for itself, so that changes can be recorded, and made, where the file system is full.

use rustix::fs::{FallocateFlags, fallocate};

use super::Ledger;

/// Room behind a ledger's end.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Room {
    /// So many bytes of it; 0: none.
    bytes: u64,
    /// How far it reaches. 0 where there may be none.
    pub(super) until: u64,
}

impl Ledger {
    /// Keeps this many bytes behind the ledger's end for lines to come, as far as the file system can do that. A file system that is full takes no line when they are used up, and
    /// so no change.
    #[must_use]
    pub fn with_room(mut self, bytes: u64) -> Self {
        self.room.bytes = bytes;
        self.keep_room();
        self
    }

    /// Has all of the room again when half of it is used.
    pub(super) fn keep_room(&mut self) {
        let Room { bytes, until } = self.room;
        if bytes == 0 || self.is_closed() {
            return;
        }
        let Ok(end) = self.file.metadata().map(|metadata| metadata.len()) else {
            return;
        };
        if end.saturating_add(bytes / 2) > until
            && fallocate(&self.file, FallocateFlags::KEEP_SIZE, end, bytes).is_ok()
        {
            self.room.until = end.saturating_add(bytes);
        }
    }
}
