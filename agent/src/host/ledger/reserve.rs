//! Space that a ledger reserves, so that changes can be recorded, and made, where the file system is full.

use rustix::fs::{FallocateFlags, fallocate};

use super::Ledger;

/// Space behind a ledger's end.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reserve {
    /// Bytes that are kept free behind the end; 0: none.
    bytes: u64,
    /// Offset in the file up to which space is kept; 0 where there may be none.
    pub(super) until: u64,
}

impl Ledger {
    /// Reserves this many bytes behind the ledger's end for lines to come, as far as the file system can do that. A
    /// file system that is full takes no line when they are used up, and so no change.
    #[must_use]
    pub fn with_reserve(mut self, bytes: u64) -> Self {
        self.reserve.bytes = bytes;
        self.keep_reserve();
        self
    }

    /// Has all of it again when half of it is used.
    pub(super) fn keep_reserve(&mut self) {
        let Reserve { bytes, until } = self.reserve;
        if bytes == 0 || self.is_closed() {
            return;
        }
        let Ok(end) = self.file.metadata().map(|metadata| metadata.len()) else {
            return;
        };
        if end.saturating_add(bytes / 2) > until
            && fallocate(&self.file, FallocateFlags::KEEP_SIZE, end, bytes).is_ok()
        {
            self.reserve.until = end.saturating_add(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostRoot;
    use crate::host::mounted::Mounted;

    /// More than a page of lines.
    const LINES: u32 = 100;

    #[test]
    fn a_ledger_with_reserve_takes_lines_on_a_full_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, knob) = (dir.path().join("disk"), dir.path().join("knob"));
        std::fs::create_dir(&disk).unwrap();
        std::fs::write(&knob, "0").unwrap();
        let Some(_mounted) = Mounted::tmpfs(&disk, "size=256k,mode=700") else {
            return;
        };
        let host = HostRoot::new(dir.path());
        let open = |name: &str| Ledger::open(&host, disk.join(name)).unwrap();
        let mut with = open("with.jsonl").with_reserve(64 << 10);
        let mut without = open("without.jsonl");
        for ledger in [&mut with, &mut without] {
            ledger.record_ahead(&knob, "1").unwrap();
        }
        // Space of lines that are gone is reserved again.
        assert_eq!(with.restore().unwrap().changes.len(), 1);
        std::fs::write(disk.join("filler"), vec![1; 1 << 20]).unwrap_err();
        let lines = |ledger: &mut Ledger| {
            let taken = (1..=LINES).map(|value| ledger.record_ahead(&knob, &value.to_string()));
            taken.filter(Result::is_ok).count()
        };
        assert_eq!(lines(&mut with), LINES as usize);
        assert!(lines(&mut without) < LINES as usize);
        assert_eq!(with.changes().unwrap().len(), LINES as usize);
    }
}
