//! Kubernetes 1.20.2 from Debian's source, and Debian's etcd: the newest *server* that Debian has, and the oldest that
//! Plimsoll works with.
//!
//! The server is optimized: its tests then take two CPU minutes less, and to build it half a minute more. Without
//! debug information, and with garbage that the compiler collects seldom, that is won back. Two repairs: the file with
//! the OpenAPI definitions is generated, not shipped; and the vendored `reflect2` calls `reflect.mapiterinit` in the
//! form before Go 1.18, so that every map that is written as JSON would crash at random. The tags `providerless` and
//! `dockerless` leave out the clients of clouds and of docker. What was built when it is interrupted is built on.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::apt::{self, Archive, Archived};
use crate::architecture::Architecture;
use crate::interrupt::Folder;
use crate::process;
use crate::process::output::ProcessOutput;
use crate::progress::{Progress, Step};

/// Percent of what lives, at which Go's compiler collects what does not: at 100, its default, that is a quarter of its
/// time.
const GARBAGE_COLLECTED_AT: &str = "400";

const MODULE: &str = "k8s.io/kubernetes";
const VENDOR: &str = "k8s.io/kubernetes/vendor/k8s.io";
const OPENAPI: &str = "pkg/generated/openapi/zz_generated.openapi.go";
/// Marks a package whose types belong to the API's description.
const MARK: &str = "+k8s:openapi-gen=";
/// Where such packages are, beside `staging/src/k8s.io`.
const ROOTS: [&str; 3] = ["pkg", "cmd", "plugin"];
const STAGED: [&str; 15] = [
    "api",
    "apiextensions-apiserver",
    "apimachinery",
    "apiserver",
    "client-go",
    "cloud-provider",
    "cluster-bootstrap",
    "component-base",
    "controller-manager",
    "kube-aggregator",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubelet",
    "metrics",
];
const REFLECT: &str = "vendor/github.com/modern-go/reflect2/unsafe_link.go";
const OLD_CALL: &str = "//go:noescape
//go:linkname mapiterinit reflect.mapiterinit
func mapiterinit(rtype unsafe.Pointer, m unsafe.Pointer) *hiter
";
const NEW_CALL: &str = "//go:noescape
//go:linkname mapiterinit118 reflect.mapiterinit
func mapiterinit118(rtype unsafe.Pointer, m unsafe.Pointer, it *hiterWhole)

type hiterWhole struct {
	key, elem, t, h, buckets, bptr, overflow, oldoverflow unsafe.Pointer
	startBucket                                           uintptr
	offset                                                uint8
	wrapped                                               bool
	b, i                                                  uint8
	bucket, checkBucket                                   uintptr
	spare                                                 [4]uintptr
}

//go:noinline
func mapiterinit(rtype unsafe.Pointer, m unsafe.Pointer) *hiter {
	it := new(hiterWhole)
	mapiterinit118(rtype, m, it)
	return (*hiter)(unsafe.Pointer(it))
}
";

/// Builds these programs into `folder`, with `cache` for what is needed meanwhile. The caller holds the cache's lock.
pub(super) fn into(cache: &Path, folder: &Path, programs: &[&str]) -> Result<()> {
    let work = Work(cache.join("building"));
    work.fetch(cache)?;
    work.repair_reflect2()?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for &name in programs {
        let mut built = work.0.join("etcd/usr/bin/etcd");
        if name != "etcd" {
            if name == "kube-apiserver" {
                work.generate_openapi()?;
            }
            built = work.0.join(name);
            work.build(name, &format!("{MODULE}/cmd/{name}"), &built)?;
        }
        // Whole or not there: renamed last.
        let copy = Folder::inside(cache)?;
        let partial = copy.path().join(name);
        fs::copy(&built, &partial).with_context(|| format!("cannot copy {}", built.display()))?;
        let whole = folder.join(name);
        fs::rename(&partial, &whole)
            .with_context(|| format!("cannot write {}", whole.display()))?;
    }
    fs::remove_dir_all(&work.0).with_context(|| format!("cannot remove {}", work.0.display()))
}

