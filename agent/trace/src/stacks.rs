//! Stacks as a tree of frames, and what each frame's address is in.
//!
//! Problem: an address of user space means something only as long as its process lives, and a session has too many
//! stacks to keep each as a list. Approach: a process's memory map is read at its first sample, an address becomes a
//! place in a file at once, and a descriptor of the file is kept, so that names can be found at the end
//! ([`super::symbols`]) when process and container may be gone. Stacks that begin alike share their beginning: a stack
//! is a node of a tree, its frames are the way to the root.
//!
//! Everything is bounded; what finds no room is counted.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use plimsoll::host::HostRoot;
use plimsoll::kernel::perf_sample::Sample;
use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags, statx};

/// Nodes of the tree. A node takes about 40 bytes with its place in the index.
const NODES_MAX: usize = 1 << 20;
/// Frames that are told apart.
const FRAMES_MAX: usize = 1 << 20;
/// Processes whose maps are kept; beyond, they are read again.
const PROCESSES_MAX: usize = 4096;
/// Executable areas of one process.
const AREAS_MAX: usize = 4096;
/// What the maps of all processes may take, bytes; beyond, they are read again.
const AREAS_BYTES_MAX: usize = 64 << 20;
/// Files of which a descriptor is kept.
const FILES_MAX: usize = 256;
/// Names of areas without a file, and files, that are told apart.
const MODULES_MAX: usize = 16_384;
/// The largest map of a process that is read.
const MAPS_BYTES_MAX: u64 = 8 << 20;
/// A process whose map does not have an address is looked at again after this time.
const MAPS_AGAIN_NS: u64 = 100_000_000;

/// The root of the tree: no stack.
pub(super) const NO_STACK: u32 = 0;

/// What a frame's address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Frame {
    /// The kernel, at this address.
    Kernel(u64),
    /// A mapped file ([`Stacks::modules`]), at this offset in it.
    File {
        /// Which.
        module: u32,
        /// In the file.
        offset: u64,
    },
    /// An area of memory without a file, such as the vDSO or what a compiler at run time made.
    Area {
        /// Which ([`Stacks::modules`]).
        module: u32,
    },
    /// Nothing that the process had mapped when it was looked at, or the process was gone before.
    Unknown,
}

/// A node of the tree: a frame and who called it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    /// The caller's node.
    pub(super) parent: u32,
    /// An index of [`Stacks::frames`].
    pub(super) frame: u32,
}

/// Something that is mapped with the right to be executed.
#[derive(Debug)]
pub(super) struct Module {
    /// Its path as the process sees it, or the kernel's name for it.
    pub(super) path: String,
    /// Its place, by which it can be opened; `None` where there is none, or no room for one more.
    pub(super) file: Option<File>,
}

#[derive(Debug)]
struct Area {
    start: u64,
    end: u64,
    offset: u64,
    /// (Device, inode), where it has a file.
    file: Option<(String, u64)>,
    name: String,
    module: Option<u32>,
}

#[derive(Debug)]
struct Process {
    areas: Vec<Area>,
    read_ns: u64,
    /// Of its first thread, by which another program is noticed.
    comm: Vec<u8>,
}

/// All stacks of a session.
#[derive(Debug)]
pub(super) struct Stacks {
    host: HostRoot,
    nodes: Vec<Node>,
    node_index: HashMap<Node, u32>,
    frames: Vec<Frame>,
    frame_index: HashMap<Frame, u32>,
    modules: Vec<Module>,
    files: HashMap<(String, u64), u32>,
    names: HashMap<String, u32>,
    files_open: usize,
    processes: HashMap<u32, Process>,
    /// What their maps take, about.
    areas_bytes: usize,
    /// Stacks that were cut because the tree is full.
    pub(super) cut: u64,
}

impl Stacks {
    pub(super) fn new(host: HostRoot) -> Self {
        let root = Node {
            parent: NO_STACK,
            frame: u32::MAX,
        };
        Self {
            host,
            nodes: vec![root],
            node_index: HashMap::new(),
            frames: Vec::new(),
            frame_index: HashMap::new(),
            modules: Vec::new(),
            files: HashMap::new(),
            names: HashMap::new(),
            files_open: 0,
            processes: HashMap::new(),
            areas_bytes: 0,
            cut: 0,
        }
    }

    /// All nodes; the first is the root, and every other comes after its parent.
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// All frames.
    pub(super) fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// All modules.
    pub(super) fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// Nodes from the outermost caller to `leaf`.
    pub(super) fn path(&self, leaf: u32) -> Vec<u32> {
        let mut path = Vec::new();
        let mut node = leaf;
        while node != NO_STACK {
            path.push(node);
            // A parent has a lower index, so this ends.
            node = self.nodes[node as usize].parent;
        }
        path.reverse();
        path
    }

