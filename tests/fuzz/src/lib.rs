//! What the fuzz targets do with their bytes: hand them to the code that reads such bytes on a node. A panic, an
//! overflow, a lost address or a run without end is a find; what is refused is not.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolizer};
use plimsoll::act::placement::checkpoint::{CHECKPOINT, Checkpoint, PlacementLock};
use plimsoll::act::placement::kubelet_state::{CpuManagerState, MemoryManagerState};
use plimsoll::daemon::start::kubelet;
use plimsoll::host::capabilities::Capabilities;
use plimsoll::host::cgroup::PodMemoryFiles;
use plimsoll::host::cgroup_paths::hierarchy_number;
use plimsoll::host::cpuset::Cpuset;
use plimsoll::host::numa::PodNumaFile;
use plimsoll::host::pressure::read_stalls;
use plimsoll::host::processes::{ProcessFiles, start_ticks};
use plimsoll::host::state_dir::INTENTS_FILE;
use plimsoll::host::swap::SwapFiles;
use plimsoll::host::topology::read_machine;
use plimsoll::host::{
    CgroupMounts, CgroupPath, Controller, HostRoot, Ledger, MeminfoFile, unwind_tables,
};
use plimsoll::input::config::{ConfigFile, Effective, EvictionFlags};
use plimsoll::input::manifests::ManifestDir;
use plimsoll::input::manifests::admission::{ADMITTED, AdmissionContext};
use plimsoll::input::{cluster, devices, machine, manifests, usage};
use plimsoll::kernel::btf::Btf;
use plimsoll::kernel::{decode, perf_sample};
use plimsoll::pods::names;
use plimsoll::pods::sandbox::sandbox;
use plimsoll::record::snapshot::Snapshot;
use plimsoll::record::steps;
use plimsoll::serve::control::{Reply, Request, Snapshots, snapshots};
use plimsoll::serve::http::{Answers, Bounds, Server, address, bind};
use plimsoll::serve::summary::Statistics;
use plimsoll::source::cluster::{ClusterEvent, ClusterLink, ClusterSettings};
use plimsoll::source::memory_events::MemoryEvents;
use plimsoll::storage::mountinfo;
use plimsoll_core::arbitration::arbitrate;
use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::protocol::cluster_link::{self, EvictionIntent};
use plimsoll_core::kube::duration;
use plimsoll_core::protocol::framing::LENGTH_BYTES;
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::protocol::pod_resources::{self, FromKubelet};
use plimsoll_core::kube::quantity::Quantity;
use plimsoll_core::protocol::runtime_link::{self, FromNri, FromRuntime, Inventory, ToNri, ToRuntime};
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::machine::Machine;
use plimsoll_core::placement::numa_zones::survey;
use plimsoll_core::policy::disk::unused::{ImageBook, ended_containers, unused_images};
use plimsoll_runtime::nri::mux::Mux;
use plimsoll_trace::names::NAME_BYTES_MAX;
use plimsoll_trace::names::demangle::name_of;

/// The environment's variable with the name of the target.
const TARGET: &str = "PLIMSOLL_FUZZ_TARGET";

/// By their names, which are those of folders in `seeds`.
const TARGETS: [(&str, fn(&[u8])); 29] = [
    ("admission", admission),
    ("arbitration", arbitration),
    ("btf", btf),
    ("cgroup_files", cgroup_files),
    ("checkpoint", checkpoint),
    ("cluster_link", cluster_link),
    ("config", config),
    ("http", http),
    ("intents", intents),
    ("journal", journal),
    ("kernel_files", kernel_files),
    ("kube", kube),
    ("kubelet_config", kubelet_config),
    ("kubelet_state", kubelet_state),
    ("ledger", ledger),
    ("machine", machine),
    ("manifests", manifests),
    ("mountinfo", mountinfo),
    ("mounts", mounts),
    ("nri", nri),
    ("pod_resources", pod_resources),
    ("processes", processes),
    ("records", records),
    ("requests", requests),
    ("runtime_link", runtime_link),
    ("symbols", symbols),
    ("sysfs", sysfs),
    ("unwind_tables", unwind_tables),
    ("usage", usage),
];

