//! Debian packages without root and without touching the machine's own package state.
//!
//! Problem: the guest kernels and the programs they are compared with are Debian packages, partly of suites that this
//! machine does not use. Approach: a private apt state per suite in the cache, whose one source is the machine's own Debian
//! source (its address, its keys) with the suite changed. `apt-get download` and `dpkg-deb -x` then need no root.
//!
//! Terms: a *source* is one stanza (deb822, `*.sources`) or one line (`*.list`) of apt's configuration; a *suite* is
//! `bookworm`, `bookworm-backports`, `sid`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::process::{output_of, run};
use crate::progress::say;

/// The component that kernels and all programs used here are in.
const COMPONENT: &str = "main";

/// One of the machine's sources, ready to be written for another suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// A deb822 stanza: fields in order, continuation lines (an inline key) kept in the value.
    Stanza(Vec<(String, String)>),
    /// A line `deb [OPTIONS] URI SUITE COMPONENT…`.
    Line {
        /// Text between the brackets, brackets included; empty when there is none.
        options: String,
        /// The archive's address.
        uri: String,
    },
}

impl Source {
    /// The file name and text that offer `suite` from this archive.
    fn for_suite(&self, suite: &str) -> (&'static str, String) {
        match self {
            Self::Stanza(fields) => {
                let mut text = String::new();
                for (name, value) in fields {
                    let value = match name.to_ascii_lowercase().as_str() {
                        "types" => "deb",
                        "suites" => suite,
                        "components" => COMPONENT,
                        _ => value,
                    };
                    text.push_str(&format!("{name}: {value}\n"));
                }
                ("debian.sources", text)
            }
            Self::Line { options, uri } => {
                let line = ["deb", options, uri, suite, COMPONENT];
                let words: Vec<&str> = line.into_iter().filter(|word| !word.is_empty()).collect();
                ("debian.list", format!("{}\n", words.join(" ")))
            }
        }
    }

    /// Debian's own archives are called `…/debian`; third parties that copy its suite names rarely are.
    fn looks_like_debian(&self) -> bool {
        let uri = match self {
            Self::Line { uri, .. } => uri.as_str(),
            Self::Stanza(fields) => field(fields, "uris").unwrap_or_default(),
        };
        uri.split_whitespace()
            .any(|uri| uri.trim_end_matches('/').ends_with("/debian"))
    }
}

fn field<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
    fields
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
}

fn has_word(value: Option<&str>, word: &str) -> bool {
    value.is_some_and(|value| value.split_whitespace().any(|known| known == word))
}

/// The binary-package sources for `codename` in a deb822 file.
pub(crate) fn deb822_sources(text: &str, codename: &str) -> Vec<Source> {
    let mut stanzas: Vec<Vec<(String, String)>> = vec![Vec::new()];
    for line in text.lines() {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            stanzas.push(Vec::new());
            continue;
        }
        let Some(stanza) = stanzas.last_mut() else {
            continue;
        };
        if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = stanza.last_mut() {
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(':') {
            stanza.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }
    stanzas
        .into_iter()
        .filter(|fields| {
            let enabled =
                field(fields, "enabled").is_none_or(|value| !value.eq_ignore_ascii_case("no"));
            enabled
                && has_word(field(fields, "types"), "deb")
                && has_word(field(fields, "suites"), codename)
                && has_word(field(fields, "components"), COMPONENT)
        })
        .map(Source::Stanza)
        .collect()
}

/// The binary-package sources for `codename` in a one-line-per-source file.
pub(crate) fn one_line_sources(text: &str, codename: &str) -> Vec<Source> {
    let parse = |line: &str| {
        let line = line.split('#').next()?.trim();
        let rest = line.strip_prefix("deb")?;
        let rest = rest
            .starts_with([' ', '\t', '['])
            .then(|| rest.trim_start())?;
        let (options, rest) = match rest.strip_prefix('[') {
            Some(bracketed) => {
                let (options, rest) = bracketed.split_once(']')?;
                (format!("[{options}]"), rest)
            }
            None => (String::new(), rest),
        };
        let mut words = rest.split_whitespace();
        let (uri, suite) = (words.next()?, words.next()?);
        let wanted = suite == codename && words.any(|component| component == COMPONENT);
        wanted.then(|| Source::Line {
            options,
            uri: uri.to_owned(),
        })
    };
    text.lines().filter_map(parse).collect()
}

/// The machine's own Debian source.
fn machine_source() -> Result<Source> {
    let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let value = |name: &str| {
        release
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(|value| value.trim_matches('"').to_owned())
    };
    let next = "give a kernel image by path instead: `cargo xtask vm --kernel /path/to/vmlinuz`";
    ensure!(
        value("ID").as_deref() == Some("debian"),
        "this machine is not Debian (/etc/os-release), so its package sources cannot provide the guest kernels; {next}"
    );
    let codename = value("VERSION_CODENAME").context("/etc/os-release has no VERSION_CODENAME")?;

    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        let mut parts: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        parts.sort();
        files.extend(parts);
    }
    let mut sources = Vec::new();
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("list") => sources.extend(one_line_sources(&text, &codename)),
            Some("sources") => sources.extend(deb822_sources(&text, &codename)),
            _ => {}
        }
    }
    let preferred = sources
        .iter()
        .position(Source::looks_like_debian)
        .unwrap_or(0);
    if preferred < sources.len() {
        return Ok(sources.swap_remove(preferred));
    }
    bail!(
        "no source for Debian {codename} {COMPONENT} in /etc/apt/sources.list or /etc/apt/sources.list.d; add one, or {next}"
    )
}

/// A private apt state for one suite.
#[derive(Debug)]
pub(crate) struct Apt {
    suite: String,
    folder: PathBuf,
}

