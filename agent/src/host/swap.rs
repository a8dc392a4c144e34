//! Swap devices in memory (zram): what is free on them, and what compression has made of what they hold.
//!
//! **Problem.** `/proc/meminfo` adds up all swap. A slot on zram costs memory when it is filled, one on a disk does
//! not; how much, only the device knows. **Approach.** `/proc/swaps` says which devices there are and what is used of
//! each; a zram device has its figures in one line of `/sys/block/zramN/mm_stat`. Both are read only where there is
//! swap. Devices come and go while the agent runs: the file of a new one is opened by the first sample that finds it.
//! Sources: mm/swapfile.c `swap_show`; drivers/block/zram/zram_drv.c `mm_stat_show`.

use plimsoll_core::model::swap::CompressedSwap;

use super::HostRoot;
use super::cgroup::{CgroupMounts, CgroupPath, Controller};
use super::file::{CONTROL_FILE_BYTES_MAX, ControlFile, FileError, parse_u64};

/// Files that tell about swap, as far as this machine has them.
#[derive(Debug)]
pub struct SwapFiles {
    host: HostRoot,
    /// `/proc/swaps`; a kernel without swap does not have it.
    list: Option<ControlFile>,
    /// `memory.swap.current` of all pods; neither v1 nor a kernel without swap accounting has it.
    pods: Option<ControlFile>,
    devices: Vec<Device>,
}

#[derive(Debug)]
struct Device {
    number: u32,
    stat: ControlFile,
}

/// One zram device in `/proc/swaps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Listed {
    number: u32,
    free_bytes: u64,
}

impl SwapFiles {
    /// Opens what there is.
    pub fn open(host: &HostRoot, mounts: &CgroupMounts, kubepods: &CgroupPath) -> Self {
        let pods = mounts.hierarchy_of(Controller::Memory).ok();
        let pods = pods.map(|hierarchy| hierarchy.dir(kubepods).join("memory.swap.current"));
        Self {
            host: host.clone(),
            list: ControlFile::open(host.procfs("swaps")).ok(),
            pods: pods.and_then(|path| ControlFile::open(path).ok()),
            devices: Vec::new(),
        }
    }

    /// Whether the kernel counts, and so limits, what pods swap.
    pub fn counts_pods(&self) -> bool {
        self.pods.is_some()
    }

    /// What pods have swapped out, bytes; 0 where that is not counted.
    ///
    /// # Errors
    /// [`FileError`] when it cannot be read.
    pub fn pods_bytes(&self) -> Result<u64, FileError> {
        self.pods.as_ref().map_or(Ok(0), ControlFile::read_u64)
    }

    /// What the devices show. Opens the files of devices that came, also when the sample is urgent: a device is often
    /// added when memory is short, and until its figures are known nobody sees that its pages do not compress. Lets go
    /// of those that went. Allocates nothing where no device came.
    ///
    /// # Errors
    /// [`FileError`] when the list or a device's file cannot be read.
    pub fn read(&mut self) -> Result<CompressedSwap, FileError> {
        let mut buffer = [0; CONTROL_FILE_BYTES_MAX];
        let mut sum = CompressedSwap::default();
        let Some(list) = &self.list else {
            return Ok(sum);
        };
        let text = list.read_into(&mut buffer)?;
        self.devices.retain(|device| {
            listed(text).any(|listed| listed.is_ok_and(|on| on.number == device.number))
        });
        for on in listed(text) {
            let on = on.map_err(|line| malformed(list, line))?;
            sum.free_bytes = sum.free_bytes.saturating_add(on.free_bytes);
            let known = self
                .devices
                .iter()
                .find(|device| device.number == on.number);
            let figures = match known {
                Some(device) => device.read(),
                None => Device::open(&self.host, on.number).and_then(|device| {
                    let figures = device.read()?;
                    self.devices.push(device);
                    Ok(figures)
                }),
            };
            // A device that was swapped off since the list was read.
            let Some((stored, used)) = figures.map(Some).or_else(vanished)? else {
                continue;
            };
            sum.stored_bytes = sum.stored_bytes.saturating_add(stored);
            sum.used_bytes = sum.used_bytes.saturating_add(used);
        }
        Ok(sum)
    }
}

fn malformed(list: &ControlFile, line: u32) -> FileError {
    list.malformed(line, "a swap device with size and use in KiB")
}

impl Device {
    fn open(host: &HostRoot, number: u32) -> Result<Self, FileError> {
        let stat = ControlFile::open(host.sysfs(format!("block/zram{number}/mm_stat")))?;
        Ok(Self { number, stat })
    }

