//! The guest kernels: Debian's own cloud builds, or any image given by path.
//!
//! Which packages is pinned (`pinned.txt`). When the archive has dropped them, and for `setup --refresh`, the newest
//! one is taken: Debian names a kernel package after its version, and the meta package `linux-image-cloud-amd64` (or
//! `-arm64`) depends on it. When the suite has moved on to the next version, packages of the wanted one that are still
//! in the lists are used. The image itself is in `linux-image-*` or, since 7.x, `linux-binary-*`; the modules that are
//! kept beside it are in `linux-image-*` or `linux-modules-*`.

mod modules;

use std::cmp::Ordering;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, Result, bail, ensure};

use crate::apt::{self, Suite};
use crate::architecture::Architecture;
use crate::busybox;
use crate::interrupt::Folder;
use crate::lock::Lock;
use crate::paths;
use crate::progress::say;

/// Where an arm64 boot image has its magic number (Documentation/arch/arm64/booting.rst).
const ARM64_MAGIC: std::ops::Range<usize> = 0x38..0x3c;
/// What the kernel says of itself first (`linux_banner`), in an image that is not packed.
const BANNER: &[u8] = b"Linux version ";
/// The longest release (`__NEW_UTS_LEN`).
const RELEASE_BYTES_MAX: usize = 64;

/// Which kernel a guest boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Debian bookworm's: cgroup v2 and v1, no `memcg_memory_event` hook.
    V6_1,
    /// Debian bookworm-backports': cgroup v2 (v1 without memory).
    V6_12,
    /// Debian sid's.
    V7_2,
    /// An image (`bzImage`, `vmlinuz`) of the user's.
    Image(PathBuf),
}

impl Kernel {
    /// The kernels everything is tested on.
    pub(crate) const ALL: [Self; 3] = [Self::V6_1, Self::V6_12, Self::V7_2];

    /// Version and Debian suite of a packaged kernel.
    fn package(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::V6_1 => Some(("6.1", "bookworm")),
            Self::V6_12 => Some(("6.12", "bookworm-backports")),
            Self::V7_2 => Some(("7.2", "sid")),
            Self::Image(_) => None,
        }
    }

    /// What a guest boots, fetched into the cache when it is not there yet.
    pub(crate) fn boot(&self, architecture: Architecture) -> Result<Boot> {
        match (self, self.package()) {
            (Self::Image(path), _) => {
                say("kernel", release_in(path, architecture)?);
                Ok(Boot {
                    image: path.clone(),
                    modules: Vec::new(),
                })
            }
            (_, Some((version, suite))) => Package::new(version, suite, architecture)?.boot(false),
            (_, None) => bail!("kernel {self} has no Debian package"),
        }
    }

    /// Fetches the newest package of this kernel even when the cache has one. An image that is there already is kept
    /// when Debian has no newer one to give.
    pub(crate) fn refresh(&self, architecture: Architecture) -> Result<()> {
        let Some((version, suite)) = self.package() else {
            return Ok(());
        };
        let package = Package::new(version, suite, architecture)?;
        let Err(error) = package.boot(true) else {
            return Ok(());
        };
        let reason = format!("{error:#}");
        let known = package.boot(false).map_err(|_| error)?;
        say(
            "kernel",
            format_args!(
                "{version} for {architecture}: keeping {}: {reason}",
                known.image.display()
            ),
        );
        Ok(())
    }
}

/// The files of a kernel that a guest boots.
#[derive(Debug, Clone)]
pub(crate) struct Boot {
    /// The image.
    pub(crate) image: PathBuf,
    /// Modules that tests load, in this order; none for an image of the user's.
    pub(crate) modules: Vec<PathBuf>,
}

impl fmt::Display for Kernel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.package()) {
            (Self::Image(path), _) => path.display().fmt(formatter),
            (_, Some((version, _))) => formatter.write_str(version),
            (_, None) => formatter.write_str("unknown"),
        }
    }
}

impl FromStr for Kernel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(known) = Self::ALL
            .into_iter()
            .find(|kernel| kernel.to_string() == text)
        {
            return Ok(known);
        }
        let path = PathBuf::from(text);
        if path.is_file() {
            return Ok(Self::Image(path));
        }
        Err(format!("`{text}` is neither 6.1, 6.12, 7.2 nor a file"))
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read kernel image {}", path.display()))
}