/// Nothing can be built any more: no other package has this source.
#[derive(Debug)]
pub(crate) struct SourceDropped;

impl std::fmt::Display for SourceDropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "Debian's archive has dropped the source of Kubernetes 1.20.2; with etcd and kube-apiserver of another version in a folder DIR: \
             `cargo xtask kubernetes test --binaries DIR`",
        )
    }
}

impl std::error::Error for SourceDropped {}

/// The folder that everything is built in.
struct Work(PathBuf);

impl Work {
    fn source(&self) -> PathBuf {
        self.0.join("go-path/src").join(MODULE)
    }

    /// Source, Go and etcd.
    fn fetch(&self, cache: &Path) -> Result<()> {
        let whole = self.0.join("fetched");
        if whole.exists() {
            return Ok(());
        }
        let _none = fs::remove_dir_all(&self.0);
        let source = self.source();
        fs::create_dir_all(&source)
            .with_context(|| format!("cannot create {}", source.display()))?;
        let archive = Archive::of_machine()?;
        for pinned in apt::pinned("kubernetes-source") {
            if archive.unpack(&pinned, cache, &source)? != Archived::Unpacked {
                return Err(SourceDropped.into());
            }
        }
        for (purpose, packages) in [
            ("kubernetes-go", &["golang-1.19-go", "golang-1.19-src"][..]),
            ("kubernetes-etcd", &["etcd-server"]),
        ] {
            let into = self.0.join(purpose.trim_start_matches("kubernetes-"));
            apt::unpack_pinned(
                cache,
                ("bookworm", Architecture::Amd64),
                purpose,
                &into,
                |_| Ok(packages.iter().map(|&name| name.to_owned()).collect()),
            )?;
        }
        fs::write(&whole, "").with_context(|| format!("cannot write {}", whole.display()))
    }

