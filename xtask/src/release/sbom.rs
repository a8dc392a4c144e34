//! The bill of materials: what the programs and the BPF objects are made of, in CycloneDX 1.5 JSON.
//!
//! `cargo tree` says which crates take part in a build of these packages, with the features that this build has; the
//! lock files have their checksums. Same sources and compilers, same bytes: no time, no random serial number.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// A package by name and version.
pub(super) type Key = (String, String);

/// One package that takes part.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Component {
    license: String,
    /// Whether code of it is in a program, rather than in what builds one.
    is_linked: bool,
    depends_on: BTreeSet<Key>,
}

/// A file that is embedded, and its SHA-256.
pub(super) struct Embedded {
    pub(super) name: String,
    pub(super) sha256: String,
}

/// Everything, as it is collected.
#[derive(Debug, Default)]
pub(super) struct Materials {
    components: BTreeMap<Key, Component>,
    checksums: BTreeMap<Key, String>,
}

impl Materials {
    /// Takes in what `cargo tree --prefix depth --format '|{p}|{l}'` says, of linked packages only or of all.
    pub(super) fn take_tree(&mut self, tree: &str, is_linked: bool) -> Result<()> {
        let mut above: Vec<Key> = Vec::new();
        for line in tree.lines().filter(|line| !line.is_empty()) {
            let odd =
                || format!("cargo tree says {line:?}, which is not depth, package and licence");
            let mut fields = line.split('|');
            let depth: usize = fields
                .next()
                .and_then(|it| it.parse().ok())
                .with_context(odd)?;
            let mut package = fields.next().with_context(odd)?.split(' ');
            let name = package.next().with_context(odd)?;
            let version = package.next().and_then(|it| it.strip_prefix('v'));
            let key = (name.to_owned(), version.with_context(odd)?.to_owned());
            let license = fields.next().with_context(odd)?.trim_end_matches(" (*)");
            let component = self.components.entry(key.clone()).or_default();
            component.license = license.to_owned();
            component.is_linked |= is_linked;
            above.truncate(depth);
            if let Some(parent) = above.last()
                && let Some(parent) = self.components.get_mut(parent)
            {
                parent.depends_on.insert(key.clone());
            }
            above.push(key);
        }
        Ok(())
    }

    /// Takes in the checksums of a `Cargo.lock`.
    pub(super) fn take_lock(&mut self, lock: &str) {
        let (mut name, mut version) = ("", "");
        for line in lock.lines() {
            let Some((field, value)) = line.split_once(" = ") else {
                continue;
            };
            let value = value.trim_matches('"');
            match field {
                "name" => name = value,
                "version" => version = value,
                "checksum" => {
                    let key = (name.to_owned(), version.to_owned());
                    self.checksums.insert(key, value.to_owned());
                }
                _ => {}
            }
        }
    }

