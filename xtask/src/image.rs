//! `cargo xtask image`: the container image, as an OCI layout that knows neither when nor where it was made.
//!
//! One layer on nothing: the programs of [`release`], which are linked statically. No daemon and no builder takes part: an image is an archive and three JSON
//! documents, each named by its SHA-256 (OCI image specification 1.1).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::interrupt::Folder;
use crate::progress::{self, say};
use crate::release::{self, VERSION, sha256};

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// How a program gets into the image: [`release::put`] or [`release::put_here`].
type Put = fn(&Path, &Path, u32) -> Result<()>;
/// Of every file: reproducible.
const CREATED: &str = "1970-01-01T00:00:00Z";
const ARCHITECTURE: &str = "amd64";

/// `cargo xtask image`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask image                                            target/image and target/image.tar
  ctr --namespace k8s.io images import target/image.tar        onto a node, as docker.io/library/plimsoll:VERSION
  skopeo copy oci:target/image docker://REGISTRY/plimsoll:VERSION   to a registry")]
pub(crate) struct ImageArgs {
    /// Where the layout goes; DIR.tar is the same in one file. What an earlier image left there is replaced [default: target/image]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Take the programs from this folder instead of building them (which takes 10 minutes and more)
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

/// Makes the image.
pub(crate) fn run(args: &ImageArgs) -> Result<()> {
    let out = release::out_folder(args.out.as_deref(), "image")?;
    let programs = release::programs(args.programs.as_deref())?;
    let (digest, archive) = write(&programs, &out, release::put)?;
    say(
        "image",
        format_args!(
            "plimsoll:{VERSION} in {} and {}",
            out.display(),
            archive.display()
        ),
    );
    progress::print(&digest);
    Ok(())
}

/// Writes the layout, and beside it the same in one file. Returns the digest of the image's manifest, and that file.
pub(crate) fn write(programs: &[PathBuf], out: &Path, put: Put) -> Result<(String, PathBuf)> {
    let digest = write_layout(programs, out, put)?;
    let archive = out.with_extension("tar");
    let entries = ["blobs", "index.json", "oci-layout"].map(str::to_owned);
    release::archive(out, &entries, &archive)?;
    Ok((digest, archive))
}

/// Writes the layout, and returns the digest of the image's manifest.
fn write_layout(programs: &[PathBuf], out: &Path, put: Put) -> Result<String> {
    let parent = out.parent().context("the layout needs a folder")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let staging = Folder::inside(parent)?;
    let root = staging.path().join("root");
    fs::create_dir(&root)?;
    let mut names: Vec<String> = Vec::new();
    for program in programs {
        put(program, &root, 0o755)?;
        let name = program.file_name().context("a program without a name")?;
        names.push(
            name.to_str()
                .context("a program's name is no text")?
                .to_owned(),
        );
    }
    names.sort();
    let layout = staging.path().join("layout");
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;

    let tar = staging.path().join("layer.tar");
    release::archive(&root, &names, &tar)?;
    let diff_id = sha256(&tar)?;
    release::compress(std::slice::from_ref(&tar))?;
    let layer = blob(&blobs, LAYER, &tar.with_extension("tar.gz"))?;
    let document = |name: &str, kind: &str, document: &Value| {
        let path = staging.path().join(name);
        fs::write(&path, document.to_string())
            .with_context(|| format!("cannot write {}", path.display()))?;
        blob(&blobs, kind, &path)
    };
    let config = document(
        "config",
        CONFIG,
        &json!({
            "created": CREATED,
            "architecture": ARCHITECTURE,
            "os": "linux",
            "config": {
                "Entrypoint": ["/plimsoll"],
                "Labels": {
                    "org.opencontainers.image.title": "plimsoll",
                    "org.opencontainers.image.version": VERSION,
                    "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
                },
            },
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff_id}")]},
            "history": [{"created": CREATED, "created_by": "cargo xtask image"}],
        }),
    )?;
    let mut manifest = document(
        "manifest",
        MANIFEST,
        &json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": [layer],
        }),
    )?;
    let digest = manifest["digest"].as_str().unwrap_or_default().to_owned();
    manifest["platform"] = json!({"architecture": ARCHITECTURE, "os": "linux"});
    manifest["annotations"] = json!({
        "org.opencontainers.image.ref.name": VERSION,
        // A kubelet asks for `plimsoll:VERSION` by its whole name, and containerd makes a name no longer than it came.
        "io.containerd.image.name": format!("docker.io/library/plimsoll:{VERSION}"),
    });
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest]});
    fs::write(layout.join("index.json"), index.to_string())?;
    fs::write(
        layout.join("oci-layout"),
        r#"{"imageLayoutVersion":"1.0.0"}"#,
    )?;
    // Whole or not at all.
    if out.exists() {
        fs::remove_dir_all(out).with_context(|| format!("cannot replace {}", out.display()))?;
    }
    fs::rename(&layout, out).with_context(|| format!("cannot make {}", out.display()))?;
    Ok(digest)
}

