use std::fs;
use std::path::Path;

use super::*;
use crate::host::cgroup::tests::{fake_host, fake_v2};

/// A control file cuts what it had before; a file in a temporary directory keeps the tail, so all numbers here are of
/// one length.
const MAX: &str = "050000 100000";

struct Node {
    _dir: tempfile::TempDir,
    pod: PathBuf,
    ledger: PathBuf,
    reader: Reader,
    worker_ledger: Ledger,
    watch: Watch,
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn watch() -> Watch {
    Watch {
        pods: vec![WatchedPod {
            uid: "web".into(),
            path: CgroupPath::new("kubepods/burstable/podweb").unwrap(),
            may_come_first: true,
        }],
        exclusive: CpuSet::EMPTY,
    }
}

fn v2() -> Node {
    let (dir, host) = fake_v2();
    write(
        &host.procfs("stat"),
        "cpu  1 1\ncpu0 10 0 0 90 0 0 0 0 0 0\n",
    );
    let pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\n";
    write(&host.path("/sys/fs/cgroup/cpu.pressure"), pressure);
    let pod = host.path("/sys/fs/cgroup/kubepods/burstable/podweb");
    for cgroup in [pod.clone(), pod.join("app")] {
        write(&cgroup.join("cpu.max"), &format!("{MAX}\n"));
        write(&cgroup.join("cpu.max.burst"), "000000\n");
        write(
            &cgroup.join("cpu.stat"),
            "usage_usec 5000\nnr_periods 10\nnr_throttled 3\nnr_bursts 1\n",
        );
        write(&cgroup.join("cpu.pressure"), pressure);
    }
    let ledger = dir.path().join(CPU_LEDGER);
    Node {
        pod,
        reader: Reader::open(&host, &host.cgroup_mounts().unwrap()).unwrap(),
        worker_ledger: Ledger::open(&host, &ledger).unwrap(),
        ledger,
        _dir: dir,
        watch: watch(),
    }
}

impl Node {
    fn read(&mut self) -> (CpuReading, Vec<PathBuf>) {
        let mut overwritten = Vec::new();
        let mut said = |remark| match remark {
            Remark::Overwritten { path, .. } => overwritten.push(path),
            Remark::Unreadable(text) => panic!("{text}"),
        };
        let reading = self.reader.read(&self.watch, 7, &mut said).unwrap();
        (reading, overwritten)
    }

    fn change(&mut self, container: &str, knob: CpuKnob, us: Option<u64>) -> Vec<String> {
        let change = Setting {
            uid: "web".into(),
            container: Arc::from(container),
            knob,
            us,
        };
        self.reader
            .change(&change, &mut self.worker_ledger)
            .unwrap()
    }

    fn max(&self) -> String {
        fs::read_to_string(self.pod.join("app/cpu.max")).unwrap()
    }

