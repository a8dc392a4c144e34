//! Pressure stall information of the node: how much of the time tasks waited for memory, I/O or a CPU.
//!
//! **Problem.** `/proc/pressure` is missing without `CONFIG_PSI`, with `psi=0`, and on some kernels there but refuses
//! to be read. **Approach.** Each file is opened once and read by `pread`. What is not there is told when it is found
//! out, and never asked again. Source: Documentation/accounting/psi.rst, kernel/sched/psi.c `psi_show`. **Terms.**
//! *some*: at least one task waited. *full*: every task that was not idle did. `cpu` has no line `full` before Linux
//! 5.13, and since then one that is always 0: a whole node cannot wait for its own CPUs.

use std::path::Path;
use std::sync::Arc;

use plimsoll_core::model::reading::{PressureReading, StallReading, StallShares};
use rustix::io::Errno;

use super::HostRoot;
use super::file::{ControlFile, FileError, parse_u64};

use crate::host::shown::Show as _;

/// A file of `/proc/pressure`: what tasks wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PressureFile {
    /// Pages: reclaim, refaults, swapping in.
    Memory,
    /// Block devices.
    Io,
    /// A free CPU.
    Cpu,
}

impl PressureFile {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Io, Self::Cpu];

    /// Its path below `/proc`.
    pub fn procfs_path(self) -> &'static str {
        match self {
            Self::Memory => "pressure/memory",
            Self::Io => "pressure/io",
            Self::Cpu => "pressure/cpu",
        }
    }
}

/// Why there are no figures of one file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StallError {
    /// This kernel has none.
    #[error("{path}: no pressure stall information; boot with psi=1 (kernel needs CONFIG_PSI)", path = path.shown())]
    Disabled {
        /// Which file.
        path: Arc<Path>,
    },
    /// The file is there and cannot be read or understood.
    #[error(transparent)]
    File(FileError),
}

impl From<FileError> for StallError {
    fn from(error: FileError) -> Self {
        match error {
            // psi=0 leaves out /proc/pressure altogether; with CONFIG_PSI and no PSI at run time a read gets
            // EOPNOTSUPP.
            FileError::Vanished { path }
            | FileError::Unreadable {
                path,
                source: Errno::OPNOTSUPP,
            } => Self::Disabled { path },
            error => Self::File(error),
        }
    }
}

/// The files of `/proc/pressure`, opened once.
#[derive(Debug)]
pub struct PressureFiles([Option<ControlFile>; PressureFile::ALL.len()]);

/// Two lines of at most 80 bytes.
const PRESSURE_BYTES_MAX: usize = 512;

impl PressureFiles {
    /// Opens what there is; what there is not is passed to `missing`. `None` when there is nothing.
    pub fn open(host: &HostRoot, mut missing: impl FnMut(StallError)) -> Option<Self> {
        let files = PressureFile::ALL.map(|resource| {
            let opened = ControlFile::open(host.procfs(resource.procfs_path()))
                .map_err(StallError::from)
                // Some kernels open it and refuse the read: found out now, told once.
                .and_then(|file| match read_open(&file).map_err(StallError::from) {
                    Err(error @ StallError::Disabled { .. }) => Err(error),
                    _ => Ok(file),
                });
            opened.map_err(&mut missing).ok()
        });
        files.iter().any(Option::is_some).then_some(Self(files))
    }

    /// Reads them; allocates nothing. A file that cannot be read is passed to `failed` and missing from the reading.
    pub fn read(&self, now_ns: u64, mut failed: impl FnMut(&StallError)) -> PressureReading {
        let [memory, io, cpu] = self.0.each_ref().map(|file| {
            let stalls = read_open(file.as_ref()?);
            stalls.map_err(|error| failed(&error.into())).ok()
        });
        PressureReading {
            at_ns: now_ns,
            memory,
            io,
            cpu,
        }
    }
}

/// Reads one such file once, a cgroup's too (`memory.pressure` and its like). Not for the hot path.
///
/// # Errors
/// [`StallError`].
pub fn read_stalls(path: impl AsRef<Path>) -> Result<StallReading, StallError> {
    Ok(read_open(&ControlFile::open(path)?)?)
}

/// Reads such a file that is open; allocates nothing.
///
/// # Errors
/// [`FileError`]: EOPNOTSUPP where the kernel has the file and no PSI.
pub fn read_open(file: &ControlFile) -> Result<StallReading, FileError> {
    let mut buffer = [0; PRESSURE_BYTES_MAX];
    let text = file.read_into(&mut buffer)?;
    parse(text)
        .map_err(|line| file.malformed(line, "some|full avg10=N.NN avg60=N.NN avg300=N.NN total=N"))
}

/// The error is the line, from 1; 0 when `some` is missing.
fn parse(text: &[u8]) -> Result<StallReading, u32> {
    let mut some = None;
    let mut full = StallShares::default();
    for (line, number) in text.split(|byte| *byte == b'\n').zip(1_u32..) {
        let mut words = line.split(|byte| *byte == b' ');
        match words.next() {
            Some(b"some") => some = Some(parse_shares(words).ok_or(number)?),
            Some(b"full") => full = parse_shares(words).ok_or(number)?,
            _ => {}
        }
    }
    let some = some.ok_or(0_u32)?;
    Ok(StallReading { some, full })
}