fn release_in(image: &Path, architecture: Architecture) -> Result<String> {
    let (kind, give) = match architecture {
        Architecture::Amd64 => ("x86", "a bzImage or vmlinuz"),
        Architecture::Arm64 => ("unpacked arm64", "an Image, or Debian's vmlinuz"),
    };
    release_of(&read(image)?, architecture).with_context(|| {
        format!(
            "{} is not an {kind} Linux boot image; give {give}",
            image.display()
        )
    })
}

/// What the cache has of a kernel.
enum Cached {
    Nothing,
    /// An image without all the modules that tests load: an older xtask fetched it.
    Partly(Boot),
    Whole(Boot),
}

impl Cached {
    fn of(folder: &Path, architecture: Architecture) -> Result<Self> {
        let image = folder.join("vmlinuz");
        if !image.is_file() {
            return Ok(Self::Nothing);
        }
        let modules = modules::kept(
            &folder
                .join("modules")
                .join(release_in(&image, architecture)?),
        );
        // Without the package's name it is an image that somebody put there, which has no modules.
        let whole = modules::are_all(&modules) || !folder.join("version").is_file();
        let boot = Boot { image, modules };
        Ok(if whole {
            Self::Whole(boot)
        } else {
            Self::Partly(boot)
        })
    }
}

/// A kernel of Debian's, and where the cache has it.
struct Package {
    version: &'static str,
    suite: &'static str,
    architecture: Architecture,
    cache: PathBuf,
}

impl Package {
    fn new(version: &'static str, suite: &'static str, architecture: Architecture) -> Result<Self> {
        Ok(Self {
            version,
            suite,
            architecture,
            cache: paths::cache()?,
        })
    }

    fn folder(&self) -> PathBuf {
        let kernels = self.cache.join("kernels");
        kernels.join(self.architecture.of(self.version))
    }

    fn cached(&self) -> Result<Cached> {
        Cached::of(&self.folder(), self.architecture)
    }

    fn boot(&self, refresh: bool) -> Result<Boot> {
        if let (Cached::Whole(boot), false) = (self.cached()?, refresh) {
            return Ok(boot);
        }
        // Before the lock, which it takes too. This machine's: it unpacks modules.
        let busybox = busybox::fetched(Architecture::Amd64)?;
        let _lock = Lock::take(&self.cache)?;
        match (self.cached()?, refresh) {
            (Cached::Whole(boot), false) => Ok(boot),
            (Cached::Partly(boot), false) => self.fetch(refresh, &busybox).or_else(|error| {
                let reason = format!("{error:#}");
                say(
                    "kernel",
                    format_args!(
                        "{}: some of its modules are missing and cannot be fetched; tests that need them are skipped or fail: {reason}",
                        self.version
                    ),
                );
                Ok(boot)
            }),
            _ => self.fetch(refresh, &busybox),
        }
    }

    /// Puts image and modules into the cache. The caller holds its lock.
    fn fetch(&self, refresh: bool, busybox: &Path) -> Result<Boot> {
        let Self {
            version,
            suite,
            architecture,
            ref cache,
        } = *self;
        let folder = self.folder();
        let unpacked = Folder::inside(cache)?;
        let purpose = architecture.of(&format!("kernel-{version}"));
        let names = if refresh {
            let suite = Suite::open(cache, suite, architecture)?;
            suite.update()?;
            let names = newest_packages(&suite, version, architecture)?;
            for package in &names {
                let line = suite.pin(&purpose, package)?;
                say(
                    "kernel",
                    format_args!("newest, as pinned.txt has it: {line}"),
                );
                suite.unpack(&[(package.as_str(), unpacked.path().to_owned())])?;
            }
            names
        } else {
            let suite = (suite, architecture);
            apt::unpack_pinned(cache, suite, &purpose, unpacked.path(), |suite| {
                newest_packages(suite, version, architecture)
            })?
        };
        let packages = names.join(" and ");
        let found = find_image(unpacked.path()).with_context(|| {
            format!(
                "{packages} of Debian holds no kernel image (boot/vmlinuz-*, usr/lib/modules/*/vmlinuz)"
            )
        })?;
        let bytes = read(&found)?;
        let release = release_of(&bytes, architecture)
            .with_context(|| format!("the image in {packages} has no kernel version"))?;
        ensure!(
            is_version(&release, version),
            "the image in {packages} of Debian is kernel {release}, wanted {version}"
        );
        let kept = folder.join("modules").join(&release);
        modules::keep(unpacked.path(), &release, &kept, busybox)?;
        let image = folder.join("vmlinuz");
        // Rename last: a file that is there is whole.
        let partial = unpacked.path().join("vmlinuz");
        fs::write(&partial, bytes)
            .with_context(|| format!("cannot write {}", partial.display()))?;
        fs::write(folder.join("version"), format!("{release}\n{packages}\n"))
            .context("cannot write the kernel's version file")?;
        fs::rename(&partial, &image)
            .with_context(|| format!("cannot write {}", image.display()))?;
        say("kernel", format_args!("{version}: {release}"));
        let modules = modules::kept(&kept);
        ensure!(modules::are_all(&modules), "{} is gone", kept.display());
        Ok(Boot { image, modules })
    }
}

