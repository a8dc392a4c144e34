//! Traffic of a network namespace, as cAdvisor reads it for the kubelet: `/proc/PID/net/dev` of a process in it.
//!
//! Source: `container/libcontainer/handler.go` of cAdvisor (`scanInterfaceStats`) and `cadvisorInfoToNetworkStats` in
//! `pkg/kubelet/stats/helper.go` of 1.36.
//!
//! **Problem.** The kernel adds up each interface's figures for it, over all CPUs, and who has CAP_NET_ADMIN in a
//! network namespace makes thousands of interfaces; the thread that reads answers probes as well. **Approach.** A file
//! with more than there is room for is read no further, and nothing is said of that namespace: a sum over some of its
//! interfaces would be wrong without a sign of it.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::shape::InterfaceStats;
use crate::host::HostRoot;
use crate::host::file::parse_u64;
use crate::host::network_namespace::NetworkNamespace;

/// Interfaces that are left out: what goes through them is inside the machine, or counted where it leaves it.
const IGNORED: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];
/// The one that a kubelet takes for the default.
const DEFAULT: &str = "eth0";
/// Columns after the name: 8 of what is received, 8 of what is sent.
const COLUMNS: usize = 16;
/// Of the file of a pod's namespace: some 500 interfaces.
pub(super) const POD_BYTES_MAX: usize = 64 << 10;
/// Of the node's, which has an interface for each pod or several.
const NODE_BYTES_MAX: usize = 1 << 20;

/// The node's namespace, which is that of its first process.
pub(super) fn of_node(host: &HostRoot) -> Option<Vec<InterfaceStats>> {
    read(&path(host, 1), NODE_BYTES_MAX)
}

/// A process's namespace; `None` if it is the node's own.
pub(super) fn of_process(host: &HostRoot, pid: u32) -> Option<Vec<InterfaceStats>> {
    let is_of_node = NetworkNamespace::of(host, pid)? == NetworkNamespace::of_node(host)?;
    (!is_of_node).then(|| read(&path(host, pid), POD_BYTES_MAX))?
}

/// The default one among them; a kubelet that finds none has nothing there but an empty name.
pub(super) fn default_of(interfaces: &[InterfaceStats]) -> InterfaceStats {
    let found = interfaces.iter().find(|it| it.name == DEFAULT);
    found.cloned().unwrap_or_default()
}

fn path(host: &HostRoot, pid: u32) -> PathBuf {
    host.procfs(format!("{pid}/net/dev"))
}

/// `None` also if it is longer than that, or a line is not understood: then none is to be trusted.
fn read(path: &Path, bytes_max: usize) -> Option<Vec<InterfaceStats>> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(bytes_max as u64 + 1)
        .read_to_string(&mut text)
        .ok()
        .filter(|bytes| *bytes <= bytes_max)?;
    let mut interfaces = Vec::new();
    // Two lines of headings.
    for line in text.lines().skip(2) {
        let (name, figures) = line.split_once(':')?;
        let name = name.trim();
        let figures = figures.split_ascii_whitespace();
        let figures: Vec<u64> = figures
            .map(|it| parse_u64(it.as_bytes()))
            .collect::<Option<_>>()?;
        if figures.len() != COLUMNS {
            return None;
        }
        let lower = name.to_ascii_lowercase();
        if IGNORED.iter().any(|prefix| lower.starts_with(prefix)) {
            continue;
        }
        interfaces.push(InterfaceStats {
            name: name.to_owned(),
            rx_bytes: Some(figures[0]),
            rx_errors: Some(figures[2]),
            tx_bytes: Some(figures[8]),
            tx_errors: Some(figures[10]),
        });
    }
    Some(interfaces)
}
