//! `bpf(2)`, as far as an agent needs it that takes over pinned programs.
//!
//! The model offers the set of pins that this agent looks for, complete and attached; the agent's own way of taking one
//! over does the rest. The programs are the [machine](crate::machine)'s: it charges, crosses and sends records as they
//! do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;
use plimsoll_abi as abi;

use crate::files::Kind;
use crate::kernel;
use crate::world::World;

/// CPUs of the model.
pub(crate) const CPUS: usize = 4;
const PAGE: usize = 4096;

/// `enum bpf_cmd`.
const LOOKUP: usize = 1;
const UPDATE: usize = 2;
const DELETE: usize = 3;
const NEXT_KEY: usize = 4;
const OBJ_GET: usize = 7;
const INFO: usize = 15;
/// `enum bpf_map_type`.
const HASH: u32 = 1;
const ARRAY: u32 = 2;
const PERCPU_ARRAY: u32 = 6;
const RINGBUF: u32 = 27;
const MMAPABLE: u32 = 1 << 10;

/// What a record of a ring begins with while it is written.
const BUSY: u32 = 1 << 31;

/// Hooks that are attached; all others are said to be missing.
pub(crate) const ATTACHED: [&str; 11] = [
    "cgroup_mkdir",
    "cgroup_rmdir",
    "cgroup_notify_populated",
    "cgroup_attach_task",
    "charges_count",
    "oom_kill_process",
    "mark_victim",
    "kswapd_wake",
    "direct_reclaim",
    "process_fork",
    "process_exec",
];

pub(crate) struct Map {
    kind: u32,
    key_bytes: usize,
    value_bytes: usize,
    entries: usize,
    pub(crate) values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Shared with the agent: rings, and what it has consumed.
    memory: Option<Memory>,
}

struct Memory {
    fd: usize,
    at: *mut u8,
}

#[derive(Default)]
pub(crate) struct Bpf {
    pub(crate) maps: BTreeMap<&'static str, Map>,
    /// Where its pins are, as the agent names it; `None`: no programs.
    set: Option<String>,
    pub(crate) is_wanted: bool,
    counts: [[u64; 2]; abi::KIND_SLOTS],
}

fn map(kind: u32, key_bytes: usize, value_bytes: usize, entries: usize) -> Map {
    Map {
        kind,
        key_bytes,
        value_bytes,
        entries,
        values: BTreeMap::new(),
        memory: None,
    }
}

impl Memory {
    fn new(bytes: usize) -> Self {
        let name = c"map".as_ptr() as usize;
        // SAFETY: the name lives.
        let fd =
            unsafe { kernel::raw(libc::SYS_memfd_create, [name, 0, 0, 0, 0, 0]) }.unsigned_abs();
        // SAFETY: no pointers.
        unsafe { kernel::raw(libc::SYS_ftruncate, [fd, bytes, 0, 0, 0, 0]) };
        let rw = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        // SAFETY: a new mapping.
        let at = unsafe {
            kernel::raw(
                libc::SYS_mmap,
                [0, bytes, rw, libc::MAP_SHARED as usize, fd, 0],
            )
        };
        Self {
            fd,
            at: at as *mut u8,
        }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: within the mapping, aligned, and mapped for the life of the process.
        unsafe { &*self.at.add(offset).cast::<AtomicU64>() }
    }
}

