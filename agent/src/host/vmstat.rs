//! `/proc/vmstat`: what kswapd has looked at and taken, and who had to look by himself.
//!
//! kswapd's lines are of reclaim for the node on every kernel. Those of direct reclaim (`pgscan_direct`,
//! `pgsteal_direct`) have reclaim at a cgroup's limit too, since Linux 7.1; `allocstall_*` has never had it
//! (`do_try_to_free_pages` in mm/vmscan.c).

use plimsoll_core::model::reclaim_yield::ReclaimCounts;

use super::HostRoot;
use super::file::{ControlFile, FileError};

/// Those of zones that a machine does not have are missing.
const LINES: [&str; 12] = [
    "pgscan_kswapd",
    "pgsteal_kswapd",
    "pgskip_dma",
    "pgskip_dma32",
    "pgskip_normal",
    "pgskip_movable",
    "pgskip_device",
    "allocstall_dma",
    "allocstall_dma32",
    "allocstall_normal",
    "allocstall_movable",
    "allocstall_device",
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
    /// When it cannot be read, or a line of kswapd is missing.
    pub fn read(&self) -> Result<ReclaimCounts, FileError> {
        let [scanned, taken, zones @ ..] = self.0.read_keyed(&LINES)?;
        let (Some(scanned), Some(taken)) = (scanned, taken) else {
            return Err(self
                .0
                .malformed(0, "the lines pgscan_kswapd and pgsteal_kswapd"));
        };
        let (skipped, stalls) = zones.split_at(5);
        let sum = |counts: &[Option<u64>]| {
            counts
                .iter()
                .flatten()
                .copied()
                .fold(0, u64::saturating_add)
        };
        Ok(ReclaimCounts {
            scanned,
            skipped: sum(skipped),
            taken,
            stalls: sum(stalls),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_reclaim_for_the_whole_node_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        std::fs::create_dir_all(host.procfs("")).unwrap();
        let text = "nr_free_pages 7\nallocstall_dma32 1\nallocstall_normal 2\npgskip_dma32 5\npgskip_normal 10\n\
                    pgsteal_kswapd 5\npgsteal_direct 6\npgscan_kswapd 100\npgscan_direct 20\npgscan_file 999\n";
        std::fs::write(host.procfs("vmstat"), text).unwrap();
        let read = VmstatFile::open(&host).unwrap().read().unwrap();
        assert_eq!(
            read,
            ReclaimCounts {
                scanned: 100,
                skipped: 15,
                taken: 5,
                stalls: 3
            }
        );
        std::fs::write(host.procfs("vmstat"), "pgscan_kswapd 1\n").unwrap();
        assert!(VmstatFile::open(&host).unwrap().read().is_err());
        // This machine's.
        assert!(VmstatFile::open(&HostRoot::live()).unwrap().read().is_ok());
    }
}
