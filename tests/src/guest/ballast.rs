//! Memory that nobody can have: a test that needs a full node need not fill all of it page by page.

use std::fs;

use anyhow::{Context as _, ensure};

use super::memory::{self, mib};

const PAGES: &str = "/proc/sys/vm/nr_hugepages";
const PAGE_MIB: u64 = 2;
/// What the kernel may hand out beside the wanted amount: huge pages are whole, and others allocate meanwhile.
const TOLERANCE_MIB: u64 = 64;

/// Huge pages, until they are dropped. They count as used to the kernel, not to the kubelet, and to no process's or
/// cgroup's figures.
#[derive(Debug)]
pub struct Ballast {
    before: String,
}

impl Ballast {
    /// Leaves so many MiB of what the kernel can hand out.
    ///
    /// # Errors
    /// The kernel does not find that many huge pages.
    pub fn leaving(wanted_mib: u64) -> anyhow::Result<Self> {
        let before = fs::read_to_string(PAGES).context(PAGES)?;
        let spare = memory::read()?
            .available_bytes
            .saturating_sub(mib(wanted_mib));
        let pages = (spare >> 20) / PAGE_MIB;
        let ballast = Self { before };
        fs::write(PAGES, pages.to_string()).context(PAGES)?;
        let left_mib = memory::read()?.available_bytes >> 20;
        ensure!(
            left_mib.abs_diff(wanted_mib) < TOLERANCE_MIB,
            "{left_mib} MiB are available after {pages} huge pages, not {wanted_mib}"
        );
        Ok(ballast)
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        if let Err(error) = fs::write(PAGES, self.before.trim()) {
            eprintln!("{PAGES}: {error}");
        }
    }
}
