//! Debian packages without root and without touching the machine's own package state.
//!
//! Problem: the guest kernels and the programs they are compared with are Debian packages, partly of suites that this
//! machine does not use, and a suite moves on. Approach: what the project needs is *pinned* by its path in Debian's
//! archive and its SHA-256 (`pinned.txt`), and comes from the archive that this machine's apt uses, through apt's own
//! downloader, which knows its proxies and checks the sum. A pinned package that the archive has dropped gives way to
//! the newest one ([`Suite`]): then the suite's signed lists are fetched into a private state in the cache.
//! `dpkg-deb -x` needs no root either.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::architecture::Architecture;
use crate::interrupt::Folder;
use crate::paths;
use crate::process::output::ProcessOutput;
use crate::process::{last_lines, output_of, run};
use crate::progress::{Progress, Step, say};

/// The component that kernels and all programs used here are in.
const COMPONENT: &str = "main";
/// Downloads a file and checks its sum; part of the package `apt`.
const APT_HELPER: &str = "/usr/lib/apt/apt-helper";
/// Signs every suite of Debian; part of each Debian.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Unpacked, a package is some four times as large as its file.
const UNPACKED_TIMES: u64 = 5;
const MB: u64 = 1_000_000;

/// A package of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pinned {
    /// Its name.
    pub(crate) package: String,
    sha256: String,
    bytes: u64,
    /// Below the archive's address.
    path: String,
}

impl Pinned {
    /// Its file's name without `.deb`: package, version, architecture.
    pub(crate) fn file_stem(&self) -> &str {
        let file = self.path.rsplit('/').next().unwrap_or(&self.path);
        file.trim_end_matches(".deb")
    }
}

/// The packages of `pinned.txt` for a purpose, such as `kernel-6.12` or `busybox`.
pub(crate) fn pinned(purpose: &str) -> Vec<Pinned> {
    pinned_in(include_str!("../pinned.txt"), purpose)
}

fn pinned_in(text: &str, purpose: &str) -> Vec<Pinned> {
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        if words.next()? != purpose {
            return None;
        }
        Some(Pinned {
            package: words.next()?.to_owned(),
            sha256: words.next()?.to_owned(),
            bytes: words.next()?.parse().ok()?,
            path: words.next()?.to_owned(),
        })
    };
    text.lines().filter_map(parse).collect()
}

/// What came of asking for a pinned package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Archived {
    /// It is unpacked.
    Unpacked,
    /// The archive has dropped this version.
    Dropped,
}

/// Debian's archive, as this machine's apt knows it.
#[derive(Debug)]
pub(crate) struct Archive {
    /// The address below which `pool` and `dists` are, with a slash at the end.
    address: String,
    /// Option of a source line: how its lists are trusted.
    trust: String,
}

impl Archive {
    /// From the machine's sources.
    pub(crate) fn of_machine() -> Result<Self> {
        let next = "give a kernel image by path instead: `--kernel /path/to/vmlinuz`";
        let release =
            fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
        let codename = codename(&release).with_context(|| {
            format!("this machine is not Debian (/etc/os-release), so its package sources cannot provide the guest kernels; {next}")
        })?;
        let targets = output_of(
            Command::new("apt-get")
                .args(["indextargets", "--format"])
                .arg("$(REPO_URI) $(RELEASE) $(COMPONENT) $(TRUSTED)")
                .arg("Created-By: Packages"),
            next,
        )?;
        address(&targets, &codename).with_context(|| {
            format!("this machine's apt has no source for Debian {codename} {COMPONENT} (`apt-get indextargets`); add one, or {next}")
        })
    }

    /// Downloads a pinned package into `folder` and unpacks it into `into`.
    pub(crate) fn unpack(&self, pinned: &Pinned, folder: &Path, into: &Path) -> Result<Archived> {
        let file = File {
            address: format!("{}{}", self.address, pinned.path),
            package: pinned.package.clone(),
            sha256: pinned.sha256.clone(),
            bytes: pinned.bytes,
        };
        file.unpack(folder, into)
    }
}

