//! `/proc/vmstat`: what reclaim for the node has looked at and taken.
//!
//! The lines of kswapd and of direct reclaim leave out reclaim at a cgroup's limit (`shrink_inactive_list` and
//! `evict_folios` in mm/vmscan.c), which `pgscan_file` and `pgscan_anon` have.

use plimsoll_core::model::reclaim_yield::ReclaimCounts;

use super::HostRoot;
use super::file::{ControlFile, FileError};

const LINES: [&str; 4] = [
    "pgscan_kswapd",
    "pgscan_direct",
    "pgsteal_kswapd",
    "pgsteal_direct",
];

/// `/proc/vmstat`, opened once.
#[derive(Debug)]
pub struct VmstatFile(ControlFile);

impl VmstatFile {
    /// Opens the host's.
    ///
    /// # Errors
    /// When procfs is not there or not readable.
    pub fn open(host: &HostRoot) -> Result<Self, FileError> {
        Ok(Self(ControlFile::open(host.procfs("vmstat"))?))
    }

    /// Reads it; allocates nothing.
    ///
    /// # Errors
    /// When it cannot be read, or a line is missing.
    pub fn read(&self) -> Result<ReclaimCounts, FileError> {
        let lines = self.0.read_keyed(&LINES)?;
        let [
            Some(by_kswapd),
            Some(direct),
            Some(taken_by_kswapd),
            Some(taken_directly),
        ] = lines
        else {
            return Err(self.0.malformed(0, "lines pgscan_… and pgsteal_…"));
        };
        Ok(ReclaimCounts {
            scanned: by_kswapd.saturating_add(direct),
            taken: taken_by_kswapd.saturating_add(taken_directly),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reclaim_at_limits_of_cgroups_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        std::fs::create_dir_all(host.procfs("")).unwrap();
        let text = "nr_free_pages 7\npgsteal_kswapd 5\npgsteal_direct 6\npgscan_kswapd 100\npgscan_direct 20\npgscan_file 999\n";
        std::fs::write(host.procfs("vmstat"), text).unwrap();
        let read = VmstatFile::open(&host).unwrap().read().unwrap();
        assert_eq!((read.scanned, read.taken), (120, 11));
        std::fs::write(host.procfs("vmstat"), "pgscan_kswapd 1\n").unwrap();
        assert!(VmstatFile::open(&host).unwrap().read().is_err());
        // This machine's.
        assert!(VmstatFile::open(&HostRoot::live()).unwrap().read().is_ok());
    }
}
