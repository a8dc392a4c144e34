//! Swap for a test: on the guest's second disk or in memory, off again when it is dropped.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use super::harness::Lacks;
use super::process::run_program;

/// Where xtask puts modules, under names that sort in the order in which they are loaded.
const MODULES: &str = "/lib/modules";
const ZRAM: &str = "/sys/block/zram0";

/// Where pages are swapped out to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The guest's second disk.
    Disk,
    /// Compressed memory, of so many MiB before compression.
    Zram(u64),
}

impl Device {
    fn path(self) -> &'static str {
        match self {
            Self::Disk => "/dev/nvme0n2",
            Self::Zram(_) => "/dev/zram0",
        }
    }
}

/// Swap in use.
#[derive(Debug)]
pub struct Swap(Device);

impl Swap {
    /// Makes swap on a device and takes it into use.
    ///
    /// # Errors
    /// The device is not there, or in use already.
    pub fn on(device: Device) -> anyhow::Result<Self> {
        if let Device::Zram(mib) = device {
            fs::write(format!("{ZRAM}/reset"), "1").context("emptying zram0")?;
            fs::write(format!("{ZRAM}/disksize"), format!("{mib}M")).context("sizing zram0")?;
        }
        run_program("mkswap", &[device.path()])?;
        run_program("swapon", &[device.path()])?;
        Ok(Self(device))
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        if let Err(error) = run_program("swapoff", &[self.0.path()]) {
            eprintln!("{error:#}");
        }
    }
}

/// Loads zram, if it is not there yet; says if this guest has none.
///
/// # Errors
/// The kernel refuses a module.
pub fn load_zram() -> anyhow::Result<Option<Lacks>> {
    if Path::new(ZRAM).exists() {
        return Ok(None);
    }
    let mut modules: Vec<PathBuf> = match fs::read_dir(MODULES) {
        Ok(entries) => entries
            .map(|entry| Ok(entry?.path()))
            .collect::<io::Result<_>>()?,
        Err(_) => return Ok(Some(Lacks::Zram)),
    };
    modules.sort();
    for module in &modules {
        run_program("insmod", &[&module.to_string_lossy()])?;
    }
    ensure!(
        Path::new(ZRAM).exists(),
        "{modules:?} are loaded, and there is no {ZRAM}"
    );
    Ok(None)
}

/// What was swapped out to zram, before compression, bytes.
///
/// # Errors
/// As `read(2)`.
pub fn zram_stored_bytes() -> anyhow::Result<u64> {
    let text = fs::read_to_string(format!("{ZRAM}/mm_stat"))?;
    let first = text.split_whitespace().next();
    first
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("mm_stat begins with a number: {text}"))
}