/// `VERSION_CODENAME` of a Debian.
fn codename(os_release: &str) -> Option<String> {
    let value = |name: &str| {
        os_release
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(|value| value.trim_matches('"').to_owned())
    };
    value("ID").filter(|id| id == "debian")?;
    value("VERSION_CODENAME")
}

/// The archive among apt's index targets. Debian's own are called `…/debian`; third parties that copy its suite names
/// rarely are.
fn address(targets: &str, codename: &str) -> Option<Archive> {
    let mut known: Vec<Archive> = targets
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (address, suite, component) = (words.next()?, words.next()?, words.next()?);
            let trust = match words.next() {
                Some("yes") => "[trusted=yes]".to_owned(),
                _ if Path::new(KEYRING).exists() => format!("[signed-by={KEYRING}]"),
                _ => String::new(),
            };
            (suite == codename && component == COMPONENT).then(|| Archive {
                address: format!("{}/", address.trim_end_matches('/')),
                trust,
            })
        })
        .collect();
    let preferred = known
        .iter()
        .position(|archive| archive.address.ends_with("/debian/"))
        .unwrap_or(0);
    (preferred < known.len()).then(|| known.swap_remove(preferred))
}

/// A package file in the archive.
#[derive(Debug, PartialEq, Eq)]
struct File {
    address: String,
    package: String,
    sha256: String,
    bytes: u64,
}

impl File {
    /// From a line of `apt-get download --print-uris`: `'ADDRESS' PACKAGE_VERSION_ARCHITECTURE.deb BYTES SHA256:SUM`.
    fn of_line(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let address = words.next()?.trim_matches('\'').to_owned();
        let (package, _) = words.next()?.split_once('_')?;
        Some(Self {
            address,
            package: package.to_owned(),
            bytes: words.next()?.parse().ok()?,
            sha256: words.next()?.strip_prefix("SHA256:")?.to_owned(),
        })
    }

    fn unpack(&self, folder: &Path, into: &Path) -> Result<Archived> {
        let needed = self.bytes.saturating_mul(1 + UNPACKED_TIMES);
        enough_room(folder, needed, paths::free_bytes(folder))?;
        let work = Folder::inside(folder)?;
        let deb = work.path().join("package.deb");
        let step = Step::begin(
            "download",
            format_args!("Debian's {}, {} kB", self.package, self.bytes / 1000),
        );
        let output = self.download(&deb, &step)?;
        if !output.success() {
            let said = output.text();
            if said.contains("404  Not Found") || said.contains("File not found") {
                return Ok(Archived::Dropped);
            }
            bail!("{}", cut_off(&self.package, &said));
        }
        fs::create_dir_all(into).with_context(|| format!("cannot create {}", into.display()))?;
        let mut unpack = if self.address.ends_with(".deb") {
            let mut command = Command::new("dpkg-deb");
            command.arg("-x").arg(&deb).arg(into);
            command
        } else {
            // A source: what it holds is in one folder.
            let mut command = Command::new("tar");
            command.arg("-xf").arg(&deb).arg("-C").arg(into);
            command.arg("--strip-components=1");
            command
        };
        output_of(
            &mut unpack,
            &format!(
                "its SHA-256 is right, so most likely {} is full: free some space, or set PLIMSOLL_CACHE to another folder",
                folder.display()
            ),
        )?;
        step.done();
        Ok(Archived::Unpacked)
    }