fn parse_shares<'text>(mut words: impl Iterator<Item = &'text [u8]>) -> Option<StallShares> {
    Some(StallShares {
        avg10: parse_share(words.next()?.strip_prefix(b"avg10=")?)?,
        avg60: parse_share(words.next()?.strip_prefix(b"avg60=")?)?,
        avg300: parse_share(words.next()?.strip_prefix(b"avg300=")?)?,
        total_us: parse_u64(words.next()?.strip_prefix(b"total=")?)?,
    })
}

/// `12.34`, always with two decimals, as hundredths.
fn parse_share(text: &[u8]) -> Option<u16> {
    let (whole, hundredths) = text.split_at_checked(text.len().checked_sub(3)?)?;
    let hundredths = parse_u64(hundredths.strip_prefix(b".")?)?;
    let share = parse_u64(whole)?
        .checked_mul(100)?
        .checked_add(hundredths)?;
    u16::try_from(share).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: &str = "some avg10=0.57 avg60=16.28 avg300=100.00 total=3816148525\n";
    const FULL: &str = "full avg10=0.00 avg60=2.05 avg300=0.01 total=18446744073709551615\n";

    fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, HostRoot) {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        std::fs::create_dir_all(host.procfs("pressure")).unwrap();
        for (name, text) in files {
            std::fs::write(host.procfs("pressure").join(name), text).unwrap();
        }
        (dir, host)
    }

    #[test]
    fn both_lines_in_hundredths() {
        let read = parse(format!("{SOME}{FULL}").as_bytes()).unwrap();
        let some = StallShares {
            avg10: 57,
            avg60: 1628,
            avg300: 10_000,
            total_us: 3_816_148_525,
        };
        let full = StallShares {
            avg10: 0,
            avg60: 205,
            avg300: 1,
            total_us: u64::MAX,
        };
        assert_eq!(read, StallReading { some, full });
    }

    #[test]
    fn full_may_be_missing_and_some_may_not() {
        let read = parse(SOME.as_bytes()).unwrap();
        assert_eq!(read.full, StallShares::default());
        assert_eq!(parse(FULL.as_bytes()), Err(0));
        assert_eq!(parse(b""), Err(0));
    }

    #[test]
    fn a_bad_line_is_named() {
        for (from, to) in [
            ("0.57", "0.5"),
            ("0.57", "57"),
            ("0.57", ".57"),
            ("0.57", "-0.57"),
            ("16.28", "656.00"),
            ("avg300", "avg900"),
            (" total=3816148525", ""),
            ("=3816148525", "=many"),
        ] {
            let text = SOME.replace(from, to);
            assert_eq!(parse(text.as_bytes()), Err(1), "{text}");
        }
        assert_eq!(parse(format!("{SOME}full avg10=1\n").as_bytes()), Err(2));
    }

    #[test]
    fn a_missing_file_is_reported_once_and_the_rest_is_read() {
        let (_dir, host) = host(&[("memory", &format!("{SOME}{FULL}")), ("cpu", SOME)]);
        let mut missing = Vec::new();
        let files = PressureFiles::open(&host, |error| missing.push(error)).unwrap();
        assert!(matches!(&missing[..], [StallError::Disabled { path }] if path.ends_with("io")));
        assert!(missing[0].to_string().contains("boot with psi=1"));
        let read = files.read(7, |error| panic!("{error}"));
        assert_eq!(read.at_ns, 7);
        assert_eq!(read.memory.unwrap().full.avg60, 205);
        assert_eq!(read.io, None);
        assert_eq!(read.cpu.unwrap().some.avg60, 1628);
    }

    #[test]
    fn without_psi_there_is_nothing() {
        let (_dir, host) = host(&[]);
        let mut missing = 0;
        assert!(PressureFiles::open(&host, |_| missing += 1).is_none());
        assert_eq!(missing, 3);
        let refused = FileError::Unreadable {
            path: Arc::from(Path::new("/proc/pressure/io")),
            source: Errno::OPNOTSUPP,
        };
        assert!(matches!(
            StallError::from(refused),
            StallError::Disabled { .. }
        ));
    }

    #[test]
    fn a_file_that_fails_later_is_reported_and_left_out() {
        let (_dir, host) = host(&[("memory", SOME), ("io", SOME), ("cpu", SOME)]);
        let files = PressureFiles::open(&host, |error| panic!("{error}")).unwrap();
        std::fs::write(host.procfs("pressure/io"), "some nonsense\n").unwrap();
        let mut failed = Vec::new();
        let read = files.read(1, |error| failed.push(error.clone()));
        assert!(read.memory.is_some() && read.io.is_none() && read.cpu.is_some());
        assert!(matches!(
            failed[..],
            [StallError::File(FileError::Malformed { line: 1, .. })]
        ));
    }

    #[test]
    fn this_machine() {
        let host = HostRoot::live();
        let Some(files) = PressureFiles::open(&host, |_| ()) else {
            assert!(!host.procfs("pressure").exists());
            return;
        };
        let read = files.read(1, |error| panic!("{error}"));
        for stalls in [read.memory, read.io, read.cpu].into_iter().flatten() {
            assert!(stalls.full.total_us <= stalls.some.total_us, "{read:?}");
            assert!(stalls.some.avg10 <= 10_000, "{read:?}");
        }
    }
}