impl Bpf {
    fn make(&mut self) {
        let words = |words: usize| words * 8;
        let list = [
            ("CRITICAL", map(RINGBUF, 0, 0, abi::CRITICAL_BYTES as usize)),
            (
                "LIFECYCLE",
                map(RINGBUF, 0, 0, abi::LIFECYCLE_BYTES as usize),
            ),
            ("PRESSURE", map(RINGBUF, 0, 0, abi::PRESSURE_BYTES as usize)),
            ("COUNTS", map(PERCPU_ARRAY, 4, 8, abi::COUNTERS as usize)),
            ("CHARGES", map(ARRAY, 4, 8, abi::charges::WORDS as usize)),
            (
                "LAST_LINE",
                map(
                    ARRAY,
                    4,
                    words(abi::last_line::SLOT_WORDS),
                    abi::last_line::SLOTS as usize,
                ),
            ),
            ("LAST_LINE_NEWEST", map(ARRAY, 4, 8, 1)),
            (
                "LAST_LINE_SEEN",
                map(ARRAY, 4, 8, abi::last_line::seen::WORDS as usize),
            ),
            (
                "LAST_LINE_PODS",
                map(HASH, 8, words(abi::last_line::pods::WORDS), 256),
            ),
            ("KILLS_REPORTED", map(HASH, 8, 8, 256)),
            ("COUNTED", map(HASH, 16, 8, 2 * abi::COUNTED_MAX as usize)),
            (
                "THROTTLE",
                map(HASH, 8, words(abi::throttle_totals::WORDS), 4096),
            ),
            (
                "MEMORY",
                map(HASH, 16, words(abi::memory_totals::WORDS), 8192),
            ),
            (
                "OOM_KILLS",
                map(HASH, 8, words(abi::oom_totals::WORDS), 4096),
            ),
            ("CONSUMED", map(ARRAY, 4, 8, CPUS * abi::KIND_SLOTS)),
            ("MANIFEST", map(ARRAY, 4, abi::MANIFEST_BYTES, 1)),
            (
                "STALLS",
                map(HASH, 16, words(abi::stall_totals::WORDS), 8192),
            ),
            (
                "REFAULTS",
                map(HASH, 16, words(abi::refault_totals::WORDS), 8192),
            ),
            (
                "PROCESSES",
                map(HASH, 8, words(abi::process_totals::WORDS), 4096),
            ),
        ];
        self.maps = list.into_iter().collect();
        for (name, map) in &mut self.maps {
            match map.kind {
                RINGBUF => map.memory = Some(Memory::new(2 * PAGE + 2 * map.entries)),
                _ if *name == "CONSUMED" => {
                    map.memory = Some(Memory::new((map.entries * 8).next_multiple_of(PAGE)))
                }
                _ => {}
            }
        }
        let hooks: Vec<_> = ATTACHED
            .iter()
            .map(|program| serde_json::json!({"program": program, "unavailable": null}))
            .collect();
        let mut manifest = serde_json::json!({"hooks": hooks}).to_string().into_bytes();
        manifest.resize(abi::MANIFEST_BYTES, 0);
        self.set_array("MANIFEST", 0, manifest);
    }

    fn set_array(&mut self, name: &str, index: u32, value: Vec<u8>) {
        if let Some(map) = self.maps.get_mut(name) {
            map.values.insert(index.to_ne_bytes().to_vec(), value);
        }
    }

    /// A word of an array of words.
    pub(crate) fn word(&self, name: &str, index: u32) -> u64 {
        let map = self.maps.get(name);
        let value = map.and_then(|map| map.values.get(index.to_ne_bytes().as_slice()));
        value.map_or(0, |value| {
            let mut word = [0; 8];
            word.copy_from_slice(&value[..8]);
            u64::from_ne_bytes(word)
        })
    }

    pub(crate) fn set_word(&mut self, name: &str, index: u32, word: u64) {
        self.set_array(name, index, word.to_ne_bytes().to_vec());
    }

    /// Whether the programs run: until their pins are removed.
    pub(crate) fn is_attached(&self, root: &Path) -> bool {
        self.set.as_ref().is_some_and(|set| {
            root.join(set.trim_start_matches('/'))
                .join("complete")
                .exists()
        })
    }

