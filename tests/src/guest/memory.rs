//! The node's memory as the different systems measure it, all from one read of `/proc/meminfo`.
//!
//! - *working set*: the kubelet 1.36 on cgroup v2 (`opencontainers/cgroups` `fs2/memory.go`, `rootStatsFromMeminfo`):
//!   the root's usage is anon + file, the working set that minus inactive file pages; available is capacity minus
//!   working set.
//! - *used*: what the same kubelet saw on cgroup v1, where kernel memory counts too: MemTotal - MemFree - inactive
//!   file.
//! - *MemAvailable*: the kernel's own estimate, which earlyoom goes by.

use std::fs::File;
use std::io;

use rustix::io::pread;

/// The lines of `/proc/meminfo` that the formulas need, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meminfo {
    /// `MemTotal`.
    pub total_bytes: u64,
    /// `MemFree`.
    pub free_bytes: u64,
    /// `MemAvailable`.
    pub available_bytes: u64,
    /// `AnonPages`.
    pub anon_bytes: u64,
    /// `Cached` + `Buffers` + `SwapCached`: the kernel's count of file pages.
    pub file_bytes: u64,
    /// `Inactive(file)`.
    pub inactive_file_bytes: u64,
    /// `Shmem`.
    pub shmem_bytes: u64,
    /// `SwapFree`.
    pub swap_free_bytes: u64,
}

impl Meminfo {
    /// Parses the text of `/proc/meminfo`; lines that are missing count as 0, as on kernels without swap.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        let mut info = Self::default();
        for line in text.split(|&byte| byte == b'\n') {
            let Some(colon) = line.iter().position(|&byte| byte == b':') else {
                continue;
            };
            let field = match &line[..colon] {
                b"MemTotal" => &mut info.total_bytes,
                b"MemFree" => &mut info.free_bytes,
                b"MemAvailable" => &mut info.available_bytes,
                b"AnonPages" => &mut info.anon_bytes,
                b"Cached" | b"Buffers" | b"SwapCached" => &mut info.file_bytes,
                b"Inactive(file)" => &mut info.inactive_file_bytes,
                b"Shmem" => &mut info.shmem_bytes,
                b"SwapFree" => &mut info.swap_free_bytes,
                _ => continue,
            };
            let kib = line[colon + 1..]
                .iter()
                .filter(|byte| byte.is_ascii_digit())
                .fold(0_u64, |value, &digit| {
                    value
                        .saturating_mul(10)
                        .saturating_add(u64::from(digit - b'0'))
                });
            *field += kib * 1024;
        }
        info
    }

    /// Capacity minus working set, as the kubelet 1.36 computes `memory.available` on cgroup v2.
    #[must_use]
    pub fn working_set_available_bytes(&self) -> u64 {
        let usage = self.anon_bytes + self.file_bytes;
        self.total_bytes
            .saturating_sub(usage.saturating_sub(self.inactive_file_bytes))
    }

    /// Capacity minus everything in use but inactive file pages: kernel memory counts.
    #[must_use]
    pub fn used_available_bytes(&self) -> u64 {
        let used = self.total_bytes.saturating_sub(self.free_bytes);
        self.total_bytes
            .saturating_sub(used.saturating_sub(self.inactive_file_bytes))
    }
}

/// `/proc/meminfo` kept open, so that reading it when memory is gone opens and allocates nothing.
#[derive(Debug)]
pub struct MeminfoFile {
    file: File,
    buffer: Box<[u8; 8192]>,
}

impl MeminfoFile {
    /// Opens `/proc/meminfo`.
    ///
    /// # Errors
    /// As `open(2)`.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            file: File::open("/proc/meminfo")?,
            buffer: Box::new([0; 8192]),
        })
    }

    /// Reads it now.
    ///
    /// # Errors
    /// As `pread(2)`.
    pub fn read(&mut self) -> io::Result<Meminfo> {
        let length = pread(&self.file, &mut self.buffer[..], 0)?;
        Ok(Meminfo::parse(&self.buffer[..length]))
    }
}

/// One reading of `/proc/meminfo`.
///
/// # Errors
/// As `open(2)` and `pread(2)`.
pub fn read() -> io::Result<Meminfo> {
    MeminfoFile::open()?.read()
}

/// Mebibytes to bytes.
#[must_use]
pub const fn mib(mebibytes: u64) -> u64 {
    mebibytes << 20
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"MemTotal:        4000 kB\nMemFree:         1000 kB\nMemAvailable:    1800 kB\nBuffers:          100 kB\n\
        Cached:           900 kB\nSwapCached:         0 kB\nInactive(anon):    50 kB\nInactive(file):   600 kB\nAnonPages:       1500 kB\nSwapFree: 7 kB\n";

    #[test]
    fn the_formulas_follow_their_sources() {
        let info = Meminfo::parse(TEXT);
        assert_eq!(info.available_bytes, 1800 * 1024);
        assert_eq!(info.swap_free_bytes, 7 * 1024);
        assert_eq!(
            info.working_set_available_bytes(),
            (4000 - (1500 + 1000 - 600)) * 1024
        );
        assert_eq!(info.used_available_bytes(), (4000 - (3000 - 600)) * 1024);
    }
}
