//! A change that the loop makes itself, on the way to a kill: where nothing may be allocated and no lock waited for.

use std::path::Path;

use super::{Change, KnobError, Ledger};
use crate::host::file::read_text;

impl Ledger {
    /// Records that a file may get this value later, by a write of the caller's. A change that is never made does no
    /// harm: the file still has the old value when it is to be undone.
    ///
    /// # Errors
    /// [`KnobError`]: then the caller must not write.
    pub fn record_ahead(&mut self, path: &Path, new: &str) -> Result<(), KnobError> {
        let old = read_text(path)?.trim_end().to_owned();
        self.record_made(path, &old, new)
    }

    /// Records that a file has a value that somebody has written for us, and what it would have without that.
    ///
    /// # Errors
    /// [`KnobError`].
    pub fn record_made(&mut self, path: &Path, old: &str, new: &str) -> Result<(), KnobError> {
        if old == new {
            return Ok(());
        }
        let change = Change::Write {
            path: path.to_owned(),
            old: old.to_owned(),
            new: new.to_owned(),
            process: None,
        };
        self.change(change, || Ok(()))
    }
}