    fn download(&self, deb: &Path, step: &Step) -> Result<ProcessOutput> {
        let mut command = Command::new(APT_HELPER);
        command
            // The cache may be below a home folder that apt's own user cannot enter.
            .args(["-o", "APT::Sandbox::User="])
            .args(["-o", "Acquire::Retries=3"])
            .arg("download-file")
            .arg(&self.address)
            .arg(deb)
            .arg(format!("SHA256:{}", self.sha256))
            .env("LC_ALL", "C");
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let got = fs::metadata(deb).map_or(0, |metadata| metadata.len());
                    step.at(Progress {
                        done: got / MB,
                        total: Some(self.bytes / MB),
                        unit: "MB",
                        now: String::new(),
                    });
                    thread::sleep(Duration::from_millis(100));
                }
            });
            let output = run(&mut command);
            ended.store(true, Ordering::Relaxed);
            output
        })
    }
}

/// What a failed download says: the cause in a word, apt's lines, what to do.
fn cut_off(package: &str, said: &str) -> String {
    let next = if said.contains("No space left on device") {
        "The cache is full: free some space, or set PLIMSOLL_CACHE to another folder, and run the command again"
    } else if said.contains("Hash Sum mismatch") {
        "What came is not what is pinned: the download was cut off or changed on its way (a proxy?); run the command again"
    } else {
        "Check the network and this machine's apt sources (`apt-get update` must work), then run the command again"
    };
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| !line.starts_with("W: Download is performed unsandboxed"))
        .collect();
    format!(
        "cannot download Debian's {package}:\n{}\n{next}",
        last_lines(&lines.join("\n"))
    )
}

fn enough_room(folder: &Path, needed: u64, free: Option<u64>) -> Result<()> {
    let Some(free) = free else { return Ok(()) };
    ensure!(
        free >= needed,
        "{} has {} MB free, and {} MB are needed: free some space, or set PLIMSOLL_CACHE to another folder",
        folder.display(),
        free / MB,
        needed.div_ceil(MB)
    );
    Ok(())
}

/// Puts the packages for `purpose` into `into`; where one of them has been dropped, what `newest` names of `suite`, for
/// this architecture. Returns the names. The caller holds the cache's lock.
pub(crate) fn unpack_pinned(
    cache: &Path,
    (suite, architecture): (&str, Architecture),
    purpose: &str,
    into: &Path,
    newest: impl FnOnce(&Suite) -> Result<Vec<String>>,
) -> Result<Vec<String>> {
    let archive = Archive::of_machine()?;
    let wanted = pinned(purpose);
    ensure!(
        !wanted.is_empty(),
        "xtask/pinned.txt has nothing for {purpose}"
    );
    for package in &wanted {
        if archive.unpack(package, cache, into)? == Archived::Dropped {
            let suite = Suite::open(cache, suite, architecture)?;
            let names = newest(&suite)?;
            say(
                "download",
                format_args!(
                    "Debian's archive no longer has the pinned {}; taking the newest, {}",
                    package.path,
                    names.join(" and ")
                ),
            );
            // What is there by now is of another version.
            let _none = fs::remove_dir_all(into);
            let packages: Vec<(&str, PathBuf)> = names
                .iter()
                .map(|name| (name.as_str(), into.to_owned()))
                .collect();
            suite.unpack(&packages)?;
            return Ok(names);
        }
    }
    Ok(wanted.into_iter().map(|pinned| pinned.package).collect())
}

/// The same, into a folder that the cache keeps: it is there when all of it is, and what was there before is gone then.
pub(crate) fn keep_pinned(
    cache: &Path,
    suite: (&str, Architecture),
    purpose: &str,
    folder: &Path,
    newest: impl FnOnce(&Suite) -> Result<Vec<String>>,
) -> Result<()> {
    let partial = Folder::inside(cache)?;
    let whole = partial.path().join("whole");
    unpack_pinned(cache, suite, purpose, &whole, newest)?;
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    let _none = fs::remove_dir_all(folder);
    fs::rename(&whole, folder).with_context(|| format!("cannot write {}", folder.display()))
}

/// A suite's newest packages for an architecture: its lists in a private apt state.
#[derive(Debug)]
pub(crate) struct Suite {
    name: String,
    architecture: Architecture,
    folder: PathBuf,
}

