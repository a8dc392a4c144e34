//! The processors that Plimsoll is built for, and what each is called by those who name it.
//!
//! Everything is built on x86-64: for another processor with a standard library of rustup's and Debian's cross
//! compiler, which links the programs and compiles what is written in C (ring, in `plimsoll-cluster`). Its guests are
//! emulated by another QEMU.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context as _, Result, ensure};
use object::{Architecture as Machine, Object as _};

/// A processor, by the name that Debian and OCI images have for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Architecture {
    /// x86-64.
    Amd64,
    /// 64-bit Arm, little-endian.
    Arm64,
}

/// The tools that compile C for another processor than this machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CrossTools {
    /// The compiler, which links too.
    pub(crate) compiler: &'static str,
    /// Makes libraries.
    pub(crate) archiver: &'static str,
    /// Debian's packages that have both, and a C library to link with.
    pub(crate) packages: [&'static str; 2],
}

impl Architecture {
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// Debian's name, which is also that of OCI images.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Rust's target.
    pub(crate) const fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// The emulator of its guests.
    pub(crate) const fn qemu(self) -> &'static str {
        match self {
            Self::Amd64 => "qemu-system-x86_64",
            Self::Arm64 => "qemu-system-aarch64",
        }
    }

    /// Debian's package of it.
    pub(crate) const fn qemu_package(self) -> &'static str {
        match self {
            Self::Amd64 => "qemu-system-x86",
            Self::Arm64 => "qemu-system-arm",
        }
    }

    /// What builds C for it here; none where this machine's own compiler does.
    pub(crate) const fn cross(self) -> Option<CrossTools> {
        match self {
            Self::Amd64 => None,
            Self::Arm64 => Some(CrossTools {
                compiler: "aarch64-linux-gnu-gcc",
                archiver: "aarch64-linux-gnu-ar",
                packages: ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
            }),
        }
    }

    /// A purpose of `pinned.txt` or a folder of the cache: what was there before there was a second processor has kept
    /// its name.
    pub(crate) fn of(self, name: &str) -> String {
        match self {
            Self::Amd64 => name.to_owned(),
            Self::Arm64 => format!("{name}-{self}"),
        }
    }

    /// Tells cargo how to link for it, and build scripts how to compile C.
    pub(crate) fn prepare(self, cargo: &mut Command) {
        let Some(tools) = self.cross() else { return };
        let target = self.target().replace('-', "_");
        cargo
            .env(
                format!("CARGO_TARGET_{}_LINKER", target.to_uppercase()),
                tools.compiler,
            )
            .env(format!("CC_{target}"), tools.compiler)
            .env(format!("AR_{target}"), tools.archiver);
    }

    /// Fails when `program` is a program for another processor, or none.
    pub(crate) fn check(self, program: &Path) -> Result<()> {
        let bytes =
            std::fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
        let file = object::File::parse(bytes.as_slice())
            .with_context(|| format!("{} is no program", program.display()))?;
        let wanted = match self {
            Self::Amd64 => Machine::X86_64,
            Self::Arm64 => Machine::Aarch64,
        };
        ensure!(
            file.architecture() == wanted && file.is_little_endian(),
            "{} is built for {:?}, not for {self}: pass programs that are built for {self}",
            program.display(),
            file.architecture()
        );
        Ok(())
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Architecture {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|known| known.name() == text)
            .ok_or_else(|| format!("`{text}` is neither amd64 nor arm64"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_tell_folders_apart() {
        for architecture in Architecture::ALL {
            assert_eq!(architecture.name().parse(), Ok(architecture));
        }
        assert!("aarch64".parse::<Architecture>().is_err());
        assert_eq!(Architecture::Amd64.of("busybox"), "busybox");
        assert_eq!(Architecture::Arm64.of("busybox"), "busybox-arm64");
    }

    #[test]
    fn cargo_is_told_of_a_cross_compiler_where_one_is_needed() {
        let mut cargo = Command::new("cargo");
        Architecture::Amd64.prepare(&mut cargo);
        assert_eq!(cargo.get_envs().count(), 0);
        Architecture::Arm64.prepare(&mut cargo);
        let names: Vec<_> = cargo.get_envs().map(|(name, _)| name).collect();
        for name in [
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER",
            "CC_aarch64_unknown_linux_gnu",
        ] {
            assert!(names.contains(&name.as_ref()), "{names:?}");
        }
    }

    #[test]
    fn a_program_is_of_one_processor() {
        let program = std::env::current_exe().unwrap();
        let (own_is, other) = if cfg!(target_arch = "x86_64") {
            (Architecture::Amd64, Architecture::Arm64)
        } else {
            (Architecture::Arm64, Architecture::Amd64)
        };
        own_is.check(&program).unwrap();
        let error = other.check(&program).unwrap_err().to_string();
        assert!(error.contains("is built for"), "{error}");
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        assert!(own_is.check(&manifest).is_err());
    }
}
