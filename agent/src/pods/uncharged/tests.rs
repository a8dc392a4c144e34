use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

const MIB: u64 = 1 << 20;

/// A machine with network namespaces and the processes in them.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(TempDir::new().unwrap());
        machine.namespace("node", &[]);
        machine.process(1, "node", None, &[]);
        machine
    }

    fn host(&self) -> HostRoot {
        HostRoot::new(self.0.path())
    }

    /// With netlink sockets: inode and bytes that wait.
    fn namespace(&self, name: &str, sockets: &[(u64, u64)]) {
        let folder = self.0.path().join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("dev"), "").unwrap();
        let mut text = "sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode\n".to_owned();
        for (inode, bytes) in sockets {
            text += &format!("0000000000000000 0 1 00000000 {bytes} 0 0 2 0 {inode}\n");
        }
        fs::write(folder.join("netlink"), text).unwrap();
    }

    /// In a pod's cgroup, with these sockets open.
    fn process(&self, pid: u32, namespace: &str, pod: Option<&str>, sockets: &[u64]) {
        let folder = self.0.path().join(format!("proc/{pid}"));
        fs::create_dir_all(&folder).unwrap();
        symlink(self.0.path().join(namespace), folder.join("net")).unwrap();
        self.descriptors(&format!("{pid}/fd"), sockets);
        if let Some(pod) = pod {
            let dir = self.0.path().join("cgroup").join(pod).join("container");
            fs::create_dir_all(&dir).unwrap();
            let file = dir.join("cgroup.procs");
            let text = fs::read_to_string(&file).unwrap_or_default();
            fs::write(&file, format!("{text}{pid}\n")).unwrap();
            fs::write(dir.parent().unwrap().join("cgroup.procs"), "").unwrap();
        }
    }

    fn descriptors(&self, folder: &str, sockets: &[u64]) {
        let folder = self.0.path().join("proc").join(folder);
        fs::create_dir_all(&folder).unwrap();
        symlink("/dev/null", folder.join("0")).unwrap();
        for (at, inode) in sockets.iter().enumerate() {
            symlink(
                format!("socket:[{inode}]"),
                folder.join((at + 3).to_string()),
            )
            .unwrap();
        }
    }

    /// What is found of these pods, MiB.
    fn found(&self, pods: &[&str]) -> Vec<(String, u64)> {
        let running = pods.iter().map(|pod| {
            let dir = Arc::from(self.0.path().join("cgroup").join(pod));
            (PodUid::new(*pod), dir)
        });
        let running: Vec<Running> = running.collect();
        let found = look(&self.host(), InetQueues::Charged, &running, &End::default());
        let mib = |(uid, bytes): &(PodUid, u64)| (uid.to_string(), bytes / MIB);
        found.iter().map(mib).collect()
    }
}

fn has(pod: &str, mib: u64) -> (String, u64) {
    (pod.to_owned(), mib)
}

#[test]
fn the_queues_of_a_namespace_of_its_own_are_the_pod_s() {
    let machine = Machine::new();
    machine.namespace("a", &[(11, 300 * MIB), (12, 200 * MIB)]);
    machine.namespace("b", &[(21, 3 * MIB)]);
    machine.process(100, "a", Some("hoard"), &[]);
    machine.process(101, "a", Some("hoard"), &[]);
    machine.process(200, "b", Some("talks"), &[]);
    assert_eq!(machine.found(&["hoard", "talks"]), [has("hoard", 500)]);
}

#[test]
fn a_pod_of_two_namespaces_has_the_queues_of_both() {
    let machine = Machine::new();
    machine.namespace("a", &[(11, 30 * MIB)]);
    machine.namespace("b", &[(21, 50 * MIB)]);
    machine.process(100, "a", Some("hoard"), &[]);
    machine.process(101, "b", Some("hoard"), &[]);
    assert_eq!(machine.found(&["hoard"]), [has("hoard", 80)]);
}