/// Gives the bytes to the target that the environment names.
pub fn run(bytes: &[u8]) {
    static WANTED: OnceLock<fn(&[u8])> = OnceLock::new();
    let target = WANTED.get_or_init(|| {
        let name = std::env::var(TARGET).unwrap_or_default();
        let known = TARGETS.iter().find(|(known, _)| *known == name);
        let (_, target) = known.expect("PLIMSOLL_FUZZ_TARGET names a folder of tests/fuzz/seeds");
        *target
    });
    target(bytes);
}

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

/// [`decode::decode`], [`perf_sample::decode`].
pub fn records(bytes: &[u8]) {
    decode::decode(bytes).ok();
    perf_sample::decode(bytes).ok();
}

/// [`Btf::parse`], and every question that the agent asks of it. The first bytes are the names that it asks for.
pub fn btf(bytes: &[u8]) {
    let (name, data) = bytes.split_at(bytes.len().min(8));
    let Ok(btf) = Btf::parse(data) else { return };
    let name = text(name);
    let _asked = (
        btf.has_function(name),
        btf.has_tracepoint(name),
        btf.parameter(name, "memcg"),
        btf.enumerator(name),
        btf.offset(name),
        btf.bit(name, "flags"),
    );
}

/// [`manifests::read_file`].
pub fn manifests(bytes: &[u8]) {
    manifests::read_file(&file("pod.yaml", bytes));
}

/// [`ManifestDir::look`] with admission. Before a zero byte: what an agent before has admitted.
pub fn admission(bytes: &[u8]) {
    let manifests = folder().join("manifests");
    let zero = bytes.iter().position(|byte| *byte == 0);
    let (admitted, text) = bytes.split_at(zero.unwrap_or_default());
    if zero.is_some() {
        file(ADMITTED, &with_checksum("admitted", admitted));
    }
    file(
        "manifests/all.yaml",
        text.strip_prefix(b"\0").unwrap_or(text),
    );
    let ground = AdmissionContext {
        state_dir: folder(),
        is_running: Box::new(|pod| pod.metadata.name.len() % 2 == 0),
    };
    let mut manifests = ManifestDir::new(manifests).with_admission(ground);
    for at_s in 0..2 {
        manifests.look(Duration::from_secs(at_s));
    }
    forget(ADMITTED);
}

/// [`cluster::read`], up to who gives back.
pub fn arbitration(bytes: &[u8]) {
    let stdin = [PathBuf::from(manifests::STDIN)];
    if let Ok(files) = cluster::read(&stdin, bytes, 1_795_000_000)
        && let Ok(resolved) = files.objects.resolve()
    {
        let _ = arbitrate(&resolved.cluster);
    }
}

/// [`kubelet_config`].
pub fn kubelet_config(bytes: &[u8]) {
    kubelet::kubelet_config(&file("kubelet.yaml", bytes)).ok();
}

/// What a process calls itself, in its `stat`; and the path of a cgroup, by which pods and containers are told apart.
pub fn processes(bytes: &[u8]) {
    file("proc/77/stat", bytes);
    if let Some(pid) = rustix::process::Pid::from_raw(77) {
        start_ticks(&HostRoot::new(folder()), pid);
    }
    let path = Path::new(OsStr::from_bytes(bytes));
    names::pods_of(path);
    let names: Vec<(&str, u64)> = text(bytes).split('/').zip(0..).collect();
    for (name, _) in &names {
        names::container_id(name);
    }
    sandbox(&Pod::default(), &names, None);
}