    fn lines(&self) -> usize {
        fs::read_to_string(&self.ledger).unwrap().lines().count()
    }
}

#[test]
fn what_was_before_us_is_known_and_comes_back() {
    let mut node = v2();
    let (reading, _) = node.read();
    assert_eq!(reading.source, Some(WaitSource::Pressure));
    assert_eq!(
        (reading.shared.busy_us, reading.shared.total_us),
        (100_000, 1_000_000)
    );
    let pod = &reading.pods[0];
    assert_eq!((pod.usage_us, pod.waited_us), (5000, Some(1234)));
    let names: Vec<&str> = pod
        .cgroups
        .iter()
        .map(|cgroup| &*cgroup.container)
        .collect();
    assert_eq!(names, ["", "app"]);
    let app = &pod.cgroups[1];
    assert_eq!(
        (app.quota_us, app.configured_quota_us, app.period_us),
        (Some(50_000), Some(50_000), 100_000)
    );
    assert_eq!((app.periods, app.throttled, app.bursts), (10, 3, 1));
    // Nothing has moved.
    assert_eq!(node.read().0.pods, []);

    for us in [625_000, 750_000] {
        node.change("app", CpuKnob::Quota, Some(us));
        let (reading, overwritten) = node.read();
        let app = &reading.pods[0].cgroups[1];
        assert_eq!(
            (app.quota_us, app.configured_quota_us),
            (Some(us), Some(50_000))
        );
        assert!(overwritten.is_empty());
    }
    assert_eq!((node.max().trim(), node.lines()), ("750000 100000", 2));
    assert_eq!(node.change("app", CpuKnob::Quota, None), [""; 0]);
    assert_eq!((node.max().trim(), node.lines()), (MAX, 0));
    let (reading, overwritten) = node.read();
    let app = &reading.pods[0].cgroups[1];
    assert_eq!(
        (app.quota_us, app.configured_quota_us),
        (Some(50_000), Some(50_000))
    );
    assert!(overwritten.is_empty());
}

#[test]
fn what_somebody_else_writes_is_theirs() {
    let mut node = v2();
    node.read();
    node.change("app", CpuKnob::Quota, Some(625_000));
    node.change("", CpuKnob::Burst, Some(500_000));
    let max = node.pod.join("app/cpu.max");
    fs::write(&max, "400000 100000\n").unwrap();
    let (reading, overwritten) = node.read();
    assert_eq!(overwritten, [max]);
    let [pod, app] = &reading.pods[0].cgroups[..] else {
        panic!("{reading:?}");
    };
    assert_eq!(
        (app.quota_us, app.configured_quota_us),
        (Some(400_000), Some(400_000))
    );
    assert_eq!(
        (pod.burst_us, pod.configured_burst_us),
        (Some(500_000), Some(0))
    );
    assert!(node.reader.is_changed());
    // It is not put back.
    node.change("app", CpuKnob::Quota, None);
    node.worker_ledger.restore().unwrap();
    assert_eq!(node.max().trim(), "400000 100000");
    assert_eq!(
        fs::read_to_string(node.pod.join("cpu.max.burst"))
            .unwrap()
            .trim(),
        "000000"
    );
}

#[test]
fn the_end_puts_everything_back() {
    let node = v2();
    let host = HostRoot::new(node._dir.path());
    let mounts = host.cgroup_mounts().unwrap();
    let ledger = Ledger::open(&host, &node.ledger).unwrap();
    let every = Duration::from_millis(10);
    let (cpu_time, mut reports) = CpuTime::start(&host, &mounts, ledger, every).unwrap();
    cpu_time.watch(node.watch.clone());
    let mut reading = || loop {
        match reports.blocking_recv().unwrap() {
            Report::Reading(reading) if !reading.pods.is_empty() => return reading,
            Report::Reading(_) => {}
            other => panic!("{other:?}"),
        }
    };
    reading();
    cpu_time.change(Setting {
        uid: "web".into(),
        container: Arc::from("app"),
        knob: CpuKnob::Quota,
        us: Some(625_000),
    });
    // The figure has moved, and the reading says what it was.
    let app = reading().pods[0].cgroups[1].clone();
    assert_eq!(
        (app.quota_us, app.configured_quota_us),
        (Some(625_000), Some(50_000))
    );
    drop(cpu_time);
    assert_eq!((node.max().trim(), node.lines()), (MAX, 0));
}

#[test]
fn v1_without_cpuacct_beside_it_counts_its_tasks() {
    let (dir, host) = fake_host(&[("cgroup", "/sys/fs/cgroup/cpu", "rw,cpu")]);
    write(&host.procfs("stat"), "cpu0 10 0 0 90 0 0 0 0 0 0\n");
    let pod = host.path("/sys/fs/cgroup/cpu/kubepods/burstable/podweb");
    for cgroup in [pod.clone(), pod.join("app")] {
        write(&cgroup.join("cpu.cfs_quota_us"), "-1\n");
        write(&cgroup.join("cpu.cfs_period_us"), "100000\n");
        write(
            &cgroup.join("cpu.stat"),
            "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
        );
        write(&cgroup.join("tasks"), "");
    }
    let tasks = pod.join("app/tasks");
    write(&tasks, "41\n42\n");
    write(&host.procfs("41/schedstat"), "3000000 1000000 5\n");
    write(&host.procfs("42/schedstat"), "2000000 500000 5\n");
    let mut reader = Reader::open(&host, &host.cgroup_mounts().unwrap()).unwrap();
    assert_eq!(reader.source(), WaitSource::Tasks);
    let mut said = |_: Remark| panic!("nothing is wrong");
    let reading = reader.read(&watch(), 7, &mut said).unwrap();
    let reading_of_pod = &reading.pods[0];
    assert_eq!(
        (reading_of_pod.usage_us, reading_of_pod.waited_us),
        (5000, Some(1500))
    );
    let [pod, app] = &reading_of_pod.cgroups[..] else {
        panic!("{reading_of_pod:?}");
    };
    assert_eq!(
        (pod.quota_us, app.quota_us, app.burst_us),
        (None, None, None)
    );
    assert_eq!((pod.usage_us, app.usage_us), (5000, 5000));
    // The container's cgroup goes between two reads: the rest of the pod stays known.
    std::fs::remove_file(tasks).unwrap();
    let reading = reader.read(&watch(), 8, &mut said).unwrap();
    assert_eq!(reading.pods[0].cgroups.len(), 1);
    drop(dir);
}
