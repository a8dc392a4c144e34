//! What the fuzz targets do with their bytes: hand them to the code that reads such bytes on a node. A panic, an overflow, a lost address or
//! a run without end is a find; what is refused is not.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolizer};
use plimsoll::act::placement::kubelet_state::{CpuManagerState, MemoryManagerState};
use plimsoll::host::capabilities::Capabilities;
use plimsoll::host::pressure::read_stalls;
use plimsoll::host::{HostRoot, Ledger, MeminfoFile};
use plimsoll::input::config::flags::EvictionFlags;
use plimsoll::input::config::resolve::{ConfigFile, Effective};
use plimsoll::input::{devices, machine, manifests, usage};
use plimsoll::kernel::btf::Btf;
use plimsoll::kernel::{decode, sample};
use plimsoll::record::steps;
use plimsoll::serve::control::{Answer, Request};
use plimsoll_core::kube::duration;
use plimsoll_core::kube::quantity::Quantity;
use plimsoll_core::placement::cpu_set::CpuSet;

/// Bytes as the text that they are, up to where they are none.
fn text(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    }
}

thread_local! {
    static FOLDER: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) };
}

/// A folder of this process, in memory where there is one there.
fn folder() -> PathBuf {
    FOLDER.with_borrow_mut(|folder| {
        let folder = folder.get_or_insert_with(|| {
            let shared = Path::new("/dev/shm");
            let parent = if shared.is_dir() {
                shared.to_owned()
            } else {
                std::env::temp_dir()
            };
            tempfile::tempdir_in(parent).expect("a temporary folder")
        });
        folder.path().to_owned()
    })
}

/// A file of this name that holds the bytes.
fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder().join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).expect("a folder");
    }
    let mut file = fs::File::create(&path).expect("a file");
    file.write_all(bytes).expect("room in the folder");
    path
}

/// [`decode::decode`], [`sample::decode`].
pub fn records(bytes: &[u8]) {
    decode::decode(bytes).ok();
    sample::decode(bytes).ok();
}

/// [`Btf::parse`], and every question that the agent asks of it. The first bytes are the names that it asks for.
pub fn btf(bytes: &[u8]) {
    let (name, data) = bytes.split_at(bytes.len().min(8));
    let Ok(btf) = Btf::parse(data) else { return };
    let name = text(name);
    btf.has_function(name);
    btf.has_tracepoint(name);
    btf.parameter(name, "memcg");
    btf.enumerator(name);
    btf.offset(name);
    btf.bit(name, "flags");
}

/// [`manifests::read_file`].
pub fn manifests(bytes: &[u8]) {
    manifests::read_file(&file("pod.yaml", bytes));
}

/// [`ConfigFile::parse`], [`Effective::new`].
pub fn config(bytes: &[u8]) {
    if let Ok(file) = ConfigFile::parse(text(bytes), None) {
        Effective::new(file, &EvictionFlags::default()).ok();
    }
}

/// [`usage::parse`].
pub fn usage(bytes: &[u8]) {
    let file: Arc<Path> = Arc::from(Path::new("usage.yaml"));
    usage::parse(&file, text(bytes), &BTreeMap::new()).ok();
}

/// [`CpuManagerState::parse`], [`MemoryManagerState::parse`].
pub fn kubelet_state(bytes: &[u8]) {
    CpuManagerState::parse(text(bytes)).ok();
    MemoryManagerState::parse(text(bytes)).ok();
}

/// [`HostRoot::cgroup_mounts`].
pub fn mounts(bytes: &[u8]) {
    file("proc/self/mounts", bytes);
    HostRoot::new(folder()).cgroup_mounts().ok();
}

/// [`MeminfoFile`], [`read_stalls`], [`Capabilities::parse`].
pub fn kernel_files(bytes: &[u8]) {
    file("proc/meminfo", bytes);
    if let Ok(meminfo) = MeminfoFile::open(&HostRoot::new(folder())) {
        meminfo.read().ok();
    }
    read_stalls(file("memory.pressure", bytes)).ok();
    Capabilities::parse(text(bytes));
}

/// [`Request::of_line`], [`Answer::of_line`].
pub fn requests(bytes: &[u8]) {
    Request::of_line(bytes).ok();
    Answer::of_line(bytes).ok();
}

/// [`Ledger::changes`]. Nothing is undone: the bytes choose the paths.
pub fn ledger(bytes: &[u8]) {
    let path = file("knobs.jsonl", bytes);
    file(
        "proc/sys/kernel/random/boot_id",
        b"00000000-0000-0000-0000-000000000000\n",
    );
    if let Ok(mut ledger) = Ledger::open(&HostRoot::new(folder()), path) {
        ledger.changes().ok();
    }
}

/// [`steps::replay`].
pub fn journal(bytes: &[u8]) {
    steps::replay(&file("run.journal", bytes), |_, _| Ok(())).ok();
}

/// [`Quantity::parse`], [`duration::parse_ns`], [`CpuSet::parse`].
pub fn kube(bytes: &[u8]) {
    let text = text(bytes);
    if let Ok(quantity) = Quantity::parse(text) {
        quantity.value();
        quantity.milli_value();
    }
    duration::parse_ns(text).ok();
    CpuSet::parse(text).ok();
}

/// [`machine::read`], [`devices::read`].
pub fn machine(bytes: &[u8]) {
    machine::read(Path::new("-"), bytes).ok();
    devices::read(&file("devices.yaml", bytes)).ok();
}

/// As `plimsoll-trace` does it: the symbols at two offsets.
pub fn symbols(bytes: &[u8]) {
    let elf = Elf::new(file("library.so", bytes));
    let offsets = [0x1000, 0x40];
    Symbolizer::new()
        .symbolize(&Source::Elf(elf), Input::FileOffset(&offsets))
        .ok();
}