    /// The document. `compilers` are names and versions of what has built the programs.
    pub(super) fn document(
        &self,
        version: &str,
        embedded: &[Embedded],
        compilers: &[(&str, String)],
    ) -> Result<String> {
        let files = embedded.iter().map(|file| {
            json!({
                "type": "file",
                "bom-ref": file.name,
                "name": file.name,
                "hashes": [{"alg": "SHA-256", "content": file.sha256}],
            })
        });
        let packages = self.components.iter().map(|(key, it)| self.entry(key, it));
        let graph = self.components.iter().map(|(key, component)| {
            let below: Vec<String> = component.depends_on.iter().map(reference).collect();
            json!({"ref": reference(key), "dependsOn": below})
        });
        let compilers = compilers
            .iter()
            .map(|(name, version)| json!({"name": format!("plimsoll:{name}"), "value": version}));
        let document = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {
                "component": {
                    "type": "application",
                    "bom-ref": "plimsoll-release",
                    "name": "plimsoll",
                    "version": version,
                    "licenses": [{"expression": "Apache-2.0 OR MIT"}],
                },
                "properties": compilers.collect::<Vec<_>>(),
            },
            "components": files.chain(packages).collect::<Vec<_>>(),
            "dependencies": graph.collect::<Vec<_>>(),
        });
        Ok(serde_json::to_string_pretty(&document)? + "\n")
    }

    fn entry(&self, key: &Key, component: &Component) -> Value {
        let (name, version) = key;
        let mut entry = json!({
            "type": "library",
            "bom-ref": reference(key),
            "name": name,
            "version": version,
            "purl": format!("pkg:cargo/{name}@{version}"),
            // Of what only builds: "excluded from what runs".
            "scope": if component.is_linked { "required" } else { "excluded" },
        });
        if !component.license.is_empty() {
            entry["licenses"] = json!([{"expression": spdx(&component.license)}]);
        }
        // Packages of this repository have none.
        if let Some(checksum) = self.checksums.get(key) {
            entry["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        entry
    }
}

/// Cargo once wrote `A/B` for `A OR B`.
fn spdx(license: &str) -> String {
    license.replace('/', " OR ")
}

fn reference((name, version): &Key) -> String {
    format!("{name}@{version}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "0|plimsoll v0.1.0 (/w/agent)|Apache-2.0 OR MIT\n\
                        1|serde v1.0.2|MIT/Apache-2.0\n\
                        2|serde_derive v1.0.2 (proc-macro)|MIT\n\
                        1|aya v0.14.0|MIT\n\
                        2|serde v1.0.2|MIT/Apache-2.0 (*)\n\n\
                        0|plimsoll-trace v0.1.0 (/w/agent/trace)|MIT\n\
                        1|plimsoll v0.1.0 (/w/agent)|Apache-2.0 OR MIT (*)\n";
    const LINKED: &str = "0|plimsoll v0.1.0 (/w/agent)|Apache-2.0 OR MIT\n1|serde v1.0.2|MIT\n";
    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"serde\"\nversion = \"1.0.2\"\n\
                        source = \"registry\"\nchecksum = \"abcd\"\ndependencies = [\n \"x\",\n]\n";

    fn document() -> Value {
        let mut materials = Materials::default();
        materials.take_tree(TREE, false).unwrap();
        materials.take_tree(LINKED, true).unwrap();
        materials.take_lock(LOCK);
        let embedded = [Embedded {
            name: "plimsoll.bpf.o".to_owned(),
            sha256: "e3b0".to_owned(),
        }];
        let compilers = [("rustc", "rustc 1.95.0".to_owned())];
        let text = materials.document("0.1.0", &embedded, &compilers).unwrap();
        assert!(!text.contains("/w/"), "a path of this machine: {text}");
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn what_is_linked_and_what_builds() {
        let document = document();
        let components = document["components"].as_array().unwrap();
        let of = |name: &str| components.iter().find(|it| it["name"] == name).unwrap();
        assert_eq!(components.len(), 6);
        assert_eq!(of("plimsoll.bpf.o")["hashes"][0]["content"], "e3b0");
        assert_eq!(of("serde")["scope"], "required");
        assert_eq!(of("serde")["hashes"][0]["content"], "abcd");
        assert_eq!(of("serde_derive")["scope"], "excluded");
        assert_eq!(of("plimsoll")["hashes"], Value::Null);
        assert_eq!(of("aya")["purl"], "pkg:cargo/aya@0.14.0");
    }

    #[test]
    fn who_depends_on_whom() {
        let document = document();
        let graph = document["dependencies"].as_array().unwrap();
        let below = |name: &str| &graph.iter().find(|it| it["ref"] == name).unwrap()["dependsOn"];
        assert_eq!(
            *below("plimsoll@0.1.0"),
            json!(["aya@0.14.0", "serde@1.0.2"])
        );
        assert_eq!(*below("aya@0.14.0"), json!(["serde@1.0.2"]));
        assert_eq!(*below("serde@1.0.2"), json!(["serde_derive@1.0.2"]));
    }

    #[test]
    fn a_licence_is_an_spdx_expression() {
        assert_eq!(spdx("MIT/Apache-2.0"), "MIT OR Apache-2.0");
        assert_eq!(spdx("MIT OR Apache-2.0"), "MIT OR Apache-2.0");
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        assert!(Materials::default().take_tree("warning: x", true).is_err());
    }
}
