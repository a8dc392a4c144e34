//! What of the agent is resident, by what it is: its program, the rings, heap, stacks. At rest, with many cgroups.

use std::fs;
use std::thread::sleep;

use anyhow::Context as _;
use serde::Serialize;

use super::super::agent::Options;
use super::super::node::Node;
use super::super::table::{aligned, bytes};
use super::Rows;
use super::footprint::{SETTLE, sleepers};

/// Resident bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Row {
    cgroups: u32,
    /// Its code.
    code: u64,
    /// What else is mapped of its file: constants, tables, data.
    file: u64,
    /// Maps of BPF programs; the data of each ring is mapped twice.
    rings: u64,
    heap: u64,
    stack: u64,
    /// Stacks of threads, and what allocators have mapped for themselves.
    anonymous: u64,
    other: u64,
}

impl Row {
    fn all(&self) -> u64 {
        self.code + self.file + self.rings + self.heap + self.stack + self.anonymous + self.other
    }

    /// Of the text of `/proc/PID/smaps`.
    fn of(cgroups: u32, smaps: &str, program: &str) -> Self {
        let mut row = Self {
            cgroups,
            ..Self::default()
        };
        let mut part = &mut row.other;
        for line in smaps.lines() {
            if let Some(kib) = line.strip_prefix("Rss:") {
                let kib = kib.trim().trim_end_matches(" kB").parse().unwrap_or(0);
                *part += 1024 * kib;
                continue;
            }
            let mut fields = line.split_ascii_whitespace();
            let range = fields.next().filter(|range| range.contains('-'));
            let (Some(_), Some(access)) = (range, fields.next()) else {
                continue;
            };
            part = match fields.nth(3).unwrap_or_default() {
                "" => &mut row.anonymous,
                "[heap]" => &mut row.heap,
                "[stack]" => &mut row.stack,
                name if name == program && access.contains('x') => &mut row.code,
                name if name == program => &mut row.file,
                name if name.contains("bpf-map") => &mut row.rings,
                _ => &mut row.other,
            };
        }
        row
    }
}

/// One scene for each number of cgroups.
pub(super) fn run(cgroups: &[u32], rows: &mut Rows) -> anyhow::Result<()> {
    let mut found = Vec::new();
    for &count in cgroups {
        let node = Node::new()?;
        let _pods = sleepers(&node, count)?;
        let agent = node.agent(&Options::hard("memory.available<100Mi"))?;
        sleep(SETTLE);
        let of_process = format!("/proc/{}", agent.pid());
        let smaps = fs::read_to_string(format!("{of_process}/smaps")).context("smaps")?;
        let program = fs::read_link(format!("{of_process}/exe")).context("exe")?;
        let row = Row::of(count, &smaps, &program.to_string_lossy());
        rows.add("resident", &row)?;
        found.push(row);
        agent.stop()?;
    }
    rows.say(&format!("\n{}", table(&found)));
    Ok(())
}

fn table(rows: &[Row]) -> String {
    let head = [
        "cgroups",
        "resident",
        "code",
        "rest of its file",
        "rings",
        "heap",
        "stack",
        "anonymous",
        "other",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let parts = [
            row.all(),
            row.code,
            row.file,
            row.rings,
            row.heap,
            row.stack,
            row.anonymous,
            row.other,
        ];
        let mut line = vec![row.cgroups.to_string()];
        line.extend(parts.map(bytes));
        lines.push(line);
    }
    aligned(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mapping_is_of_one_part() {
        let smaps = "\
1000-2000 r-xp 00000000 fe:00 12 /payload/plimsoll-agent\nSize: 4 kB\nRss:                8 kB\n\
2000-3000 r--p 00000000 fe:00 12 /payload/plimsoll-agent\nRss: 4 kB\n\
3000-4000 rw-p 00000000 00:00 0\nRss: 12 kB\nVmFlags: rd wr\n\
4000-5000 rw-p 00000000 00:00 0 [heap]\nRss: 16 kB\n\
5000-6000 rw-s 00000000 00:0e 12 anon_inode:bpf-map\nRss: 20 kB\n\
6000-7000 r-xp 00000000 00:00 0 [vdso]\nRss: 4 kB\n";
        let row = Row::of(7, smaps, "/payload/plimsoll-agent");
        let expected = Row {
            cgroups: 7,
            code: 8 << 10,
            file: 4 << 10,
            rings: 20 << 10,
            heap: 16 << 10,
            stack: 0,
            anonymous: 12 << 10,
            other: 4 << 10,
        };
        assert_eq!((row.all(), &row), (64 << 10, &expected));
    }
}