    /// Keeps the stacks of a sample, user space below the kernel: the node of the innermost frame.
    pub(super) fn keep(&mut self, sample: &Sample<'_>) -> u32 {
        let (mut node, mut is_whole) = (NO_STACK, true);
        // Innermost first in the sample, outermost first in the tree. Every address but the innermost is where a call
        // returns to, and the call before it is meant.
        let call = |(place, address): (usize, u64)| address.wrapping_sub(u64::from(place > 0));
        let user: Vec<u64> = sample.user_stack().enumerate().map(call).collect();
        for address in user.into_iter().rev() {
            let frame = self.user_frame(sample, address);
            (node, is_whole) = self.push(node, frame, is_whole);
        }
        let kernel: Vec<u64> = sample.kernel_stack().enumerate().map(call).collect();
        for address in kernel.into_iter().rev() {
            (node, is_whole) = self.push(node, Frame::Kernel(address), is_whole);
        }
        if !is_whole {
            self.cut += 1;
        }
        node
    }

    fn push(&mut self, parent: u32, frame: Frame, is_whole: bool) -> (u32, bool) {
        if !is_whole {
            return (parent, false);
        }
        let Some(frame) = self.frame(frame) else {
            return (parent, false);
        };
        // What cannot be told apart is shown once: stacks without frame pointers end in many such addresses.
        let is_unknown = |index: u32| self.frames.get(index as usize) == Some(&Frame::Unknown);
        if is_unknown(frame) && is_unknown(self.nodes[parent as usize].frame) {
            return (parent, true);
        }
        let node = Node { parent, frame };
        if let Some(index) = self.node_index.get(&node) {
            return (*index, true);
        }
        if self.nodes.len() >= NODES_MAX {
            return (parent, false);
        }
        let index = self.nodes.len() as u32;
        self.nodes.push(node);
        self.node_index.insert(node, index);
        (index, true)
    }

    fn frame(&mut self, frame: Frame) -> Option<u32> {
        if let Some(index) = self.frame_index.get(&frame) {
            return Some(*index);
        }
        if self.frames.len() >= FRAMES_MAX {
            return None;
        }
        let index = self.frames.len() as u32;
        self.frames.push(frame);
        self.frame_index.insert(frame, index);
        Some(index)
    }

    fn user_frame(&mut self, sample: &Sample<'_>, address: u64) -> Frame {
        let tgid = sample.tgid;
        let is_other_program =
            |process: &Process| sample.tid == tgid && process.comm != sample.comm;
        let read_ns = self
            .processes
            .get(&tgid)
            .filter(|process| !is_other_program(process))
            .map(|process| process.read_ns);
        let Some(read_ns) = read_ns else {
            self.read_process(sample);
            return self.look_up(tgid, address).unwrap_or(Frame::Unknown);
        };
        if let Some(frame) = self.look_up(tgid, address) {
            return frame;
        }
        if sample.ts_ns.saturating_sub(read_ns) < MAPS_AGAIN_NS {
            return Frame::Unknown;
        }
        self.read_process(sample);
        self.look_up(tgid, address).unwrap_or(Frame::Unknown)
    }

    fn read_process(&mut self, sample: &Sample<'_>) {
        let path = self.host.procfs(format!("{}/maps", sample.tgid));
        let areas = read_maps(&path);
        match self.processes.get_mut(&sample.tgid) {
            // It ended: what is known of it stays.
            Some(known) if areas.is_empty() => known.read_ns = sample.ts_ns,
            _ => {
                let bytes: usize = areas
                    .iter()
                    .map(|area| size_of::<Area>() + area.name.len())
                    .sum();
                self.areas_bytes += bytes;
                if self.processes.len() >= PROCESSES_MAX || self.areas_bytes > AREAS_BYTES_MAX {
                    self.processes.clear();
                    self.areas_bytes = bytes;
                }
                self.processes.insert(
                    sample.tgid,
                    Process {
                        areas,
                        read_ns: sample.ts_ns,
                        comm: sample.comm.to_vec(),
                    },
                );
            }
        }
    }

    fn look_up(&mut self, tgid: u32, address: u64) -> Option<Frame> {
        let areas = &mut self.processes.get_mut(&tgid)?.areas;
        let after = areas.partition_point(|area| area.start <= address);
        let area = areas.get_mut(after.checked_sub(1)?)?;
        if address >= area.end {
            return None;
        }
        let module = match area.module {
            Some(module) => module,
            None => {
                let known = match &area.file {
                    Some(file) => self.files.get(file).copied(),
                    None => self.names.get(&area.name).copied(),
                };
                let module = match known {
                    Some(module) => module,
                    None if self.modules.len() >= MODULES_MAX => return None,
                    None => {
                        let module = self.modules.len() as u32;
                        let file = area
                            .file
                            .as_ref()
                            .filter(|_| self.files_open < FILES_MAX)
                            .and_then(|_| open(&self.host, tgid, area));
                        self.files_open += usize::from(file.is_some());
                        self.modules.push(Module {
                            path: area.name.clone(),
                            file,
                        });
                        match &area.file {
                            Some(file) => self.files.insert(file.clone(), module),
                            None => self.names.insert(area.name.clone(), module),
                        };
                        module
                    }
                };
                area.module = Some(module);
                module
            }
        };
        Some(match area.file {
            Some(_) => Frame::File {
                module,
                offset: address - area.start + area.offset,
            },
            None => Frame::Area { module },
        })
    }
}