impl Suite {
    /// Opens the private state for the suite, fetching its package lists the first time. The caller holds the cache's
    /// lock.
    pub(crate) fn open(cache: &Path, name: &str, architecture: Architecture) -> Result<Self> {
        let suite = Self {
            name: name.to_owned(),
            architecture,
            folder: cache.join("apt").join(architecture.of(name)),
        };
        for folder in ["lists/partial", "cache/archives/partial", "parts"] {
            let folder = suite.folder.join(folder);
            fs::create_dir_all(&folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        // An older xtask wrote another file.
        let _none = fs::remove_file(suite.folder.join("parts/debian.sources"));
        let Archive { address, trust } = Archive::of_machine()?;
        let line = format!("deb {trust} {address} {name} {COMPONENT}\n");
        let source = suite.folder.join("parts/debian.list");
        let unchanged = fs::read_to_string(&source).is_ok_and(|known| known == line);
        if !unchanged {
            // What is there was fetched from another archive.
            let _none = fs::remove_file(suite.folder.join("fetched"));
            fs::write(&source, line)
                .with_context(|| format!("cannot write {}", source.display()))?;
        }
        if !suite.folder.join("fetched").exists() {
            suite.update()?;
        }
        Ok(suite)
    }

    /// Fetches the package lists again.
    pub(crate) fn update(&self) -> Result<()> {
        let step = Step::begin(
            "download",
            format_args!("package lists of Debian {}", self.name),
        );
        let next = "check the network and this machine's apt sources (`apt-get update` must work), then run the command again";
        output_of(self.command("apt-get").args(["update", "-qq"]), next)?;
        step.done();
        let fetched = self.folder.join("fetched");
        fs::write(&fetched, "").with_context(|| format!("cannot write {}", fetched.display()))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let option = |name: &str, path: &Path| format!("{name}={}", path.display());
        let none = Path::new("/dev/null");
        for option in [
            option("Dir::State", &self.folder),
            option("Dir::State::lists", &self.folder.join("lists")),
            option("Dir::State::status", none),
            option("Dir::Cache", &self.folder.join("cache")),
            option("Dir::Etc::sourcelist", none),
            option("Dir::Etc::sourceparts", &self.folder.join("parts")),
            option("Dir::Etc::preferences", none),
            option("Dir::Etc::preferencesparts", none),
            "APT::Sandbox::User=".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=3".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            format!("APT::Architecture={}", self.architecture),
            format!("APT::Architectures={}", self.architecture),
        ] {
            command.args(["-o", &option]);
        }
        command.env("LC_ALL", "C");
        command
    }

    /// The names of all packages that begin with `prefix`, sorted.
    pub(crate) fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let next = "run `cargo xtask setup --refresh`";
        let text = output_of(self.command("apt-cache").args(["pkgnames", prefix]), next)?;
        let mut names: Vec<String> = text.lines().map(str::to_owned).collect();
        names.sort();
        Ok(names)
    }

    /// The packages of shared libraries among all that `package` depends on, directly or not, by Debian's own sections.
    pub(crate) fn libraries(&self, package: &str) -> Result<Vec<String>> {
        let names = self.depends(package, true)?;
        let mut command = self.command("apt-cache");
        command.args(["show", "--no-all-versions"]).args(&names);
        let next = "run `cargo xtask setup --refresh`";
        Ok(libraries_in(&output_of(&mut command, next)?))
    }

    /// What `package` depends on; with `recurse`, what those depend on too. Virtual packages are left out.
    pub(crate) fn depends(&self, package: &str, recurse: bool) -> Result<Vec<String>> {
        let mut command = self.command("apt-cache");
        command.args([
            "depends",
            "--no-recommends",
            "--no-suggests",
            "--no-enhances",
        ]);
        command.args(["--no-conflicts", "--no-breaks", "--no-replaces"]);
        if recurse {
            command.arg("--recurse");
        }
        let next = format!(
            "Debian {} has no package {package}, or its lists are old: run `cargo xtask setup --refresh`",
            self.name
        );
        let text = output_of(command.arg(package), &next)?;
        Ok(depends_in(&text))
    }

    /// Downloads packages and unpacks each into its folder.
    pub(crate) fn unpack(&self, wanted: &[(&str, PathBuf)]) -> Result<()> {
        let mut files = self.files(wanted.iter().map(|(package, _)| *package))?;
        for (package, into) in wanted {
            let listed = format!("Debian {} lists no file of {package}", self.name);
            let file = files.remove(*package).with_context(|| listed.clone())?;
            if file.unpack(&self.folder, into)? == Archived::Unpacked {
                continue;
            }
            // The archive drops old versions: lists of last week name files that are gone.
            self.update()?;
            files = self.files(wanted.iter().map(|(package, _)| *package))?;
            let file = files.remove(*package).with_context(|| listed)?;
            ensure!(
                file.unpack(&self.folder, into)? == Archived::Unpacked,
                "Debian {} lists {package}, but its archive does not have the file: run the command again later",
                self.name
            );
        }
        Ok(())
    }

    /// The line of `pinned.txt` that pins the newest `package`.
    pub(crate) fn pin(&self, purpose: &str, package: &str) -> Result<String> {
        let mut files = self.files([package].into_iter())?;
        let file = files
            .remove(package)
            .with_context(|| format!("Debian {} lists no file of {package}", self.name))?;
        let path = file.address.rfind("pool/").unwrap_or(0);
        let path = file.address.get(path..).unwrap_or_default();
        let File { sha256, bytes, .. } = &file;
        Ok(format!("{purpose} {package} {sha256} {bytes} {path}"))
    }

    /// Where the newest packages are, by name. One call for all: apt reads its lists anew in each.
    fn files<'a>(&self, packages: impl Iterator<Item = &'a str>) -> Result<BTreeMap<String, File>> {
        let mut command = self.command("apt-get");
        command
            .args(["download", "-qq", "--print-uris"])
            .args(packages);
        let next = format!(
            "Debian {} has no such package, or its lists are old: run `cargo xtask setup --refresh`",
            self.name
        );
        let text = output_of(&mut command, &next)?;
        let files = text.lines().filter_map(File::of_line);
        Ok(files.map(|file| (file.package.clone(), file)).collect())
    }
}

