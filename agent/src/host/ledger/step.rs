//! The steps of the ledger, each of which may be the last that the agent takes. A build for tests can end the process,
//! or fill the disk, at any of them.

use std::fs::File;
use std::io::{self, Write};

/// Between two things that `kill -9` can separate.
pub(super) fn reached() {
    #[cfg(test)]
    tests::reached();
}

/// Writes the text. Like any write, it may be cut off in the middle.
pub(super) fn write_all(file: &mut File, text: &[u8]) -> io::Result<()> {
    #[cfg(test)]
    if let Some(written) = tests::cut(file, text) {
        return written;
    }
    file.write_all(text)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        /// The process ends at the step with this number; 0: at none.
        static ENDS_AT: Cell<u32> = const { Cell::new(0) };
        static STEP: Cell<u32> = const { Cell::new(0) };
        static DISK_IS_FULL: Cell<bool> = const { Cell::new(false) };
    }

    /// Ends this process at the `number`th step from now on.
    pub(in super::super) fn end_at(number: u32) {
        STEP.set(0);
        ENDS_AT.set(number);
    }

    /// The steps taken since [`end_at`].
    pub(in super::super) fn taken() -> u32 {
        STEP.get()
    }

    /// From now on a write takes half of its text, and fails.
    pub(in super::super) fn fill_disk(is_full: bool) {
        DISK_IS_FULL.set(is_full);
    }

    pub(super) fn reached() {
        STEP.set(STEP.get() + 1);
        if STEP.get() == ENDS_AT.get() {
            // As `kill -9`: nothing is flushed, dropped or put back.
            std::process::abort();
        }
    }

    pub(super) fn cut(file: &mut File, text: &[u8]) -> Option<io::Result<()>> {
        let half = &text[..text.len() / 2];
        if DISK_IS_FULL.get() {
            file.write_all(half).unwrap();
            return Some(Err(io::ErrorKind::StorageFull.into()));
        }
        reached();
        let begun = file.write_all(half);
        reached();
        Some(begun.and_then(|()| file.write_all(&text[half.len()..])))
    }
}