    /// Sends a record. Whether there was room.
    pub(crate) fn send(
        &mut self,
        ring: &str,
        kind: abi::Kind,
        record: &[u8],
        shared_bytes: usize,
    ) -> bool {
        let slot = usize::from(kind.number());
        self.counts[slot][0] += 1;
        let sent = self
            .maps
            .get(ring)
            .is_some_and(|map| put(map, record, shared_bytes));
        if !sent {
            self.counts[slot][1] += 1;
        }
        let [produced, dropped] = self.counts[slot];
        for (index, count) in [
            (abi::produced(kind), produced),
            (abi::dropped(kind), dropped),
        ] {
            let mut value = vec![0; 8 * CPUS];
            value[..8].copy_from_slice(&count.to_ne_bytes());
            self.set_array("COUNTS", index, value);
        }
        sent
    }

    /// Kinds whose records are neither read nor dropped: (kind, produced, consumed, dropped).
    pub(crate) fn open_accounts(&self) -> Vec<(abi::Kind, u64, u64, u64)> {
        let Some(consumed) = self
            .maps
            .get("CONSUMED")
            .and_then(|map| map.memory.as_ref())
        else {
            return Vec::new();
        };
        let open = abi::KINDS.into_iter().filter_map(|kind| {
            let slot = usize::from(kind.number());
            let [produced, dropped] = self.counts[slot];
            let read = consumed.word(slot * 8).load(Ordering::Relaxed);
            (produced != read + dropped).then_some((kind, produced, read, dropped))
        });
        open.collect()
    }

    pub(crate) fn all_maps(&self) -> BTreeSet<&'static str> {
        self.maps.keys().copied().collect()
    }
}

/// As `bpf_ringbuf_output` writes it; the data lies twice in the mapping, as in the kernel's.
fn put(map: &Map, record: &[u8], shared_bytes: usize) -> bool {
    let Some(memory) = &map.memory else {
        return false;
    };
    let (consumer, producer) = (memory.word(0), memory.word(PAGE));
    let size = map.entries;
    let position = producer.load(Ordering::Acquire);
    let length = (record.len() + 8).next_multiple_of(8);
    let used = usize::try_from(position - consumer.load(Ordering::Acquire)).unwrap_or(usize::MAX);
    if used + length > shared_bytes.min(size) {
        return false;
    }
    let header = (u32::try_from(record.len()).unwrap_or(0) & !BUSY).to_ne_bytes();
    let start = usize::try_from(position).unwrap_or(0) & (size - 1);
    let bytes = header.iter().chain(&[0; 4]).chain(record);
    for (offset, byte) in (start..).zip(bytes) {
        for copy in [offset & (size - 1), (offset & (size - 1)) + size] {
            // SAFETY: within the two copies of the data.
            unsafe { *memory.at.add(2 * PAGE + copy) = *byte };
        }
    }
    producer.store(position + length as u64, Ordering::Release);
    true
}

impl World {
    /// The agent asks whether there is a set of pins of this name: there is, if it is to have programs.
    pub(crate) fn offer_pins(&mut self, path: &str) {
        let Some(rest) = path.strip_prefix("/sys/fs/bpf/plimsoll/") else {
            return;
        };
        let is_set = rest
            .split_once('/')
            .is_some_and(|(_, set)| set.starts_with("abi") && !set.contains('/'));
        if !is_set || !self.bpf.is_wanted || self.bpf.set.is_some() {
            return;
        }
        self.bpf.make();
        self.bpf.set = Some(path.to_owned());
        let place = self.root.join(path.trim_start_matches('/'));
        let mut files: Vec<_> = self
            .bpf
            .all_maps()
            .iter()
            .map(|map| format!("maps/{map}"))
            .collect();
        files.extend(
            ATTACHED
                .iter()
                .flat_map(|program| [format!("programs/{program}"), format!("links/{program}")]),
        );
        for dir in ["maps", "programs", "links", "complete"] {
            std::fs::create_dir_all(place.join(dir)).ok();
        }
        for file in files {
            std::fs::write(place.join(file), "").ok();
        }
        self.machine.follow_charges();
    }