impl Apt {
    /// Opens the private state for `suite`, fetching its package lists the first time. The caller holds the cache's lock.
    pub(crate) fn open(cache: &Path, suite: &str) -> Result<Self> {
        let apt = Self {
            suite: suite.to_owned(),
            folder: cache.join("apt").join(suite),
        };
        let lists = apt.folder.join("lists");
        let fetched = apt.folder.join("fetched");
        for folder in [
            lists.join("partial"),
            apt.folder.join("cache/archives/partial"),
            apt.folder.join("parts"),
        ] {
            fs::create_dir_all(&folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let (name, text) = machine_source()?.for_suite(suite);
        let source = apt.folder.join("parts").join(name);
        let unchanged = fs::read_to_string(&source).is_ok_and(|known| known == text);
        if !unchanged {
            fs::write(&source, text)
                .with_context(|| format!("cannot write {}", source.display()))?;
        }
        if !unchanged || !fetched.exists() {
            apt.update()?;
        }
        Ok(apt)
    }

    /// Fetches the package lists again.
    pub(crate) fn update(&self) -> Result<()> {
        say(
            "apt",
            format_args!("package lists of Debian {}", self.suite),
        );
        let next = "check the network and this machine's apt sources (`apt-get update` must work), then run the command again";
        output_of(self.command("apt-get").args(["update", "-qq"]), next)?;
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
            // The cache may be below a home folder that apt's own user cannot enter.
            "APT::Sandbox::User=".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=3".to_owned(),
            "APT::Architecture=amd64".to_owned(),
            "APT::Architectures=amd64".to_owned(),
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
            self.suite
        );
        let text = output_of(command.arg(package), &next)?;
        let mut names: Vec<String> = text
            .lines()
            .filter_map(|line| {
                line.trim()
                    .trim_start_matches('|')
                    .strip_prefix("Depends: ")
            })
            .filter(|name| !name.starts_with('<'))
            .map(str::to_owned)
            .collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Downloads `package` and unpacks it into the folder `into`.
    pub(crate) fn unpack(&self, package: &str, into: &Path) -> Result<()> {
        let work = tempfile::tempdir_in(&self.folder)
            .context("cannot make a temporary folder in the cache")?;
        let download = || {
            run(self
                .command("apt-get")
                .args(["download", "-qq", package])
                .current_dir(work.path()))
        };
        if !download()?.status.success() {
            // The archive drops old versions: lists of last week name files that are gone.
            self.update()?;
            let output = download()?;
            ensure!(
                output.status.success(),
                "cannot download Debian package {package} of {}:\n{}\nCheck the network and run the command again",
                self.suite,
                crate::process::merged(&output).trim_end()
            );
        }
        let deb = fs::read_dir(work.path())?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .with_context(|| format!("apt-get downloaded no file for {package}"))?;
        fs::create_dir_all(into).with_context(|| format!("cannot create {}", into.display()))?;
        output_of(
            Command::new("dpkg-deb").arg("-x").arg(&deb).arg(into),
            "the downloaded package is damaged or the disk is full: free some space and run the command again",
        )?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEB822: &str = "\
Types: deb
# the snapshot this image was made from
URIs: http://archive.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc

Types: deb
URIs: http://archive.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://other.example/apt
Suites: nodistro
Components: main
";

    #[test]
    fn deb822_keeps_keys_and_changes_suite() {
        let sources = deb822_sources(DEB822, "bookworm");
        assert_eq!(sources.len(), 1, "{sources:?}");
        let (name, text) = sources[0].for_suite("sid");
        assert_eq!(name, "debian.sources");
        assert_eq!(
            text,
            "Types: deb\nURIs: http://archive.example/debian\nSuites: sid\nComponents: main\n\
             Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n"
        );
    }

    #[test]
    fn deb822_skips_disabled_source_only_and_other_components() {
        for text in [
            "Types: deb\nURIs: u/debian\nSuites: bookworm\nComponents: main\nEnabled: no\n",
            "Types: deb-src\nURIs: u/debian\nSuites: bookworm\nComponents: main\n",
            "Types: deb\nURIs: u/debian\nSuites: bookworm\nComponents: stable\n",
            "Types: deb\nURIs: u/debian\nSuites: bookworm-pgdg\nComponents: main\n",
        ] {
            assert_eq!(deb822_sources(text, "bookworm"), [], "{text}");
        }
    }

    #[test]
    fn one_line_keeps_options_and_changes_suite() {
        let text = "# comment\ndeb-src http://a.example/debian bookworm main\n\
                    deb [arch=amd64 signed-by=/k.gpg] http://a.example/debian bookworm main contrib # mirror\n\
                    deb http://b.example/linux/debian bookworm stable\n";
        let sources = one_line_sources(text, "bookworm");
        assert_eq!(sources.len(), 1, "{sources:?}");
        let (name, text) = sources[0].for_suite("bookworm-backports");
        assert_eq!(name, "debian.list");
        assert_eq!(
            text,
            "deb [arch=amd64 signed-by=/k.gpg] http://a.example/debian bookworm-backports main\n"
        );
        let plain = one_line_sources("deb http://a.example/debian/ trixie main", "trixie");
        assert_eq!(
            plain[0].for_suite("sid").1,
            "deb http://a.example/debian/ sid main\n"
        );
    }

    #[test]
    fn debian_archives_are_told_from_third_parties() {
        let line = |uri: &str| Source::Line {
            options: String::new(),
            uri: uri.to_owned(),
        };
        assert!(line("http://a.example/debian/").looks_like_debian());
        assert!(!line("http://a.example/node_18.x").looks_like_debian());
        assert!(deb822_sources(DEB822, "bookworm")[0].looks_like_debian());
    }
}
