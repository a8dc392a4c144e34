//! `/proc/meminfo`: all that the node's memory signals need, in one `pread`.
//!
//! The kubelet on cgroup v2 builds the root cgroup's usage from this file (opencontainers/cgroups fs2
//! `rootStatsFromMeminfo`), and the working set is that usage less the inactive file pages. The formula itself is the
//! decision core's; here are only its inputs.

use std::path::PathBuf;

use plimsoll_core::model::page_cache::node_lazily_freed_bytes;

use super::HostRoot;
use super::clock::now_ns;
use super::file::{ControlFile, FileError, parse_u64};

/// The node's memory at one instant, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(
    missing_docs,
    reason = "each field is the line of /proc/meminfo that it is named after"
)]
pub struct NodeMemory {
    pub total: u64,
    pub free: u64,
    pub available: u64,
    pub buffers: u64,
    pub cached: u64,
    pub swap_cached: u64,
    pub anon: u64,
    pub inactive_file: u64,
    pub active_file: u64,
    pub shmem: u64,
    pub swap_total: u64,
    pub swap_free: u64,
}

/// `/proc/meminfo`, opened once.
#[derive(Debug)]
pub struct MeminfoFile {
    file: ControlFile,
    /// Readings that have failed one after the other, and since when.
    failures: u32,
    failing_since_ns: u64,
}

/// So many readings may fail one after the other before the file counts as lost. The kernel may have no memory for the
/// text of one.
const FAILURES_MAX: u32 = 10;
/// And for so long: urgent records may ask for ten readings in a millisecond.
const FAILING_FOR_NS: u64 = 1_000_000_000;

const MEMINFO_BYTES_MAX: usize = 8 * 1024;
const LINES: [&str; 12] = [
    "MemTotal",
    "MemFree",
    "MemAvailable",
    "Buffers",
    "Cached",
    "SwapCached",
    "AnonPages",
    "Inactive(file)",
    "Active(file)",
    "Shmem",
    "SwapTotal",
    "SwapFree",
];
/// Lines that a kernel built without swap or without tmpfs may leave out; they are then 0.
const LINES_OPTIONAL: [&str; 4] = ["SwapCached", "SwapTotal", "SwapFree", "Shmem"];

impl MeminfoFile {
    /// Opens the host's meminfo.
    ///
    /// # Errors
    /// When procfs is not there or not readable.
    pub fn open(host: &HostRoot) -> Result<Self, FileError> {
        let path: PathBuf = host.procfs("meminfo");
        let file = ControlFile::open(path)?;
        Ok(Self {
            file,
            failures: 0,
            failing_since_ns: 0,
        })
    }

    /// Reads and parses it; allocates nothing.
    ///
    /// # Errors
    /// [`FileError::Malformed`] when a line is not a number of kB, or (as line 0) when a line that every kernel has is
    /// missing.
    pub fn read(&self) -> Result<NodeMemory, FileError> {
        let mut buffer = [0; MEMINFO_BYTES_MAX];
        let text = self.file.read_into(&mut buffer)?;
        parse(text).map_err(|(line, expected)| self.file.malformed(line, expected))
    }

    /// Memory that is reserved for huge pages of every size, in use or not (`Hugetlb`); 0 where the kernel does not say
    /// (before 4.20, or without huge pages).
    ///
    /// # Errors
    /// As [`MeminfoFile::read`].
    pub fn read_huge_page_bytes(&self) -> Result<u64, FileError> {
        let mut buffer = [0; MEMINFO_BYTES_MAX];
        let text = self.file.read_into(&mut buffer)?;
        match parse_lines(text, b"", &["Hugetlb"]) {
            Ok([bytes]) => Ok(bytes.unwrap_or(0)),
            Err((line, expected)) => Err(self.file.malformed(line, expected)),
        }
    }

