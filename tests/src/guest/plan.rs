//! What `plimsoll place` says of this machine, and where processes really are: two things that must be the same.
//!
//! The plan is made as a person makes it: `plimsoll topology --output json` describes the machine, and `plimsoll place`
//! reads that file, the configuration of the scene and the manifests. Where a process is, is the kernel's word:
//! `Cpus_allowed_list` and `Mems_allowed_list` of `/proc/PID/status`, and for the pages that it has got
//! `/proc/PID/numa_maps`.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, ensure};
use plimsoll_core::explain::{ContainerPlacement, PlacementExplanation};
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::numa_mask::NumaMask;

use super::node::{Node, Running};
use super::pod::Pod;
use super::process::program;

/// Exit status of `plimsoll place` when a pod is refused: the rest is placed.
const SOME_REFUSED: i32 = 3;
/// A mapping with fewer pages is not the memory that a hog was told to take.
const HOG_PAGES_MIN: u64 = 1024;

/// Where everybody is to be.
#[derive(Debug)]
pub struct Plan(PlacementExplanation);

impl Plan {
    /// For these pods, applied in this order, under the scene's configuration.
    ///
    /// # Errors
    /// `plimsoll topology` or `plimsoll place` fails.
    pub fn of(node: &Node, pods: &[&Pod]) -> anyhow::Result<Self> {
        let machine = node.directory.join("machine.json");
        fs::write(&machine, answer(&["topology", "--output", "json"], &[])?)?;
        let manifests: Vec<String> = pods.iter().map(|pod| pod.manifest()).collect();
        let file = node.directory.join("planned.yaml");
        fs::write(&file, manifests.join("---\n"))?;
        let [file, machine, config] =
            [file, machine, node.configuration()].map(|path| path.to_string_lossy().into_owned());
        let told = answer(
            &[
                "place",
                "-f",
                &file,
                "--machine",
                &machine,
                "--config",
                &config,
                "--output",
                "json",
            ],
            &[SOME_REFUSED],
        )?;
        serde_json::from_slice(&told)
            .map(Self)
            .context("reading a plan")
    }

    /// Where a pod's container is to be; `None` if the pod is refused.
    ///
    /// # Errors
    /// The pod was not planned for.
    pub fn container(&self, pod: &Pod) -> anyhow::Result<Option<&ContainerPlacement>> {
        let name = pod.full_name();
        let own = self.0.pods.iter().find(|own| own.pod == name);
        let own = own.with_context(|| format!("{name} is not in the plan"))?;
        if own.refused.is_some() {
            return Ok(None);
        }
        own.containers
            .first()
            .map(Some)
            .context("a pod without containers")
    }

    /// A pod's CPUs, or those of the shared pool.
    ///
    /// # Errors
    /// The pod was not planned for, or is refused.
    pub fn cpus(&self, pod: &Pod) -> anyhow::Result<CpuSet> {
        let own = self.container(pod)?.and_then(|own| own.cpus);
        own.with_context(|| format!("{} is refused", pod.full_name()))
    }

    /// CPUs of whoever has none of its own.
    #[must_use]
    pub fn shared_pool(&self) -> CpuSet {
        self.0.shared_pool
    }
}

/// What a command prints.
fn answer(arguments: &[&str], also: &[i32]) -> anyhow::Result<Vec<u8>> {
    let command = format!("plimsoll {}", arguments.join(" "));
    let output = Command::new(program("plimsoll"))
        .args(arguments)
        .output()
        .with_context(|| command.clone())?;
    let status = output.status.code();
    ensure!(
        status == Some(0) || status.is_some_and(|status| also.contains(&status)),
        "{command} ended with {status:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}

/// Where a process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The CPUs that it may run on.
    pub cpus: CpuSet,
    /// The NUMA nodes that its memory may come from.
    pub nodes: NumaMask,
}

impl Place {
    /// Of a container's main process.
    ///
    /// # Errors
    /// It is gone.
    pub fn of(running: &Running) -> anyhow::Result<Self> {
        let path = format!("/proc/{}/status", running.process.pid());
        let status = fs::read_to_string(&path).context(path)?;
        let line = |name: &'static str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::trim).context(name)
        };
        let nodes = CpuSet::parse(line("Mems_allowed_list:")?)?;
        Ok(Self {
            cpus: CpuSet::parse(line("Cpus_allowed_list:")?)?,
            nodes: nodes.iter().collect(),
        })
    }
}

/// On which NUMA nodes the pages are that a hog has taken: pages by node, of its large anonymous mappings.
///
/// # Errors
/// It is gone, or the kernel has no `numa_maps`.
pub fn pages(running: &Running) -> anyhow::Result<BTreeMap<u32, u64>> {
    let path = format!("/proc/{}/numa_maps", running.process.pid());
    let text = fs::read_to_string(&path).context(path)?;
    Ok(count(&text))
}

/// `7f12a4000000 default anon=4096 dirty=4096 N0=4000 N3=96 kernelpagesize_kB=4`: `N` is in pages of the base size,
/// also for huge ones.
fn count(numa_maps: &str) -> BTreeMap<u32, u64> {
    let mut pages = BTreeMap::new();
    for line in numa_maps.lines() {
        let words = || {
            line.split_whitespace()
                .filter_map(|word| word.split_once('='))
        };
        let anonymous = words().find(|(name, _)| *name == "anon");
        let anonymous = anonymous.and_then(|(_, count)| count.parse().ok());
        if anonymous.unwrap_or(0_u64) < HOG_PAGES_MIN {
            continue;
        }
        for (name, count) in words() {
            let node = name.strip_prefix('N').and_then(|node| node.parse().ok());
            if let Some((node, count)) = node.zip(count.parse::<u64>().ok()) {
                *pages.entry(node).or_default() += count;
            }
        }
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_anonymous_mappings_count() {
        let text = "55d0 default file=/bin/hog mapped=900 N0=900 kernelpagesize_kB=4\n\
                    7f12 default anon=4096 dirty=4096 active=0 N0=4000 N3=96 kernelpagesize_kB=4\n\
                    7f13 default anon=2048 dirty=2048 N3=2048 kernelpagesize_kB=4\n\
                    7f14 default stack anon=4 dirty=4 N1=4 kernelpagesize_kB=4\n";
        assert_eq!(count(text), BTreeMap::from([(0, 4000), (3, 2144)]));
    }
}