/// The packages that others depend on, from what `apt-cache depends` says. What must be there before a package is
/// unpacked (`PreDepends`) is as much part of it: the libraries of `e2fsprogs` are named so.
fn depends_in(said: &str) -> Vec<String> {
    let mut names: Vec<String> = said
        .lines()
        .filter_map(|line| {
            let line = line.trim().trim_start_matches('|');
            line.strip_prefix("Depends: ")
                .or_else(|| line.strip_prefix("PreDepends: "))
        })
        .filter(|name| !name.starts_with('<'))
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    names
}

/// The packages in the section of libraries, from what `apt-cache show` says.
fn libraries_in(shown: &str) -> Vec<String> {
    let mut package = "";
    let mut libraries = Vec::new();
    for line in shown.lines() {
        if let Some(name) = line.strip_prefix("Package: ") {
            package = name;
        } else if matches!(line, "Section: libs" | "Section: oldlibs") {
            libraries.push(package.to_owned());
        }
    }
    libraries.sort();
    libraries.dedup();
    libraries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_pinned_is_whole() {
        for (purpose, packages) in [
            ("kernel-6.1", 1),
            ("kernel-6.12", 1),
            ("kernel-7.2", 2),
            ("busybox", 1),
            ("kernel-6.1-arm64", 1),
            ("kernel-6.12-arm64", 1),
            ("kernel-7.2-arm64", 2),
            ("busybox-arm64", 1),
        ] {
            let pinned = pinned(purpose);
            assert_eq!(pinned.len(), packages, "{purpose}");
            for pinned in pinned {
                assert_eq!(pinned.sha256.len(), 64, "{pinned:?}");
                assert!(pinned.path.starts_with("pool/main/"), "{pinned:?}");
                assert!(pinned.path.contains(&pinned.package), "{pinned:?}");
                assert!(pinned.bytes > 100_000, "{pinned:?}");
            }
        }
        let lines = include_str!("../pinned.txt").lines();
        let lines = lines.filter(|line| !line.starts_with('#') && !line.is_empty());
        for line in lines {
            assert_eq!(line.split_whitespace().count(), 5, "{line}");
        }
        assert_eq!(pinned_in("# busybox a b c d\nbusybox a b\n", "busybox"), []);
    }

    #[test]
    fn the_archive_is_debians_own_for_this_release() {
        let targets = "http://other.example/apt/ bookworm main no\n\
                       http://a.example/debian-security/ bookworm-security main no\n\
                       http://a.example/debian/ bookworm contrib no\n\
                       http://a.example/debian/ bookworm main no\n";
        let archive = address(targets, "bookworm").unwrap();
        assert_eq!(archive.address, "http://a.example/debian/");
        assert!(address(targets, "trixie").is_none());
        let trusted = address("http://a.example/x bookworm main yes\n", "bookworm").unwrap();
        assert_eq!(trusted.address, "http://a.example/x/");
        assert_eq!(trusted.trust, "[trusted=yes]");
    }

    #[test]
    fn only_debian_has_a_codename_here() {
        let debian = "NAME=\"Debian\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        assert_eq!(codename(debian).as_deref(), Some("bookworm"));
        assert_eq!(codename("ID=ubuntu\nVERSION_CODENAME=noble\n"), None);
    }

    #[test]
    fn a_printed_address_is_a_file() {
        let line = "'http://a.example/pool/e_1.7.deb' e_1.7.deb 29000 SHA256:e79b";
        let file = File::of_line(line).unwrap();
        assert_eq!(file.package, "e");
        assert_eq!(file.address, "http://a.example/pool/e_1.7.deb");
        assert_eq!((file.bytes, file.sha256.as_str()), (29_000, "e79b"));
        assert_eq!(File::of_line("E: no such package"), None);
    }

    #[test]
    fn what_must_be_there_before_a_package_is_depended_on_too() {
        let said = "e2fsprogs\n  PreDepends: libext2fs2\n  Depends: logsave\n |Depends: a\n  Depends: <virtual>\n  Suggests: parted\n";
        assert_eq!(depends_in(said), ["a", "libext2fs2", "logsave"]);
    }

    #[test]
    fn a_library_is_known_by_its_section_and_not_by_its_name() {
        let shown = "Package: zlib1g\nVersion: 1\nSection: libs\n\nPackage: libreoffice\nSection: editors\n\n\
                     Package: libc6\nSection: libs\n";
        assert_eq!(libraries_in(shown), ["libc6", "zlib1g"]);
    }

    #[test]
    fn a_failed_download_says_why_and_what_to_do() {
        let text = cut_off(
            "busybox-static",
            "W: Download is performed unsandboxed as root\nE: Failed to fetch x  Hash Sum mismatch\n",
        );
        assert!(
            text.starts_with("cannot download Debian's busybox-static:\nE: Failed"),
            "{text}"
        );
        assert!(text.contains("cut off or changed"), "{text}");
        let full = cut_off("x", "E: write (28: No space left on device)");
        assert!(full.contains("PLIMSOLL_CACHE"), "{full}");
        assert!(cut_off("x", "E: Could not resolve").contains("network"));
    }

    #[test]
    fn a_full_cache_is_said_before_the_download() {
        let folder = Path::new("/c");
        assert!(enough_room(folder, 10 * MB, Some(10 * MB)).is_ok());
        assert!(enough_room(folder, 10 * MB, None).is_ok());
        let error = enough_room(folder, 10 * MB, Some(3 * MB)).unwrap_err();
        assert!(
            error.to_string().contains("/c has 3 MB free, and 10 MB"),
            "{error}"
        );
    }
}
