//! `cargo xtask image`: the container image for every architecture, as an OCI layout that knows neither when nor where
//! it was made.
//!
//! For each architecture one layer on nothing: the programs of [`release`], which are linked statically. No daemon and
//! no builder takes part: an image is an archive and three JSON documents, each named by its SHA-256 (OCI image
//! specification 1.1). `index.json` names one image index, under the image's name, and that one a manifest for each
//! platform: a node that pulls the image gets its own.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::architecture::Architecture;
use crate::interrupt::Folder;
use crate::progress::{self, say};
use crate::release::{self, VERSION, sha256};

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// [`release::put`], or [`release::put_here`].
type Put = fn(&Path, &Path, u32) -> Result<()>;
/// Of every file: reproducible.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// `cargo xtask image`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask image                                            target/image and target/image.tar, for amd64 and arm64
  cargo xtask image --arch arm64                               for arm64 alone
  ctr --namespace k8s.io images import target/image.tar        onto a node, as plimsoll:VERSION
  skopeo copy --all oci:target/image docker://REGISTRY/plimsoll:VERSION   to a registry")]
pub(crate) struct ImageArgs {
    /// For which processors (repeatable): amd64, arm64 [default: both]
    #[arg(long, value_name = "ARCH")]
    arch: Vec<Architecture>,
    /// Where the layout goes; DIR.tar is the same in one file. What an earlier image left there is replaced
    /// [default: target/image]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Take the programs from DIR/ARCH, or from DIR where that is not there, instead of building them (which takes 10
    /// minutes and more for each)
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

impl ImageArgs {
    /// Each once, and always in the same order.
    fn architectures(&self) -> Vec<Architecture> {
        let mut wanted = match self.arch.as_slice() {
            [] => Architecture::ALL.to_vec(),
            some => some.to_vec(),
        };
        wanted.sort();
        wanted.dedup();
        wanted
    }
}

/// The programs of one architecture.
pub(crate) struct Part {
    pub(crate) architecture: Architecture,
    pub(crate) programs: Vec<PathBuf>,
    /// How each gets into the image.
    pub(crate) put: Put,
}

/// Makes the image.
pub(crate) fn run(args: &ImageArgs) -> Result<()> {
    let out = release::out_folder(args.out.as_deref(), "image")?;
    let mut parts = Vec::new();
    for architecture in args.architectures() {
        parts.push(Part {
            architecture,
            programs: release::programs(args.programs.as_deref(), architecture)?,
            put: release::put,
        });
    }
    let (digest, archive) = write(&parts, &out)?;
    let names: Vec<&str> = parts.iter().map(|part| part.architecture.name()).collect();
    say(
        "image",
        format_args!(
            "plimsoll:{VERSION} for {} in {} and {}",
            names.join(" and "),
            out.display(),
            archive.display()
        ),
    );
    progress::print(&digest);
    Ok(())
}

/// Writes the layout, and beside it the same in one file. Returns the digest of the image's index, and that file.
pub(crate) fn write(parts: &[Part], out: &Path) -> Result<(String, PathBuf)> {
    let digest = write_layout(parts, out)?;
    let archive = out.with_extension("tar");
    let entries = ["blobs", "index.json", "oci-layout"].map(str::to_owned);
    release::archive(out, &entries, &archive)?;
    Ok((digest, archive))
}

/// A kubelet asks for `plimsoll:VERSION` by its whole name, and containerd makes a name no longer than it came. What a
/// name without a registry stands for is fixed in the grammar of image names.
fn whole_name() -> String {
    let registry = ["docker", "io"].join(".");
    format!("{registry}/library/plimsoll:{VERSION}")
}

/// Writes the layout, and returns the digest of the image's index.
fn write_layout(parts: &[Part], out: &Path) -> Result<String> {
    let parent = out.parent().context("the layout needs a folder")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let staging = Folder::inside(parent)?;
    let layout = staging.path().join("layout");
    let blobs = Blobs {
        staging: staging.path(),
        folder: layout.join("blobs/sha256"),
    };
    fs::create_dir_all(&blobs.folder)?;
    let manifests = parts
        .iter()
        .map(|part| blobs.manifest(part))
        .collect::<Result<Vec<Value>>>()?;
    let mut image = blobs.document(
        INDEX,
        &json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}),
    )?;
    let Some(digest) = image["digest"].as_str().map(str::to_owned) else {
        bail!("a descriptor without a digest: {image}");
    };
    image["annotations"] = json!({
        "org.opencontainers.image.ref.name": VERSION,
        "io.containerd.image.name": whole_name(),
    });
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [image]});
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

/// What a layout is made of: files, each under its digest.
struct Blobs<'a> {
    /// For files before their digest is known.
    staging: &'a Path,
    folder: PathBuf,
}