/// Puts a file among the blobs, under its digest; its descriptor.
fn blob(blobs: &Path, kind: &str, file: &Path) -> Result<Value> {
    let digest = sha256(file)?;
    let size = fs::metadata(file)?.len();
    fs::rename(file, blobs.join(&digest))
        .with_context(|| format!("cannot move {}", file.display()))?;
    Ok(json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": size}))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::process::output_of;

    fn made() -> (tempfile::TempDir, PathBuf, String) {
        let dir = tempfile::tempdir().unwrap();
        let programs = ["b", "a"].map(|name| {
            let path = dir.path().join(name);
            fs::write(&path, name.repeat(1000)).unwrap();
            path
        });
        let out = dir.path().join("image");
        let digest = write_layout(&programs, &out, release::put).unwrap();
        (dir, out, digest)
    }

    fn document(out: &Path, digest: &Value) -> Value {
        let name = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
        let path = out.join("blobs/sha256").join(name);
        assert_eq!(sha256(&path).unwrap(), name);
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn each_blob_is_what_its_name_says() {
        let (dir, out, digest) = made();
        let index: Value =
            serde_json::from_str(&fs::read_to_string(out.join("index.json")).unwrap()).unwrap();
        assert_eq!(index["manifests"][0]["digest"], *digest);
        let manifest = document(&out, &index["manifests"][0]["digest"]);
        let config = document(&out, &manifest["config"]["digest"]);
        let layer = manifest["layers"][0]["digest"]
            .as_str()
            .unwrap()
            .replace("sha256:", "");
        let layer = out.join("blobs/sha256").join(layer);
        assert_eq!(
            fs::metadata(&layer).unwrap().len(),
            manifest["layers"][0]["size"].as_u64().unwrap()
        );
        let tar = dir.path().join("layer.tar");
        let unzip = format!(
            "gzip --decompress --stdout {} > {}",
            layer.display(),
            tar.display()
        );
        output_of(Command::new("sh").args(["-c", &unzip]), "").unwrap();
        assert_eq!(
            config["rootfs"]["diff_ids"][0],
            format!("sha256:{}", sha256(&tar).unwrap())
        );
        let listed = output_of(Command::new("tar").arg("-tvf").arg(&tar), "").unwrap();
        let lines: Vec<&str> = listed.lines().collect();
        assert_eq!(lines.len(), 2, "{listed}");
        assert!(
            lines[0].starts_with("-rwxr-xr-x 0/0") && lines[0].ends_with("1970-01-01 00:00 a"),
            "{listed}"
        );
    }

    /// containerd keeps the name that an image came with, and is asked by a kubelet for the whole one of what a pod names.
    #[test]
    fn the_image_has_the_name_that_a_kubelet_asks_for() {
        let (_dir, out, _) = made();
        let index = fs::read_to_string(out.join("index.json")).unwrap();
        let index: Value = serde_json::from_str(&index).unwrap();
        let name = &index["manifests"][0]["annotations"]["io.containerd.image.name"];
        assert_eq!(*name, format!("docker.io/library/plimsoll:{VERSION}"));
        let base = include_str!("../../deploy/base/kustomization.yaml");
        let daemon_set = include_str!("../../deploy/base/daemonset.yaml");
        assert!(base.contains(&format!("- name: plimsoll\n    newTag: {VERSION}")));
        assert!(daemon_set.contains("image: plimsoll\n"));
    }

    #[test]
    fn the_same_programs_give_the_same_image_anywhere_and_at_any_time() {
        let (_first, _, first) = made();
        std::thread::sleep(std::time::Duration::from_millis(1100));
        let (_second, _, second) = made();
        assert_eq!(first, second);
    }
}