/// The packages that hold the newest image and its modules.
fn newest_packages(
    suite: &Suite,
    version: &str,
    architecture: Architecture,
) -> Result<Vec<String>> {
    let flavour = flavour(architecture);
    let current = suite.depends(&format!("linux-image{flavour}"), false)?;
    let names = suite.names("linux-")?;
    let release = newest_release(&current, version, &flavour)
        .or_else(|| newest_release(&names, version, &flavour))
        .with_context(|| {
            format!(
                "Debian has no kernel {version} any more (it has {}); put an image of it at \
                 kernels/{}/vmlinuz in the cache ($PLIMSOLL_CACHE, else ~/.cache/plimsoll), or give one by path: --kernel PATH",
                current.join(", "),
                architecture.of(version)
            )
        })?;
    let binary = format!("linux-binary-{release}");
    if names.contains(&binary) {
        return Ok(vec![binary, format!("linux-modules-{release}")]);
    }
    Ok(vec![format!("linux-image-{release}")])
}

/// How the releases of Debian's kernels for virtual machines end.
fn flavour(architecture: Architecture) -> String {
    format!("-cloud-{architecture}")
}

/// The highest release of `version` and `flavour` among packages called `linux-image-RELEASE`.
fn newest_release(packages: &[String], version: &str, flavour: &str) -> Option<String> {
    packages
        .iter()
        .filter_map(|name| name.strip_prefix("linux-image-"))
        .filter(|release| release.ends_with(flavour) && is_version(release, version))
        .max_by(|a, b| compare_versions(a, b))
        .map(str::to_owned)
}

/// Whether `release` (`6.1.0-50-cloud-amd64`) is of the series `version` (`6.1`).
fn is_version(release: &str, version: &str) -> bool {
    release
        .strip_prefix(version)
        .is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
}

/// Orders version texts with runs of digits as numbers: `6.12.9` before `6.12.85`.
fn compare_versions(a: &str, b: &str) -> Ordering {
    fn parts(text: &str) -> Vec<Result<u64, char>> {
        let mut parts = Vec::new();
        for next in text.chars() {
            match (next.to_digit(10).map(u64::from), parts.last_mut()) {
                (Some(digit), Some(Ok(number))) => *number = *number * 10 + digit,
                (Some(digit), _) => parts.push(Ok(digit)),
                (None, _) => parts.push(Err(next)),
            }
        }
        parts
    }
    parts(a).cmp(&parts(b))
}

fn find_image(root: &Path) -> Option<PathBuf> {
    let in_folder = |folder: PathBuf, wanted: fn(&Path) -> Option<PathBuf>| {
        let mut files: Vec<PathBuf> = fs::read_dir(folder)
            .ok()?
            .flatten()
            .filter_map(|entry| wanted(&entry.path()))
            .collect();
        files.sort();
        files.pop()
    };
    in_folder(root.join("boot"), |path| {
        let name = path.file_name()?.to_str()?;
        name.starts_with("vmlinuz-").then(|| path.to_owned())
    })
    .or_else(|| {
        in_folder(root.join("usr/lib/modules"), |path| {
            Some(path.join("vmlinuz")).filter(|image| image.is_file())
        })
    })
}