impl Blobs<'_> {
    /// The manifest of one architecture with all that it names; its descriptor, with the platform.
    fn manifest(&self, part: &Part) -> Result<Value> {
        let architecture = part.architecture.name();
        let root = self.staging.join(format!("root-{architecture}"));
        fs::create_dir(&root)?;
        let mut names: Vec<String> = Vec::new();
        for program in &part.programs {
            (part.put)(program, &root, 0o755)?;
            let name = program.file_name().context("a program without a name")?;
            names.push(
                name.to_str()
                    .context("a program's name is no text")?
                    .to_owned(),
            );
        }
        names.sort();
        let tar = self.staging.join("layer.tar");
        release::archive(&root, &names, &tar)?;
        let diff_id = sha256(&tar)?;
        release::compress(std::slice::from_ref(&tar))?;
        let layer = self.add(LAYER, &tar.with_extension("tar.gz"))?;
        let config = self.document(
            CONFIG,
            &json!({
                "created": CREATED,
                "architecture": architecture,
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
        let mut manifest = self.document(
            MANIFEST,
            &json!({
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": config,
                "layers": [layer],
            }),
        )?;
        manifest["platform"] = json!({"architecture": architecture, "os": "linux"});
        Ok(manifest)
    }

    /// Adds a document; its descriptor.
    fn document(&self, kind: &str, document: &Value) -> Result<Value> {
        let path = self.staging.join("document");
        fs::write(&path, document.to_string())
            .with_context(|| format!("cannot write {}", path.display()))?;
        self.add(kind, &path)
    }

    /// Adds a file, which is moved; its descriptor.
    fn add(&self, kind: &str, file: &Path) -> Result<Value> {
        let digest = sha256(file)?;
        let size = fs::metadata(file)?.len();
        fs::rename(file, self.folder.join(&digest))
            .with_context(|| format!("cannot move {}", file.display()))?;
        Ok(json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": size}))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::process::output_of;

    fn made() -> (tempfile::TempDir, PathBuf, String) {
        let dir = tempfile::tempdir().unwrap();
        let parts = Architecture::ALL.map(|architecture| {
            let folder = dir.path().join(architecture.name());
            fs::create_dir(&folder).unwrap();
            let programs = ["b", "a"].map(|name| {
                let path = folder.join(name);
                fs::write(&path, format!("{name}{architecture}").repeat(1000)).unwrap();
                path
            });
            Part {
                architecture,
                programs: programs.into(),
                put: release::put,
            }
        });
        let out = dir.path().join("image");
        let digest = write_layout(&parts, &out).unwrap();
        (dir, out, digest)
    }

    fn blob(out: &Path, descriptor: &Value) -> PathBuf {
        let name = descriptor["digest"].as_str().unwrap();
        let name = name.strip_prefix("sha256:").unwrap();
        let path = out.join("blobs/sha256").join(name);
        assert_eq!(sha256(&path).unwrap(), name);
        let bytes = fs::metadata(&path).unwrap().len();
        assert_eq!(descriptor["size"].as_u64(), Some(bytes));
        path
    }

    fn read(path: &Path) -> Value {
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn the_index_has_a_manifest_for_each_platform_under_one_name() {
        let (_dir, out, digest) = made();
        let top = read(&out.join("index.json"));
        let named = top["manifests"].as_array().unwrap();
        // Two of one name would leave it open which is meant.
        assert_eq!(named.len(), 1);
        assert_eq!(named[0]["digest"], *digest);
        assert_eq!(named[0]["mediaType"], INDEX);
        let annotations = &named[0]["annotations"];
        assert_eq!(annotations["org.opencontainers.image.ref.name"], VERSION);
        let index = read(&blob(&out, &named[0]));
        let mut layers = Vec::new();
        let mut platforms = Vec::new();
        for descriptor in index["manifests"].as_array().unwrap() {
            assert_eq!(descriptor["mediaType"], MANIFEST);
            let manifest = read(&blob(&out, descriptor));
            let config = read(&blob(&out, &manifest["config"]));
            // What a node chooses by, and what a runtime then reads.
            for member in ["architecture", "os"] {
                assert_eq!(descriptor["platform"][member], config[member]);
            }
            platforms.push(config["architecture"].as_str().unwrap().to_owned());
            layers.push(blob(&out, &manifest["layers"][0]));
        }
        assert_eq!(platforms, ["amd64", "arm64"]);
        assert_ne!(layers[0], layers[1]);
        // Two times layer, configuration and manifest, and the index.
        let blobs = fs::read_dir(out.join("blobs/sha256")).unwrap();
        assert_eq!(blobs.count(), 7);
    }

    #[test]
    fn each_layer_is_what_its_configuration_says() {
        let (dir, out, _) = made();
        let top = read(&out.join("index.json"));
        let index = read(&blob(&out, &top["manifests"][0]));
        for descriptor in index["manifests"].as_array().unwrap() {
            let manifest = read(&blob(&out, descriptor));
            let config = read(&blob(&out, &manifest["config"]));
            let layer = blob(&out, &manifest["layers"][0]);
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
    }

    /// containerd keeps the name that an image came with, and is asked by a kubelet for the whole one of what a pod
    /// names.
    #[test]
    fn the_image_has_the_name_that_a_kubelet_asks_for() {
        let (_dir, out, _) = made();
        let index = fs::read_to_string(out.join("index.json")).unwrap();
        let index: Value = serde_json::from_str(&index).unwrap();
        let name = &index["manifests"][0]["annotations"]["io.containerd.image.name"];
        assert_eq!(*name, whole_name());
        assert!(whole_name().ends_with(&format!("/library/plimsoll:{VERSION}")));
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

    #[test]
    fn both_architectures_are_made_unless_one_is_asked_for() {
        let args = |arch: &[Architecture]| ImageArgs {
            arch: arch.to_vec(),
            out: None,
            programs: None,
        };
        let (amd64, arm64) = (Architecture::Amd64, Architecture::Arm64);
        assert_eq!(args(&[]).architectures(), [amd64, arm64]);
        assert_eq!(args(&[arm64]).architectures(), [arm64]);
        assert_eq!(args(&[arm64, amd64, arm64]).architectures(), [amd64, arm64]);
    }
}