#[test]
fn in_a_shared_namespace_a_queue_is_the_pod_s_that_has_the_socket_open() {
    let machine = Machine::new();
    fs::remove_file(machine.0.path().join("node/netlink")).unwrap();
    fs::remove_dir_all(machine.0.path().join("node")).unwrap();
    let sockets = [
        (11, 40 * MIB),
        (12, 50 * MIB),
        (13, 60 * MIB),
        (14, 70 * MIB),
    ];
    machine.namespace("node", &sockets);
    // 11 is open twice, and 14 in no pod.
    machine.process(100, "node", Some("a"), &[11, 12]);
    machine.process(101, "node", Some("a"), &[11]);
    machine.process(200, "node", Some("b"), &[13]);
    machine.process(300, "node", Some("c"), &[]);
    let expected = [has("a", 90), has("b", 60)];
    assert_eq!(machine.found(&["a", "b", "c"]), expected);
    // A namespace that is not the node's, but shared.
    machine.namespace("two", &[(31, 10 * MIB), (32, 20 * MIB)]);
    machine.process(400, "two", Some("d"), &[31]);
    machine.process(401, "two", Some("e"), &[32]);
    assert_eq!(machine.found(&["d", "e"]), [has("d", 10), has("e", 20)]);
}

#[test]
fn descriptors_of_a_thread_are_looked_at_too() {
    let machine = Machine::new();
    machine.namespace("two", &[(31, 10 * MIB), (32, 20 * MIB)]);
    machine.process(400, "two", Some("d"), &[31]);
    machine.process(401, "two", Some("e"), &[]);
    assert_eq!(machine.found(&["d", "e"]), [has("d", 10)]);
    machine.descriptors("401/task/401/fd", &[]);
    machine.descriptors("401/task/402/fd", &[32]);
    assert_eq!(machine.found(&["d", "e"]), [has("d", 10), has("e", 20)]);
}

#[test]
fn of_a_process_whose_first_thread_has_ended_another_one_answers() {
    let machine = Machine::new();
    machine.namespace("a", &[(11, 300 * MIB)]);
    machine.namespace("two", &[(31, 10 * MIB)]);
    for (pid, namespace) in [(100, "a"), (400, "two")] {
        machine.process(pid, namespace, Some("hoard"), &[]);
        let folder = machine.0.path().join(format!("proc/{pid}"));
        fs::remove_file(folder.join("net")).unwrap();
        machine.descriptors(&format!("{pid}/task/9{pid}/fd"), &[31]);
        let net = folder.join(format!("task/9{pid}/net"));
        symlink(machine.0.path().join(namespace), net).unwrap();
    }
    machine.process(500, "two", Some("other"), &[]);
    assert_eq!(machine.found(&["hoard", "other"]), [has("hoard", 310)]);
}

#[test]
fn a_pod_with_very_many_descriptors_hides_nothing_of_the_next() {
    let machine = Machine::new();
    machine.namespace("two", &[(31, 10 * MIB), (32, 20 * MIB)]);
    machine.process(400, "two", Some("d"), &[1, 2, 3, 31]);
    machine.process(401, "two", Some("e"), &[32]);
    let process = |(pod, pid)| Process::find(&machine.host(), pod, pid).unwrap().1;
    let processes = [(0, 400), (1, 401)].map(process);
    let queues = vec![Queue {
        inode: 32,
        bytes: 20,
    }];
    let mut bytes = [0, 0];
    let end = End::default();
    // As many as the second pod has: its socket, and what else each process has open.
    share(&machine.host(), &processes, queues, &mut bytes, 2, &end);
    assert_eq!(bytes, [0, 20]);
}

#[test]
fn the_largest_queues_are_kept() {
    let queue = |inode: u64| Queue {
        inode,
        bytes: inode,
    };
    let mut queues: Vec<Queue> = (0..2 * QUEUES_MAX as u64).map(queue).collect();
    keep_largest(&mut queues);
    assert_eq!(queues.len(), QUEUES_MAX);
    let least = queues.iter().map(|queue| queue.bytes).min();
    assert_eq!(least, Some(QUEUES_MAX as u64));
}

#[test]
fn another_process_answers_for_one_that_has_ended() {
    let machine = Machine::new();
    machine.namespace("a", &[(11, 300 * MIB)]);
    machine.process(100, "a", Some("hoard"), &[]);
    machine.process(101, "a", Some("hoard"), &[]);
    fs::remove_dir_all(machine.0.path().join("proc/100")).unwrap();
    assert_eq!(machine.found(&["hoard", "gone"]), [has("hoard", 300)]);
}