    fn map_of(&mut self, fd: u32) -> Result<&mut Map, c_int> {
        let fd = i32::try_from(fd).ok().and_then(|fd| self.fds.get(&fd));
        let Some(Kind::Map(name)) = fd.map(|fd| fd.kind.clone()) else {
            return Err(libc::EBADF);
        };
        self.bpf.maps.get_mut(name.as_str()).ok_or(libc::EBADF)
    }

    /// The call itself. `attributes` are a `union bpf_attr`.
    pub(crate) fn bpf(&mut self, command: usize, attributes: *mut u8) -> isize {
        let u32_at = |offset: usize| {
            // SAFETY: the caller's attributes have 128 bytes or more.
            unsafe { attributes.add(offset).cast::<u32>().read_unaligned() }
        };
        let u64_at = |offset: usize| {
            // SAFETY: the same.
            unsafe { attributes.add(offset).cast::<u64>().read_unaligned() }
        };
        let pointer_at = |offset: usize| u64_at(offset) as *mut u8;
        let done = match command {
            OBJ_GET => {
                // SAFETY: the agent passes a string.
                let path = unsafe { std::ffi::CStr::from_ptr(pointer_at(0).cast()) };
                return self.bpf_get(&path.to_string_lossy());
            }
            LOOKUP => self.bpf_lookup(u32_at(0), pointer_at(8), pointer_at(16)),
            UPDATE => self.bpf_update(u32_at(0), pointer_at(8), pointer_at(16)),
            DELETE => self.bpf_delete(u32_at(0), pointer_at(8)),
            NEXT_KEY => self.bpf_next_key(u32_at(0), pointer_at(8), pointer_at(16)),
            INFO => self.bpf_info(u32_at(0), u32_at(4), pointer_at(8)),
            _ => Err(libc::EINVAL),
        };
        done.map_or_else(|errno| -(errno as isize), |()| 0)
    }

    fn bpf_get(&mut self, path: &str) -> isize {
        let place = self.place_of(path);
        let is_there = Path::new(&*place.to_string_lossy()).exists();
        let name = path.rsplit('/').next().unwrap_or_default();
        if !is_there {
            return -(libc::ENOENT as isize);
        }
        let kind = match path.contains("/maps/") {
            true => Kind::Map(name.to_owned()),
            false => Kind::BpfObject,
        };
        let memory = self.bpf.maps.get(name).and_then(|map| map.memory.as_ref());
        let fd = match (memory, self.bpf.maps.get(name).map(|map| map.kind)) {
            // A ring is waited for and mapped: an eventfd can be waited for, and the mapping is answered by the
            // memory's own descriptor.
            (Some(memory), Some(kind)) if kind != RINGBUF => memory.fd,
            // SAFETY: no pointers.
            _ => unsafe {
                kernel::raw(
                    libc::SYS_eventfd2,
                    [0, libc::EFD_CLOEXEC as usize, 0, 0, 0, 0],
                )
            }
            .unsigned_abs(),
        };
        let fd = if memory.is_some_and(|memory| memory.fd == fd) {
            // SAFETY: no pointers.
            unsafe {
                kernel::raw(
                    libc::SYS_fcntl,
                    [fd, libc::F_DUPFD_CLOEXEC as usize, 3, 0, 0, 0],
                )
            }
        } else {
            fd.cast_signed()
        };
        self.add(fd, kind, path.to_owned())
    }

    /// The descriptor that a mapping of this one is made of.
    pub(crate) fn mapped(&self, fd: c_int) -> Option<usize> {
        let Kind::Map(name) = &self.fds.get(&fd)?.kind else {
            return None;
        };
        Some(self.bpf.maps.get(name.as_str())?.memory.as_ref()?.fd)
    }

    /// Wakes those that wait for a ring.
    pub(crate) fn ring_bell(&mut self, ring: &str) {
        let listeners: Vec<i32> = self
            .fds
            .iter()
            .filter(|(_, fd)| matches!(&fd.kind, Kind::Map(name) if name == ring))
            .map(|(fd, _)| *fd)
            .collect();
        for fd in listeners {
            ring_eventfd(fd);
        }
    }