    /// Bytes stored, and bytes of memory that they take.
    fn read(&self) -> Result<(u64, u64), FileError> {
        let mut buffer = [0; 256];
        let text = self.stat.read_into(&mut buffer)?;
        parse_stat(text).ok_or_else(|| {
            let expected = "orig_data_size compr_data_size mem_used_total ...";
            self.stat.malformed(1, expected)
        })
    }
}

fn vanished<T>(error: FileError) -> Result<Option<T>, FileError> {
    if error.is_vanished() {
        Ok(None)
    } else {
        Err(error)
    }
}

/// The first and the third number of `mm_stat`.
fn parse_stat(text: &[u8]) -> Option<(u64, u64)> {
    let mut numbers = words(text).map(parse_u64);
    Some((numbers.next()??, numbers.nth(1)??))
}

/// The zram devices of `/proc/swaps`: `FILENAME TYPE SIZE USED PRIORITY` after a headline, KiB. The error is a line,
/// from 1.
fn listed(text: &[u8]) -> impl Iterator<Item = Result<Listed, u32>> {
    let lines = text.split(|byte| *byte == b'\n').zip(1_u32..).skip(1);
    lines.filter_map(|(line, number)| {
        let mut words = words(line);
        let device = words.next()?.strip_prefix(b"/dev/zram")?;
        // The type is in between.
        let fields = (parse_u64(device), words.nth(1), words.next());
        let (Some(device), Some(size), Some(used)) = fields else {
            return Some(Err(number));
        };
        let fields = (u32::try_from(device), parse_u64(size), parse_u64(used));
        let (Ok(device), Some(size), Some(used)) = fields else {
            return Some(Err(number));
        };
        Some(Ok(Listed {
            number: device,
            free_bytes: size.saturating_sub(used).saturating_mul(1024),
        }))
    })
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::cgroup::tests::fake_host;
    use super::*;

    const HEAD: &str = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
    const DISK: &str = "/dev/nvme0n2                            partition\t524284\t\t0\t\t-2\n";
    const ZRAM: &str = "/dev/zram0                              partition\t262140\t\t140\t\t100\n";

    fn files() -> (tempfile::TempDir, HostRoot, SwapFiles) {
        let (dir, host) = fake_host(&[("cgroup2", "/sys/fs/cgroup", "rw")]);
        let root = dir.path().join("sys/fs/cgroup");
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("cgroup.controllers"), "memory\n").unwrap();
        fs::create_dir_all(host.procfs("")).unwrap();
        fs::write(host.procfs("swaps"), HEAD).unwrap();
        let mounts = host.cgroup_mounts().unwrap();
        let files = SwapFiles::open(&host, &mounts, &CgroupPath::default());
        (dir, host, files)
    }

    #[test]
    fn devices_come_and_go() {
        let (_dir, host, mut files) = files();
        assert_eq!(files.read().unwrap(), CompressedSwap::default());
        assert_eq!(
            (files.counts_pods(), files.pods_bytes().unwrap()),
            (false, 0)
        );

        fs::write(host.procfs("swaps"), format!("{HEAD}{DISK}{ZRAM}")).unwrap();
        let stat = host.sysfs("block/zram0/mm_stat");
        fs::create_dir_all(stat.parent().unwrap()).unwrap();
        fs::write(
            &stat,
            "  143360    73    49152        0    49152        0        0        0        0\n",
        )
        .unwrap();
        let expected = CompressedSwap {
            free_bytes: 262_000 * 1024,
            stored_bytes: 143_360,
            used_bytes: 49_152,
        };
        for _ in 0..2 {
            assert_eq!(files.read().unwrap(), expected);
            assert_eq!(files.devices.len(), 1);
        }

        fs::write(host.procfs("swaps"), format!("{HEAD}{DISK}")).unwrap();
        assert_eq!(files.read().unwrap(), CompressedSwap::default());
        assert!(files.devices.is_empty());
    }

    #[test]
    fn what_is_no_list_names_its_line() {
        let (_dir, host, mut files) = files();
        for line in [
            "/dev/zram0 partition 1\n",
            "/dev/zram partition 1 2\n",
            "/dev/zram1 x 1 y\n",
        ] {
            fs::write(host.procfs("swaps"), format!("{HEAD}{DISK}{line}")).unwrap();
            let error = files.read().unwrap_err();
            assert!(
                matches!(error, FileError::Malformed { line: 3, .. }),
                "{error}"
            );
        }
    }
}