    fn repair_reflect2(&self) -> Result<()> {
        let path = self.source().join(REFLECT);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if text.contains("mapiterinit118") {
            return Ok(());
        }
        ensure!(
            text.contains(OLD_CALL),
            "{} is of another version",
            path.display()
        );
        let text = text.replace(OLD_CALL, NEW_CALL);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    fn go(&self) -> Command {
        let root = self.0.join("go/usr/lib/go-1.19");
        let mut command = Command::new(root.join("bin/go"));
        command
            .current_dir(self.source())
            .env("PWD", self.source())
            .env("GOROOT", root)
            .env("GOPATH", self.0.join("go-path"))
            .env("GOCACHE", self.0.join("go-cache"))
            .env("GO111MODULE", "off")
            .env("GOFLAGS", "")
            .env("GOGC", GARBAGE_COLLECTED_AT)
            .env("CGO_ENABLED", "0");
        command
    }

    fn build(&self, name: &str, package: &str, into: &Path) -> Result<()> {
        let step = Step::begin(
            "kubernetes",
            format_args!("building {name} of Kubernetes {}", super::VERSION),
        );
        let version = format!(
            "-s -w -X {VENDOR}/component-base/version.gitVersion=v{version} -X {VENDOR}/component-base/version.gitMajor=1 \
             -X {VENDOR}/component-base/version.gitMinor=20 -X {VENDOR}/client-go/pkg/version.gitVersion=v{version}",
            version = super::VERSION
        );
        let mut command = self.go();
        command.args([
            "build",
            "-v",
            "-trimpath",
            "-gcflags",
            "all=-dwarf=false",
            "-tags",
            "providerless dockerless",
            "-ldflags",
            &version,
            "-o",
        ]);
        command.arg(into).arg(package);
        let mut done = 0;
        let ended = ProcessOutput::run(&mut command, |line| {
            done += 1;
            step.at(Progress {
                done,
                total: None,
                unit: "packages",
                now: line.to_owned(),
            });
        })?;
        process::success(
            &command,
            &ended,
            "run `cargo xtask kubernetes up` again: what is built is kept",
        )?;
        step.done();
        Ok(())
    }

    fn generate_openapi(&self) -> Result<()> {
        let source = self.source();
        let file = source.join(OPENAPI);
        if file.exists() {
            return Ok(());
        }
        let generator = self.0.join("openapi-gen");
        let package = format!("{VENDOR}/kube-openapi/cmd/openapi-gen");
        self.build("openapi-gen", &package, &generator)?;
        let step = Step::begin("kubernetes", "generating the API's description");
        let mut packages = BTreeSet::new();
        for root in ROOTS {
            marked(
                &source.join(root),
                &format!("{MODULE}/{root}"),
                &mut packages,
            )?;
        }
        for name in STAGED {
            marked(
                &source.join("staging/src/k8s.io").join(name),
                &format!("{VENDOR}/{name}"),
                &mut packages,
            )?;
        }
        ensure!(
            !packages.is_empty(),
            "{} has no package with {MARK}",
            source.display()
        );
        let packages: Vec<String> = packages.into_iter().collect();
        let out = self.0.join("generated");
        // The generator asks `go` where packages are.
        let go = self.go();
        let mut command = Command::new(&generator);
        command.current_dir(&source);
        for (name, value) in go.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let with_go = std::iter::once(self.0.join("go/usr/lib/go-1.19/bin"))
            .chain(std::env::split_paths(&path));
        command.env(
            "PATH",
            std::env::join_paths(with_go).context("PATH cannot be read")?,
        );
        command
            .args([
                "--logtostderr",
                "-O",
                "zz_generated.openapi",
                "-h",
                "hack/boilerplate/boilerplate.generatego.txt",
                "-i",
            ])
            .arg(packages.join(","))
            .args(["-p", &format!("{MODULE}/pkg/generated/openapi"), "-r"])
            .arg(self.0.join("violations"))
            .arg("--output-base")
            .arg(&out);
        process::output_of(&mut command, "run `cargo xtask kubernetes up` again")?;
        let generated = out.join(MODULE).join(OPENAPI);
        // Whole or not there: renamed last.
        let partial = file.with_extension("partial");
        fs::copy(&generated, &partial)
            .with_context(|| format!("cannot copy {}", generated.display()))?;
        fs::rename(&partial, &file).with_context(|| format!("cannot write {}", file.display()))?;
        step.done();
        Ok(())
    }
}

/// Adds the packages below `folder` that have the mark; `package` is the name of `folder` as one.
fn marked(folder: &Path, package: &str, packages: &mut BTreeSet<String>) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else {
        bail!(
            "{} is not there: the source is of another version",
            folder.display()
        );
    };
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", folder.display()))?;
        let (path, name) = (
            entry.path(),
            entry.file_name().to_string_lossy().into_owned(),
        );
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if name != "testdata" {
                marked(&path, &format!("{package}/{name}"), packages)?;
            }
            continue;
        }
        let is_source =
            name.ends_with(".go") && !name.ends_with("_test.go") && !name.contains("zz_generated");
        if is_source && fs::read_to_string(&path).is_ok_and(|text| text.contains(MARK)) {
            packages.insert(package.to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_with_the_mark_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/doc.go", "// +k8s:openapi-gen=true\npackage a");
        write("a/b/types.go", "package b");
        write("a/b/c/types.go", "// +k8s:openapi-gen=true");
        write("a/d/zz_generated.x.go", MARK);
        write("a/e/x_test.go", MARK);
        write("a/testdata/x.go", MARK);
        let mut found = BTreeSet::new();
        marked(folder.path(), "m", &mut found).unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["m/a", "m/a/b/c"]);
    }

    #[test]
    fn what_is_built_is_pinned() {
        for (purpose, count) in [
            ("kubernetes-source", 1),
            ("kubernetes-go", 2),
            ("kubernetes-etcd", 1),
        ] {
            assert_eq!(apt::pinned(purpose).len(), count, "{purpose}");
        }
    }
}