/// The release in a boot image.
fn release_of(image: &[u8], architecture: Architecture) -> Option<String> {
    let text = match architecture {
        Architecture::Amd64 => x86_version(image)?,
        Architecture::Arm64 => arm64_version(image)?,
    };
    let text = text.split(|byte| *byte == 0).next()?;
    let text = std::str::from_utf8(text).ok()?;
    let release = text.split_whitespace().next()?;
    Some(release.to_owned())
}

/// From the text that the set-up header of an x86 boot image points to
/// (Documentation/arch/x86/boot.rst: `HdrS` at 0x202, `kernel_version` at 0x20e, relative to 0x200).
fn x86_version(image: &[u8]) -> Option<&[u8]> {
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let pointer = u16::from_le_bytes(image.get(0x20e..0x210)?.try_into().ok()?);
    image.get(usize::from(pointer) + 0x200..)
}

/// From the banner in an arm64 boot image, which has no version in its header. `Linux version %s` is in an image too:
/// the banner goes on with a digit.
fn arm64_version(image: &[u8]) -> Option<&[u8]> {
    if image.get(ARM64_MAGIC)? != b"ARM\x64" {
        return None;
    }
    let after = image.windows(BANNER.len() + 1).position(|window| {
        window.starts_with(BANNER) && window.last().is_some_and(u8::is_ascii_digit)
    })? + BANNER.len();
    let end = image.len().min(after + RELEASE_BYTES_MAX);
    image.get(after..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn newest_release_of_the_series() {
        let packages = names(&[
            "linux-image-6.12.9+deb12-cloud-amd64",
            "linux-image-6.12.85+deb12-cloud-amd64",
            "linux-image-6.12.85+deb12-cloud-amd64-unsigned",
            "linux-image-6.12.90+deb12.1-cloud-amd64-dbg",
            "linux-image-6.120.1-cloud-amd64",
            "linux-headers-6.12.99-cloud-amd64",
            "linux-image-6.12.99+deb12-cloud-arm64",
            "linux-image-cloud-amd64",
        ]);
        assert_eq!(
            newest_release(&packages, "6.12", "-cloud-amd64").as_deref(),
            Some("6.12.85+deb12-cloud-amd64")
        );
        assert_eq!(newest_release(&packages, "7.2", "-cloud-amd64"), None);
    }

    #[test]
    fn series_is_not_a_text_prefix() {
        assert!(is_version("6.1.0-50-cloud-amd64", "6.1"));
        assert!(!is_version("6.12.95", "6.1"));
        assert!(is_version("7.2.13+deb14-cloud-amd64", "7.2"));
    }

    #[test]
    fn release_is_read_from_the_boot_header() {
        let mut image = vec![0_u8; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        image[0x300..0x300 + 20].copy_from_slice(b"6.1.0-50-x (me) #1\0\0");
        let x86 = |image: &[u8]| release_of(image, Architecture::Amd64);
        assert_eq!(x86(&image).as_deref(), Some("6.1.0-50-x"));
        image[0x202] = b'X';
        assert_eq!(x86(&image), None);
        assert_eq!(x86(b"short"), None);
    }

    #[test]
    fn release_is_read_from_an_arm64_image() {
        let mut image = vec![0_u8; 0x400];
        image[ARM64_MAGIC].copy_from_slice(b"ARM\x64");
        image.extend(b"Linux version %s (%s)\0Linux version 7.2.13+x-arm64 (me) #1 SMP\0");
        let arm64 = |image: &[u8]| release_of(image, Architecture::Arm64);
        assert_eq!(arm64(&image).as_deref(), Some("7.2.13+x-arm64"));
        assert_eq!(release_of(&image, Architecture::Amd64), None);
        image[0x38] = b'X';
        assert_eq!(arm64(&image), None);
        assert_eq!(arm64(b"short"), None);
    }

    #[test]
    fn kernels_by_name() {
        assert_eq!("6.12".parse(), Ok(Kernel::V6_12));
        assert!("6.13".parse::<Kernel>().is_err());
    }
}