    /// As [`MeminfoFile::read`]; when that fails, opens the file anew and reads once more. Counts what fails all the
    /// same: see [`MeminfoFile::is_lost`].
    ///
    /// # Errors
    /// That of the first attempt.
    pub fn read_or_reopen(&mut self) -> Result<NodeMemory, FileError> {
        let read = self.read().or_else(|first| {
            let Ok(file) = ControlFile::open(self.file.path()) else {
                return Err(first);
            };
            self.file = file;
            self.read().map_err(|_| first)
        });
        match &read {
            Ok(_) => self.failures = 0,
            Err(_) => {
                if self.failures == 0 {
                    self.failing_since_ns = now_ns();
                }
                self.failures = self.failures.saturating_add(1);
            }
        }
        read
    }

    /// Whether so many readings have failed that it is no passing trouble.
    pub fn is_lost(&self) -> bool {
        self.failures >= FAILURES_MAX
            && now_ns().saturating_sub(self.failing_since_ns) >= FAILING_FOR_NS
    }
}

impl NodeMemory {
    /// What of `Inactive(file)` and `Active(file)` is no page cache, but memory after `madvise(MADV_FREE)`. `Cached` is
    /// without Buffers and pages in swap cache (fs/proc/meminfo.c), and has tmpfs and shared memory, which are on the
    /// lists of anonymous pages.
    pub fn lazily_freed(&self) -> u64 {
        let lists = self.inactive_file.saturating_add(self.active_file);
        let file = self.cached.saturating_add(self.buffers);
        node_lazily_freed_bytes(lists, file, self.shmem)
    }
}

fn parse(text: &[u8]) -> Result<NodeMemory, (u32, &'static str)> {
    let mut values = parse_lines(text, b"", &LINES)?;
    for (name, value) in LINES.iter().zip(&mut values) {
        if value.is_none() && LINES_OPTIONAL.contains(name) {
            *value = Some(0);
        }
        if value.is_none() {
            return Err((0, name));
        }
    }
    let [
        total,
        free,
        available,
        buffers,
        cached,
        swap_cached,
        anon,
        inactive_file,
        active_file,
        shmem,
        swap_total,
        swap_free,
    ] = values.map(Option::unwrap_or_default);
    Ok(NodeMemory {
        total,
        free,
        available,
        buffers,
        cached,
        swap_cached,
        anon,
        inactive_file,
        active_file,
        shmem,
        swap_total,
        swap_free,
    })
}