/// [`unwind_tables`], and what is left of a mapping without them.
pub fn unwind_tables(bytes: &[u8]) {
    let tables = unwind_tables::unwind_tables(&file("program", bytes));
    unwind_tables::without(0x10000..0x20000, 0x4000, &tables, 0x1000);
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

/// What is read from the root of `/proc`, each file with these bytes.
pub fn kernel_files(bytes: &[u8]) {
    let host = HostRoot::new(folder());
    file("proc/meminfo", bytes);
    if let Ok(meminfo) = MeminfoFile::open(&host) {
        meminfo.read().ok();
    }
    for limit in ["pid_max", "threads-max"] {
        file(&format!("proc/sys/kernel/{limit}"), b"32768\n");
    }
    file("proc/loadavg", bytes);
    if let Some(processes) = ProcessFiles::open(&host, |_| {}) {
        processes.read(|_| {}).ok();
    }
    file("proc/swaps", bytes);
    let mounts = fake_cgroup2();
    let mut swap = SwapFiles::open(&host, &mounts, &CgroupPath::default());
    swap.pods_bytes().ok();
    swap.read().ok();
    read_stalls(file("memory.pressure", bytes)).ok();
    let _ = Capabilities::parse(text(bytes));
    hierarchy_number(text(bytes), Controller::Memory);
}

/// The mounts of a host with the v2 tree alone, below [`folder`].
fn fake_cgroup2() -> CgroupMounts {
    file(
        "proc/self/mounts",
        b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
    );
    file(
        "sys/fs/cgroup/cgroup.controllers",
        b"cpuset cpu memory pids\n",
    );
    HostRoot::new(folder())
        .cgroup_mounts()
        .expect("a host with cgroups")
}

/// What is read from a cgroup's directory, each file with these bytes.
pub fn cgroup_files(bytes: &[u8]) {
    const FILES: [&str; 7] = [
        "memory.current",
        "memory.stat",
        "memory.events",
        "cgroup.events",
        "memory.numa_stat",
        "cpuset.cpus",
        "cpuset.mems",
    ];
    for name in FILES {
        file(&format!("sys/fs/cgroup/pod/{name}"), bytes);
    }
    let mounts = fake_cgroup2();
    let pod = CgroupPath::new("pod").expect("a path");
    if let Ok(memory) = PodMemoryFiles::open(&mounts, &pod) {
        memory.read_usage_bytes().ok();
        memory.read_cache().ok();
    }
    if let Ok(numa) = PodNumaFile::open(&mounts, &pod) {
        numa.read(0).ok();
        numa.read(1).ok();
    }
    if let Ok(cpuset) = Cpuset::at(&mounts, &pod) {
        cpuset.cpus().ok();
        cpuset.mems().ok();
    }
    let directory = folder().join("sys/fs/cgroup/pod");
    MemoryEvents::open(&directory).ok();
}

/// [`read_machine`]: the files below `/sys/devices/system`, in this order, with a zero byte between two.
pub fn sysfs(bytes: &[u8]) {
    const FILES: [&str; 9] = [
        "cpu/online",
        "cpu/present",
        "node/online",
        "node/node0/cpulist",
        "node/node0/distance",
        "node/node0/meminfo",
        "cpu/cpu0/topology/core_cpus_list",
        "cpu/cpu0/topology/physical_package_id",
        "cpu/cpu0/cache/index3/shared_cpu_list",
    ];
    let mut texts = bytes.split(|byte| *byte == 0);
    for name in FILES {
        let text = texts.next().unwrap_or_default();
        file(&format!("sys/devices/system/{name}"), text);
    }
    read_machine(&HostRoot::new(folder())).ok();
}

/// [`mountinfo`]: the directory that is asked for, a line end, and the mounts. Any process shows its own.
pub fn mountinfo(bytes: &[u8]) {
    let at = bytes.iter().position(|byte| *byte == b'\n');
    let (directory, mounts) = bytes.split_at(at.unwrap_or_default());
    let directory = Path::new(OsStr::from_bytes(directory));
    mountinfo::root_mount(mounts);
    mountinfo::has_mount_at_or_below(mounts, directory);
    if let Some(inside) = mountinfo::inside(mounts, directory) {
        mountinfo::has_mount_inside(mounts, &inside);
    }
}

/// [`Checkpoint::read`]: the bytes are the placement, and the checksum around it is right.
pub fn checkpoint(bytes: &[u8]) {
    file(CHECKPOINT, &with_checksum("placement", bytes));
    let folder = folder();
    if let Ok(lock) = PlacementLock::exclusive(&folder, Duration::ZERO) {
        Checkpoint::read(&lock, &folder).ok();
    }
    forget(CHECKPOINT);
}

/// A file of the state directory that holds this, whatever it is, under its right checksum.
fn with_checksum(what: &str, bytes: &[u8]) -> Vec<u8> {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let head = format!(r#"{{"version":1,"checksum":"{hash:016x}","{what}":"#);
    [head.as_bytes(), bytes, b"}"].concat()
}

/// Removes it, and what was set aside of it.
fn forget(name: &str) {
    for name in [name, &format!("{name}.damaged-1")] {
        let _none = fs::remove_file(folder().join(name));
    }
}

/// A client of the HTTP port: the bytes are all that it sends.
pub fn http(bytes: &[u8]) {
    static SERVER: OnceLock<Server> = OnceLock::new();
    let server = SERVER.get_or_init(serve);
    let Ok(mut stream) = TcpStream::connect(server.address()) else {
        return;
    };
    stream.write_all(bytes).ok();
    stream.shutdown(Shutdown::Write).ok();
    std::io::copy(&mut stream, &mut std::io::sink()).ok();
}

/// The agent's server, with a loop that answers at once.
fn serve() -> Server {
    let (source, mut requests) = snapshots();
    let engine = Engine::new(EngineConfig::default());
    std::thread::spawn(move || {
        while let Some(asked) = requests.blocking_recv() {
            asked.send(Snapshot::of(&engine)).ok();
        }
    });
    let host = HostRoot::new(folder());
    let statistics = Statistics::new(host, fake_cgroup2(), CgroupPath::default());
    let answers = Answers::new(Arc::new(Snapshots::new(source)), statistics);
    let listener = bind(address("127.0.0.1:0").expect("an address")).expect("a free port");
    Server::start(listener, answers, Bounds::default()).expect("a thread")
}

/// The agent's end of the socket to `plimsoll-cluster`, which has an eviction to report: what a client says after its
/// greeting, a message on each line. Behind a zero byte: frames as they are.
pub fn cluster_link(bytes: &[u8]) {
    static LINK: OnceLock<PathBuf> = OnceLock::new();
    let socket = LINK.get_or_init(listen);
    let Ok(mut stream) = UnixStream::connect(socket) else {
        return;
    };
    let frame = |json: &[u8]| cluster_link::FRAMING.frame(json).unwrap_or_default();
    let sent = match bytes.split_first() {
        Some((0, frames)) => frames.to_vec(),
        _ => {
            let protocol = cluster_link::PROTOCOL;
            let hello = format!(r#"{{"type":"hello","protocol":{protocol},"node":"n"}}"#);
            let lines = bytes.split(|byte| *byte == b'\n');
            [hello.as_bytes()]
                .into_iter()
                .chain(lines)
                .flat_map(frame)
                .collect()
        }
    };
    stream.write_all(&sent).ok();
    stream.shutdown(Shutdown::Write).ok();
    std::io::copy(&mut stream, &mut std::io::sink()).ok();
}

/// The agent's socket, with a loop that takes every event at once and evicts the pod `u` again and again.
fn listen() -> PathBuf {
    let settings = cluster_settings();
    let (link, mut events, _) = ClusterLink::start(&settings).expect("a socket");
    std::thread::spawn(move || {
        link.evicted(intent());
        while let Some(event) = events.blocking_recv() {
            if matches!(event, ClusterEvent::Settled { .. }) {
                link.evicted(intent());
            }
        }
    });
    settings.socket
}

fn cluster_settings() -> ClusterSettings {
    ClusterSettings {
        socket: folder().join("cluster.sock"),
        user: 0,
        state_dir: folder(),
        soft_grace_s: None,
    }
}

fn intent() -> EvictionIntent {
    serde_json::from_value(serde_json::json!({
        "uid": "u", "namespace": "default", "name": "web", "decidedUnixMs": 7, "signal": "memory.available", "message": "",
        "rank": 1, "ranked": 1, "graceS": 0, "isHeld": false, "starvedResource": "memory", "offendingContainers": "",
        "offendingContainersUsage": ""}))
    .expect("an eviction")
}

/// The evictions that an agent before has left, by [`ClusterLink::start`].
pub fn intents(bytes: &[u8]) {
    file(INTENTS_FILE, bytes);
    ClusterLink::start(&cluster_settings()).ok();
}

/// Frames both ways, and what of a list is removed first.
pub fn runtime_link(bytes: &[u8]) {
    let framing = runtime_link::FRAMING;
    let mut inventory = Inventory::default();
    let mut rest = bytes;
    while let Ok(Some(end)) = framing.first(rest) {
        let (frame, after) = rest.split_at(end);
        rest = after;
        let Ok(body) = framing.body(&frame[LENGTH_BYTES..]) else {
            return;
        };
        serde_json::from_slice::<ToRuntime>(body).ok();
        serde_json::from_slice::<ToNri>(body).ok();
        serde_json::from_slice::<FromNri>(body).ok();
        match serde_json::from_slice::<FromRuntime>(body) {
            Ok(FromRuntime::Container { container }) => inventory.containers.push(*container),
            Ok(FromRuntime::Image { image }) => inventory.images.push(*image),
            Ok(FromRuntime::Listed { unix_ns, .. }) => inventory.unix_ns = unix_ns,
            _ => {}
        }
    }
    let mut book = ImageBook::default();
    for now_ns in [1, 1 << 60] {
        book.observe(&inventory, now_ns);
        ended_containers(&inventory);
        unused_images(&inventory, &book, now_ns);
    }
}

/// A frame, and the zones that follow from what it lists.
pub fn pod_resources(bytes: &[u8]) {
    const MACHINE: &str = r#"{"version": 1, "cores": [{"threads": ["0-1"], "socket": 0, "node": 0}, {"threads": ["2-3"], "socket": 0, "node": 2}],
        "nodes": [{"id": 0, "memory": "16Gi", "hugepages": [{"pageSize": "2Mi", "pages": 8}]}, {"id": 2, "memory": "1Gi"}]}"#;
    let machine: Machine = serde_json::from_str(MACHINE).expect("a machine");
    let Ok(body) = pod_resources::FRAMING.body(bytes) else {
        return;
    };
    let Ok(FromKubelet::Resources { resources, .. }) = serde_json::from_slice(body) else {
        return;
    };
    let Ok(surveyed) = survey(&machine, &resources, None) else {
        return;
    };
    for amounts in surveyed
        .topology
        .zones
        .iter()
        .flat_map(|zone| zone.resources.values())
    {
        assert!(
            amounts.available <= amounts.allocatable && amounts.allocatable <= amounts.capacity
        );
    }
}

/// [`Mux::take`]: the same messages however the bytes are cut.
pub fn nri(bytes: &[u8]) {
    let whole = Mux::default().take(bytes);
    let mut mux = Mux::default();
    let portions: Result<Vec<_>, _> = bytes.chunks(7).map(|part| mux.take(part)).collect();
    match (whole, portions) {
        (Ok(whole), Ok(portions)) => assert_eq!(whole, portions.concat()),
        (whole, portions) => assert!(whole.is_err() && portions.is_err()),
    }
}

/// [`Request::of_line`], [`Reply::of_line`].
pub fn requests(bytes: &[u8]) {
    Request::of_line(bytes).ok();
    Reply::of_line(bytes).ok();
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

/// As `plimsoll-trace` does it: the symbols at two offsets, and a symbol's name.
pub fn symbols(bytes: &[u8]) {
    let elf = Elf::new(file("library.so", bytes));
    let offsets = [0x1000, 0x40];
    Symbolizer::new()
        .symbolize(&Source::Elf(elf), Input::FileOffset(&offsets))
        .ok();
    let name = name_of(&String::from_utf8_lossy(bytes));
    assert!(name.len() <= NAME_BYTES_MAX, "{} bytes", name.len());
}
