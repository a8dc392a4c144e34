//! What people read.

use std::fmt::Write as _;

use plimsoll_core::protocol::pod_resources::{Given, NodeResources};
use plimsoll_core::protocol::runtime_link::{RuntimeContainer, RuntimeImage};
use plimsoll_core::shown::Show as _;

use crate::cri::FileSystem;

/// Rows below their headings, in columns.
fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let mut text = String::new();
    let headings: Vec<String> = headings.iter().map(|text| (*text).to_owned()).collect();
    for row in std::iter::once(&headings).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // A String takes all that it is given.
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn bytes(bytes: Option<u64>) -> String {
    const MIB: u64 = 1 << 20;
    bytes.map_or_else(
        || "-".to_owned(),
        |bytes| format!("{}.{} MiB", bytes / MIB, bytes % MIB * 10 / MIB),
    )
}

/// Text of others, fit for a terminal.
fn shown(text: &str) -> String {
    text.shown().to_string()
}

fn short(id: &str) -> String {
    let id = id.strip_prefix("sha256:").unwrap_or(id);
    shown(&id.chars().take(12).collect::<String>())
}

/// Containers as a table.
pub fn containers(containers: &[RuntimeContainer]) -> String {
    let rows: Vec<Vec<String>> = containers
        .iter()
        .map(|container| {
            vec![
                short(&container.id),
                shown(&container.namespace),
                shown(&container.pod),
                shown(&container.name),
                container.state.name().to_owned(),
                bytes(container.writable_layer.and_then(|layer| layer.bytes)),
            ]
        })
        .collect();
    table(
        &["ID", "NAMESPACE", "POD", "CONTAINER", "STATE", "WRITTEN"],
        &rows,
    )
}

/// Images as a table, with what is known of the use of each.
pub fn images(images: &[(&RuntimeImage, &str)]) -> String {
    let rows: Vec<Vec<String>> = images
        .iter()
        .map(|(image, used)| {
            vec![
                short(&image.id),
                bytes(Some(image.bytes)),
                (*used).to_owned(),
                shown(image.name()),
            ]
        })
        .collect();
    table(&["ID", "SIZE", "USE", "NAME"], &rows)
}

/// File systems as a table.
pub fn file_systems(file_systems: &[FileSystem]) -> String {
    let rows: Vec<Vec<String>> = file_systems
        .iter()
        .map(|one| {
            vec![
                one.of.to_owned(),
                bytes(one.used_bytes),
                one.used_inodes
                    .map_or_else(|| "-".to_owned(), |inodes| inodes.to_string()),
                shown(&one.directory),
            ]
        })
        .collect();
    table(&["OF", "USED", "INODES", "DIRECTORY"], &rows)
}

/// What the kubelet has given, as a table and a sentence.
pub fn resources(resources: &NodeResources) -> String {
    let list = |numbers: &[i64]| {
        let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        if numbers.is_empty() {
            "-".to_owned()
        } else {
            numbers.join(",")
        }
    };
    let row = |given: &Given, name: &str| {
        let memory = given.memory.iter().map(|memory| {
            let kind = shown(&memory.kind);
            format!(
                "{kind} {} @{}",
                bytes(Some(memory.bytes)),
                list(&memory.numa_nodes)
            )
        });
        let devices = given.devices.iter().map(|devices| {
            let resource = shown(&devices.resource);
            format!(
                "{resource} x{} @{}",
                devices.ids.len(),
                list(&devices.numa_nodes)
            )
        });
        let all: Vec<String> = memory.chain(devices).collect();
        vec![shown(name), list(&given.cpus), all.join(", ")]
    };
    let node = resources.allocatable.iter().map(|node| row(node, "(node)"));
    let given = resources
        .given
        .iter()
        .map(|given| row(given, &given.container));
    let rows: Vec<Vec<String>> = node.chain(given).collect();
    let mut text = table(
        &["CONTAINER", "CPUS", "MEMORY AND DEVICES @NUMA NODES"],
        &rows,
    );
    for owner in resources.owners() {
        let _ = writeln!(
            text,
            "the kubelet places by {owner}: plimsoll leaves that to it"
        );
    }
    text
}