    fn bpf_lookup(&mut self, fd: u32, key: *const u8, value: *mut u8) -> Result<(), c_int> {
        let map = self.map_of(fd)?;
        // SAFETY: the caller's key is as long as the map's.
        let key = unsafe { std::slice::from_raw_parts(key, map.key_bytes) };
        let length = match map.kind {
            PERCPU_ARRAY => map.value_bytes * CPUS,
            _ => map.value_bytes,
        };
        let zeros = vec![0; length];
        let found = match map.values.get(key) {
            Some(found) => found,
            None if map.kind == HASH => return Err(libc::ENOENT),
            None => &zeros,
        };
        // SAFETY: and its place for the value as long as that.
        unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), value, length) };
        Ok(())
    }

    fn bpf_update(&mut self, fd: u32, key: *const u8, value: *const u8) -> Result<(), c_int> {
        let name = self.fds.get(&(fd as i32)).map(|fd| fd.kind.clone());
        let map = self.map_of(fd)?;
        // SAFETY: as long as the map's.
        let (key, value) = unsafe {
            (
                std::slice::from_raw_parts(key, map.key_bytes).to_vec(),
                std::slice::from_raw_parts(value, map.value_bytes).to_vec(),
            )
        };
        if map.kind == HASH && map.values.len() >= map.entries && !map.values.contains_key(&key) {
            return Err(libc::E2BIG);
        }
        map.values.insert(key, value);
        if name == Some(Kind::Map("CHARGES".to_owned())) {
            crate::machine::armed(self);
        }
        Ok(())
    }

    fn bpf_delete(&mut self, fd: u32, key: *const u8) -> Result<(), c_int> {
        let map = self.map_of(fd)?;
        // SAFETY: as long as the map's.
        let key = unsafe { std::slice::from_raw_parts(key, map.key_bytes) };
        map.values.remove(key).map(drop).ok_or(libc::ENOENT)
    }

    fn bpf_next_key(&mut self, fd: u32, key: *const u8, next: *mut u8) -> Result<(), c_int> {
        use std::ops::Bound;
        let map = self.map_of(fd)?;
        let after = if key.is_null() {
            Bound::Unbounded
        } else {
            // SAFETY: as long as the map's.
            Bound::Excluded(unsafe { std::slice::from_raw_parts(key, map.key_bytes) }.to_vec())
        };
        let found = map.values.range((after, Bound::Unbounded)).next();
        let (found, _) = found.ok_or(libc::ENOENT)?;
        // SAFETY: as long as the map's.
        unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), next, found.len()) };
        Ok(())
    }

    fn bpf_info(&mut self, fd: u32, length: u32, info: *mut u8) -> Result<(), c_int> {
        // SAFETY: the caller says how much room there is.
        unsafe { std::ptr::write_bytes(info, 0, length as usize) };
        let Ok(map) = self.map_of(fd) else {
            return Ok(());
        };
        let flags = if map.memory.is_some() && map.kind == ARRAY {
            MMAPABLE
        } else {
            0
        };
        let fields = [
            map.kind,
            1,
            u32::try_from(map.key_bytes).unwrap_or(0),
            u32::try_from(map.value_bytes).unwrap_or(0),
            u32::try_from(map.entries).unwrap_or(0),
            flags,
        ];
        for (index, field) in fields.into_iter().enumerate() {
            // SAFETY: `struct bpf_map_info` has these six first.
            unsafe { info.add(4 * index).cast::<u32>().write_unaligned(field) };
        }
        Ok(())
    }
}

/// Makes an eventfd readable.
pub(crate) fn ring_eventfd(fd: i32) {
    let one = 1_u64;
    // SAFETY: eight bytes that live for the call.
    unsafe {
        kernel::raw(
            libc::SYS_write,
            [fd as usize, (&raw const one) as usize, 8, 0, 0, 0],
        )
    };
}