/// The place of what is mapped there, whatever its path leads to by now; without the right to that, by its path in the
/// process's own root. The file is not opened (`O_PATH`), nor is its file system asked anything: it may be the
/// container's own, and never answer. A FIFO is no file.
fn open(host: &HostRoot, tgid: u32, area: &Area) -> Option<File> {
    let place = |path| {
        OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::PATH.bits() as i32)
            .open(path)
    };
    let mapped = host.procfs(format!("{tgid}/map_files/{:x}-{:x}", area.start, area.end));
    let file = match place(mapped) {
        // Else the path is not walked: it leads where the container likes.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            place(host.procfs(format!("{tgid}/root{}", area.name))).ok()?
        }
        opened => opened.ok()?,
    };
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let status = statx(&file, c"", flags, StatxFlags::TYPE).ok()?;
    let kind = FileType::from_raw_mode(status.stx_mode.into());
    (kind == FileType::RegularFile).then_some(file)
}

/// The executable areas of a process, by address; none if it is gone.
fn read_maps(path: &std::path::Path) -> Vec<Area> {
    use std::io::Read as _;
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAPS_BYTES_MAX).read_to_end(&mut text));
    if read.is_err() {
        return Vec::new();
    }
    parse_maps(&String::from_utf8_lossy(&text))
}

/// `start-end perms offset device inode path`, as in proc_pid_maps(5).
fn parse_maps(text: &str) -> Vec<Area> {
    let area = |line: &str| -> Option<Area> {
        let mut rest = line;
        let mut field = || {
            let (field, after) = rest.split_once(' ').unwrap_or((rest, ""));
            rest = after.trim_start();
            field
        };
        let (range, permissions, offset, device, inode) =
            (field(), field(), field(), field(), field());
        if !permissions.contains('x') {
            return None;
        }
        let (start, end) = range.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let inode: u64 = inode.parse().ok()?;
        let name = rest.trim_end_matches(" (deleted)");
        Some(Area {
            start: hex(start)?,
            end: hex(end)?,
            offset: hex(offset)?,
            file: (inode != 0).then(|| (device.to_owned(), inode)),
            name: if name.is_empty() { "[anon]" } else { name }.to_owned(),
            module: None,
        })
    };
    let mut areas: Vec<Area> = text.lines().filter_map(area).take(AREAS_MAX).collect();
    areas.sort_by_key(|area| area.start);
    areas
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
555555554000-555555556000 r--p 00000000 fd:01 123                        /usr/bin/work load
555555556000-55555555a000 r-xp 00002000 fd:01 123                        /usr/bin/work load
7ffff7d00000-7ffff7d10000 rwxp 00000000 00:00 0
7ffff7e00000-7ffff7f00000 r-xp 00028000 fd:01 456                        /lib/libc.so.6 (deleted)
7ffff7fc5000-7ffff7fc7000 r-xp 00000000 00:00 0                          [vdso]
";

    #[test]
    fn executable_areas_are_read_from_a_map() {
        let areas = parse_maps(MAPS);
        let names: Vec<_> = areas.iter().map(|area| area.name.as_str()).collect();
        assert_eq!(
            names,
            ["/usr/bin/work load", "[anon]", "/lib/libc.so.6", "[vdso]"]
        );
        assert_eq!(areas[0].file, Some(("fd:01".to_owned(), 123)));
        assert_eq!((areas[0].offset, areas[1].file.clone()), (0x2000, None));
        assert!(parse_maps("rubbish\n1-2 r-xp zz 0 0\n").is_empty());
    }

    #[test]
    fn stacks_share_their_beginning() {
        let mut stacks = Stacks::new(HostRoot::live());
        let (a, _) = stacks.push(NO_STACK, Frame::Kernel(1), true);
        let (b, _) = stacks.push(a, Frame::Kernel(2), true);
        let (c, _) = stacks.push(a, Frame::Kernel(3), true);
        assert_eq!(stacks.push(a, Frame::Kernel(2), true), (b, true));
        assert_eq!(stacks.path(c), [a, c]);
        assert!(stacks.path(NO_STACK).is_empty());
        let (unknown, _) = stacks.push(c, Frame::Unknown, true);
        assert_eq!(
            stacks.push(unknown, Frame::Unknown, true),
            (unknown, true),
            "shown once"
        );
    }

    #[test]
    fn code_of_the_test_is_found_in_its_file() {
        let areas = parse_maps(MAPS);
        let mut stacks = Stacks::new(HostRoot::live());
        stacks.processes.insert(
            7,
            Process {
                areas,
                read_ns: 0,
                comm: b"work".to_vec(),
            },
        );
        let frame = stacks.look_up(7, 0x5555_5555_6010).unwrap();
        assert_eq!(
            frame,
            Frame::File {
                module: 0,
                offset: 0x2010
            }
        );
        assert_eq!(stacks.look_up(7, 0x5555_5555_4010), None, "not executable");
        assert_eq!(
            stacks.look_up(7, 0x7fff_f7fc_5000),
            Some(Frame::Area { module: 1 })
        );
        assert_eq!(stacks.look_up(8, 0x5555_5555_6010), None);
    }
}