/// The lines `PREFIX NAME: NUMBER kB` of `names`, in bytes; `None` for a name that has no line. A NUMA node's own
/// meminfo puts `Node 0 ` before each.
///
/// # Errors
/// The line, from 1, whose value is not a number of kB.
pub(super) fn parse_lines<const N: usize>(
    text: &[u8],
    prefix: &[u8],
    names: &[&str; N],
) -> Result<[Option<u64>; N], (u32, &'static str)> {
    let mut values: [Option<u64>; N] = [None; N];
    let mut missing = N;
    for (line, number) in text.split(|byte| *byte == b'\n').zip(1_u32..) {
        if missing == 0 {
            break;
        }
        let Some(line) = line.strip_prefix(prefix) else {
            continue;
        };
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let Some(index) = names
            .iter()
            .position(|name| name.as_bytes() == &line[..colon])
        else {
            continue;
        };
        let value = line[colon + 1..].trim_ascii();
        let kib = value
            .strip_suffix(b" kB")
            .and_then(|digits| parse_u64(digits.trim_ascii()));
        let bytes = kib
            .and_then(|kib| kib.checked_mul(1024))
            .ok_or((number, "NAME: NUMBER kB"))?;
        missing -= usize::from(values[index].replace(bytes).is_none());
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::model::page_cache::CACHE_NOISE_BYTES;

    const TEXT: &str = "MemTotal:       1000 kB\nMemFree:         900 kB\nMemAvailable:    950 kB\nBuffers:           1 kB\n\
        Cached:           20 kB\nSwapCached:        3 kB\nActive:            5 kB\nActive(file):      6 kB\nInactive(file):    7 kB\n\
        SwapTotal:         8 kB\nSwapFree:          4 kB\nAnonPages:        30 kB\nShmem:             9 kB\n\
        HugePages_Total:       0\n";

    #[test]
    fn every_line() {
        let memory = parse(TEXT.as_bytes()).unwrap();
        let wanted = NodeMemory {
            total: 1000 * 1024,
            free: 900 * 1024,
            available: 950 * 1024,
            buffers: 1024,
            cached: 20 * 1024,
            swap_cached: 3 * 1024,
            anon: 30 * 1024,
            inactive_file: 7 * 1024,
            active_file: 6 * 1024,
            shmem: 9 * 1024,
            swap_total: 8 * 1024,
            swap_free: 4 * 1024,
        };
        assert_eq!(memory, wanted);
    }

    #[test]
    fn some_lines_may_be_missing_others_not() {
        for name in LINES {
            let text: String = TEXT
                .lines()
                .filter(|line| !line.starts_with(&format!("{name}:")))
                .map(|line| format!("{line}\n"))
                .collect();
            match parse(text.as_bytes()) {
                Ok(_) => assert!(LINES_OPTIONAL.contains(&name), "{name} may not be missing"),
                Err((line, missing)) => assert_eq!((line, missing), (0, name)),
            }
        }
    }

    #[test]
    fn file_pages_beyond_page_cache_are_lazily_freed() {
        let lazily_freed = |inactive_kib: u64| {
            let text = TEXT.replace("7 kB", &format!("{inactive_kib} kB"));
            parse(text.as_bytes()).unwrap().lazily_freed()
        };
        // Page cache is 20 + 1 - 9 kB, with what the counters may be short of.
        let cache_kib = 12 + (CACHE_NOISE_BYTES >> 10);
        assert_eq!(lazily_freed(7), 0);
        assert_eq!(lazily_freed(cache_kib - 6), 0);
        assert_eq!(lazily_freed(cache_kib - 6 + 100), 100 << 10);
    }

    #[test]
    fn a_bad_number_names_its_line() {
        let text = TEXT.replace("900 kB", "900 MB");
        assert_eq!(parse(text.as_bytes()).unwrap_err().0, 2);
        let text = TEXT.replace("900 kB", "99999999999999999999 kB");
        assert_eq!(parse(text.as_bytes()).unwrap_err().0, 2);
    }

    #[test]
    fn a_failed_reading_is_tried_on_a_new_file_and_not_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        std::fs::create_dir(host.procfs("")).unwrap();
        let path = host.procfs("meminfo");
        let set_text = |text: &str| std::fs::write(&path, text).unwrap();
        set_text(TEXT);
        let mut meminfo = MeminfoFile::open(&host).unwrap();
        // The open file stays as it is, and another one comes in its place.
        std::fs::write(&path, "").unwrap();
        std::fs::remove_file(&path).unwrap();
        for _ in 1..FAILURES_MAX {
            meminfo.read_or_reopen().unwrap_err();
            assert!(!meminfo.is_lost());
        }
        set_text(TEXT);
        meminfo.read_or_reopen().unwrap();
        set_text("");
        for _ in 1..FAILURES_MAX {
            meminfo.read_or_reopen().unwrap_err();
        }
        assert!(!meminfo.is_lost(), "one reading in between was good");
        meminfo.read_or_reopen().unwrap_err();
        // Ten readings may all be within a moment.
        meminfo.failing_since_ns = now_ns();
        assert!(!meminfo.is_lost());
        meminfo.failing_since_ns -= FAILING_FOR_NS;
        assert!(meminfo.is_lost());
    }

    #[test]
    fn this_machine() {
        let memory = MeminfoFile::open(&HostRoot::live())
            .unwrap()
            .read()
            .unwrap();
        assert!(
            memory.total > memory.free && memory.available <= memory.total,
            "{memory:?}"
        );
    }
}
