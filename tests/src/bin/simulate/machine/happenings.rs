//! What happens on the machine, by itself and by what the agent does; with the BPF programs' part of it.

use super::*;
use crate::threads::{State, Thread};

fn header(kind: abi::Kind, cgroup_id: u64, now_ns: u64) -> abi::Header {
    abi::Header {
        ts_ns: now_ns,
        cgroup_id,
        kind: kind.number(),
        abi_version: abi::ABI_VERSION,
        cpu: 0,
    }
}

/// What the machine does, and the world sees.
impl World {
    fn lifecycle(&mut self, kind: abi::Kind, record: &[u8]) {
        if self.bpf.is_attached(&self.root) {
            self.bpf.send("LIFECYCLE", kind, record, usize::MAX);
            self.ring_bell("LIFECYCLE");
        }
    }

    /// `mkdir` of a cgroup, by the agent or another.
    pub(crate) fn make_cgroup(&mut self, path: &str, is_agents: bool) -> Result<usize, i32> {
        let index = self.machine.mkdir(path, is_agents)?;
        let (hierarchy_id, name) = self.machine.numbered(index);
        let mut record = abi::CgroupMkdir {
            header: header(
                abi::Kind::CgroupMkdir,
                self.machine.cgroups[index].id,
                self.now_ns,
            ),
            level: u32::try_from(name.matches('/').count() + 1).unwrap_or(0),
            hierarchy_id,
            path_len: 0,
            pad: 0,
            path: [0; abi::PATH_BYTES],
        };
        let text = format!("/{name}");
        let length = text.len().min(abi::PATH_BYTES - 1);
        record.path[..length].copy_from_slice(&text.as_bytes()[..length]);
        record.path_len = u32::try_from(length).unwrap_or(0);
        self.lifecycle(abi::Kind::CgroupMkdir, record.as_bytes());
        Ok(index)
    }

    pub(crate) fn remove_cgroup(&mut self, path: &str) -> Result<(), i32> {
        let index = self.machine.rmdir(path)?;
        let (hierarchy_id, name) = self.machine.numbered(index);
        let id = self.machine.cgroups[index].id;
        let record = abi::CgroupRmdir {
            header: header(abi::Kind::CgroupRmdir, id, self.now_ns),
            level: u32::try_from(name.matches('/').count() + 1).unwrap_or(0),
            hierarchy_id,
        };
        self.lifecycle(abi::Kind::CgroupRmdir, record.as_bytes());
        Ok(())
    }

    fn tell_populated(&mut self, index: usize) {
        let is_populated = self.machine.is_populated(index);
        let record = abi::CgroupPopulated {
            header: header(
                abi::Kind::CgroupPopulated,
                self.machine.cgroups[index].id,
                self.now_ns,
            ),
            populated: u32::from(is_populated),
            hierarchy_id: self.machine.numbered(index).0,
        };
        self.lifecycle(abi::Kind::CgroupPopulated, record.as_bytes());
        let path = self.machine.cgroups[index].path.clone();
        if let Some((parent, _)) = path.rsplit_once('/')
            && let Some(parent) = self.machine.find(parent)
        {
            self.tell_populated(parent);
        }
    }

    pub(crate) fn move_process(&mut self, pid: i32, to: usize) -> Result<(), i32> {
        let Some(process) = self.machine.processes.get_mut(&pid) else {
            return Err(libc::ESRCH);
        };
        let hierarchy = self.machine.cgroups[to].hierarchy;
        let from = std::mem::replace(&mut process.cgroups[hierarchy], to);
        self.machine.cgroups[from].processes.remove(&pid);
        self.machine.cgroups[to].processes.insert(pid);
        let record = abi::CgroupAttach {
            header: header(
                abi::Kind::CgroupAttach,
                self.machine.cgroups[to].id,
                self.now_ns,
            ),
            tgid: pid.unsigned_abs(),
            hierarchy_id: self.machine.numbered(to).0,
        };
        self.lifecycle(abi::Kind::CgroupAttach, record.as_bytes());
        Ok(())
    }

    /// A pod begins: its cgroups, its process, its memory.
    pub(crate) fn start_pod(&mut self, new: &NewPod) {
        let tier = match (new.is_guaranteed, new.request_bytes) {
            (true, _) => "kubepods",
            (false, 1..) => "kubepods/burstable",
            (false, 0) => "kubepods/besteffort",
        };
        let path = format!("{tier}/pod{}", new.name);
        self.machine.mkdir_all(tier);
        let pod = self.machine.pods.iter().position(|pod| pod.uid == new.name);
        let pod = pod.unwrap_or_else(|| {
            self.machine.pods.push(Pod {
                uid: new.name.clone(),
                path: path.clone(),
                request_bytes: new.request_bytes,
                is_exempt: new.is_exempt,
                ramp: Ramp::default(),
                inactive_bytes: new.inactive_bytes,
                stays_bytes: new.stays_bytes,
                stays_for_ns: new.stays_for_ns,
                processes: BTreeSet::new(),
                again: new.is_restarted.then(|| Box::new(new.clone())),
            });
            self.machine.pods.len() - 1
        });
        let container = format!("{path}/app");
        for hierarchy in self.machine.hierarchies {
            for name in [&path, &container] {
                let place = hierarchy.place(name);
                let index = match self.machine.find(&place) {
                    Some(index) => index,
                    None => self.make_cgroup(&place, false).unwrap_or(0),
                };
                self.machine.cgroups[index].pod = Some(pod);
            }
        }
        let home = self.shape(&container, new.shape);
        if new.is_manifest_late {
            new.write_manifest(&self.root);
        }
        for number in 0..new.processes {
            self.start_process(new, pod, &home, number > 0);
        }
        self.machine.now_ns = self.now_ns;
        self.machine.set_bytes(pod, new.bytes);
        if new.bytes_per_s > 0 {
            let ramp = Ramp {
                bytes: new.bytes,
                bytes_per_s: new.bytes_per_s,
                up_to_bytes: new.up_to_bytes,
                ..Ramp::default()
            };
            self.machine
                .at(self.now_ns + new.grows_after_ns, Happening::Grow(pod, ramp));
        }
        self.checks.pod_started(pod, self.now_ns);
    }

    /// The runtime puts the first one there, which forks the others: of those there is no record.
    fn start_process(&mut self, new: &NewPod, pod: usize, home: &str, is_fork: bool) {
        let pid = self.machine.next_pid;
        self.machine.next_pid += 1;
        let from = if is_fork { home } else { "" };
        self.machine.add_process(pid, from, new.comm.clone());
        if let Some(process) = self.machine.processes.get_mut(&pid) {
            process.on_term = new.on_term;
            process.is_starved = new.is_starved;
            if new.stuck_for_ns > 0 {
                process.stuck_until_ns = self.now_ns + new.stuck_for_ns;
            }
        }
        self.machine.pods[pod].processes.insert(pid);
        if is_fork {
            return;
        }
        for hierarchy in self.machine.hierarchies {
            let home = self.machine.find(&hierarchy.place(home)).unwrap_or(0);
            self.move_process(pid, home).ok();
            self.tell_populated(home);
        }
    }

    /// The cgroups below a container; returns the one that its process is in.
    fn shape(&mut self, container: &str, shape: Shape) -> String {
        let mut home = container.to_owned();
        let names: Vec<String> = match shape {
            Shape::Plain => Vec::new(),
            Shape::Deep(levels) => (0..levels)
                .map(|level| {
                    home = format!("{home}/d{level}");
                    home.clone()
                })
                .collect(),
            Shape::Many(count) => {
                home = format!("{container}/n{:06}", count - 1);
                (0..count)
                    .map(|child| format!("{container}/n{child:06}"))
                    .collect()
            }
            Shape::Threaded => vec![format!("{container}/t")],
        };
        for hierarchy in self.machine.hierarchies {
            for name in &names {
                let Ok(index) = self.make_cgroup(&hierarchy.place(name), false) else {
                    continue;
                };
                self.machine.cgroups[index].is_threaded =
                    shape == Shape::Threaded && !hierarchy.is_v1;
            }
        }
        home
    }

    fn process_ended(&mut self, pid: i32) {
        let Some(process) = self.machine.remove_process(pid) else {
            return;
        };
        let pod = self
            .machine
            .pods
            .iter()
            .position(|pod| pod.processes.contains(&pid));
        if let Some(pod) = pod {
            self.machine.pods[pod].processes.remove(&pid);
            if self.machine.pods[pod].processes.is_empty() {
                let Pod {
                    stays_bytes,
                    stays_for_ns,
                    ..
                } = self.machine.pods[pod];
                let stays = stays_bytes.min(self.machine.used(pod, self.now_ns));
                self.machine.set_bytes(pod, stays);
                if stays > 0 {
                    self.machine
                        .at(self.now_ns + stays_for_ns, Happening::MemoryBack(pod));
                }
                self.checks.pod_ended(pod, self.now_ns);
                if let Some(again) = self.machine.pods[pod].again.clone() {
                    self.machine
                        .at(self.now_ns + 10 * SECOND, Happening::Start(again));
                }
            }
        }
        for cgroup in process.cgroups {
            if self.machine.cgroups[cgroup].processes.is_empty() {
                self.tell_populated(cgroup);
            }
        }
    }

    /// A control file is written.
    pub(crate) fn write_control(
        &mut self,
        index: usize,
        file: &str,
        value: &str,
    ) -> Result<(), i32> {
        self.machine.now_ns = self.now_ns;
        if !self.machine.cgroups[index].is_there {
            return Err(libc::ENODEV);
        }
        let value = value.trim();
        match file {
            "cgroup.kill" => {
                let path = self.machine.cgroups[index].path.clone();
                let below = self.machine.below(&path);
                let pids: Vec<i32> = below
                    .iter()
                    .flat_map(|index| self.machine.cgroups[*index].processes.clone())
                    .collect();
                for pid in pids {
                    self.machine.signal(pid, libc::SIGKILL);
                }
            }
            "cgroup.procs" => {
                let pid: i32 = value.parse().map_err(|_| libc::EINVAL)?;
                self.move_process(if pid == 0 { AGENT_PID } else { pid }, index)?;
            }
            "cgroup.subtree_control" => {
                let values = &mut self.machine.cgroups[index].values;
                let text = values.entry(file.to_owned()).or_default();
                let mut now: BTreeSet<String> =
                    text.split_whitespace().map(str::to_owned).collect();
                for word in value.split_whitespace() {
                    match word.split_at(1) {
                        ("+", name) => now.insert(name.to_owned()),
                        (_, name) => now.remove(name),
                    };
                }
                *text = now.into_iter().collect::<Vec<_>>().join(" ");
            }
            // A quota without a period keeps the one that it has.
            "cpu.max" if !value.contains(' ') => {
                let values = &mut self.machine.cgroups[index].values;
                let before = values.get(file).cloned().unwrap_or_default();
                let period = before.rsplit(' ').next().unwrap_or("100000");
                values.insert(file.to_owned(), format!("{value} {period}"));
            }
            "memory.reclaim" => return Err(libc::EAGAIN),
            "cgroup.event_control" => {
                let fds = &self.fds;
                let path_of = |fd: i32| fds.get(&fd).map(|open| open.path.clone());
                self.machine.register(value, path_of)?;
            }
            _ => {
                self.machine.cgroups[index]
                    .values
                    .insert(file.to_owned(), value.to_owned());
                if file == "freezer.state" {
                    self.machine.thawed();
                }
            }
        }
        Ok(())
    }

    /// The kernel's OOM killer takes the largest.
    fn oom_kill(&mut self) {
        let now_ns = self.now_ns;
        let victims = self
            .machine
            .processes
            .iter()
            .filter(|(pid, process)| **pid != AGENT_PID && process.killed_ns.is_none());
        let largest = victims.max_by_key(|(_, process)| {
            let pod = self.machine.cgroups[process.cgroups[0]].pod;
            pod.map_or(0, |pod| self.machine.used(pod, now_ns))
        });
        if let Some(pid) = largest.map(|(pid, _)| *pid) {
            self.machine.oom_kills += 1;
            self.oom_kill_process(pid);
        }
    }

    fn oom_kill_process(&mut self, pid: i32) {
        let now_ns = self.now_ns;
        let Some(process) = self.machine.processes.get(&pid).cloned() else {
            return;
        };
        let memory = process.cgroups[0];
        self.machine.cgroups[memory].oom_kills += 1;
        let pod = self.machine.cgroups[memory].pod;
        self.checks.kernel_oom_kill(pod, now_ns);
        let mut comm = [0; abi::COMM_BYTES];
        let length = process.comm.len().min(abi::COMM_BYTES - 1);
        comm[..length].copy_from_slice(&process.comm[..length]);
        let record = abi::OomKill {
            header: header(abi::Kind::OomKill, self.machine.cgroups[memory].id, now_ns),
            limit_cgroup_id: abi::NODE_OOM,
            points: 1000,
            total_pages: 1000,
            anon_pages: 1000,
            tgid: pid.unsigned_abs(),
            oom_score_adj: 0,
            comm,
        };
        if self.bpf.is_attached(&self.root) {
            self.bpf.send(
                "CRITICAL",
                abi::Kind::OomKill,
                record.as_bytes(),
                abi::CRITICAL_SHARED_BYTES as usize,
            );
            self.ring_bell("CRITICAL");
        }
        self.process_ended(pid);
    }

    /// A pod moves a process of its own to and fro.
    fn attach_in_pod(&mut self, left: u32, every_ns: u64, name: &'static str) {
        let pod = self.machine.pods.iter().find(|pod| pod.uid == name);
        let pid = pod.and_then(|pod| pod.processes.first().copied());
        let path = pod.map(|pod| self.machine.hierarchies[0].place(&pod.path));
        if let (Some(pid), Some(path)) = (pid, path) {
            let target = if left.is_multiple_of(2) {
                path.clone()
            } else {
                format!("{path}/app")
            };
            if let Some(to) = self.machine.find(&target) {
                self.move_process(pid, to).ok();
            }
        }
        self.next_attach(left, every_ns, Some(name));
    }

    fn next_attach(&mut self, left: u32, every_ns: u64, pod: Option<&'static str>) {
        let (now_ns, worked_ns) = (self.now_ns, self.checks.worked_ns);
        let (began_ns, worked_before_ns) = *self.machine.flood.get_or_insert((now_ns, worked_ns));
        if left > 1 {
            let next = Happening::Attaches {
                left: left - 1,
                every_ns,
                pod,
            };
            self.machine.at(now_ns + every_ns, next);
            return;
        }
        self.machine.flood = None;
        self.checks
            .flooded(now_ns - began_ns, worked_ns - worked_before_ns, now_ns);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Start(new) => self.start_pod(&new),
            Happening::Grow(pod, mut ramp) => {
                ramp.at_ns = self.now_ns;
                ramp.bytes = self.machine.used(pod, self.now_ns);
                let is_dying = |pid: &i32| {
                    self.machine
                        .processes
                        .get(pid)
                        .is_none_or(|process| process.killed_ns.is_some())
                };
                if !self.machine.pods[pod].processes.iter().all(is_dying) {
                    self.machine.set_ramp(pod, ramp);
                }
            }
            Happening::MemoryBack(pod) => {
                if self.machine.pods[pod].processes.is_empty() {
                    self.machine.set_bytes(pod, 0);
                }
            }
            Happening::Attaches {
                left,
                every_ns,
                pod: Some(pod),
            } => self.attach_in_pod(left, every_ns, pod),
            Happening::Attaches {
                left,
                every_ns,
                pod: None,
            } => {
                let record = abi::CgroupAttach {
                    header: header(
                        abi::Kind::CgroupAttach,
                        77_000 + u64::from(left),
                        self.now_ns,
                    ),
                    tgid: 1 << 21,
                    hierarchy_id: self.machine.hierarchies[0].id,
                };
                self.lifecycle(abi::Kind::CgroupAttach, record.as_bytes());
                self.next_attach(left, every_ns, None);
            }
            Happening::Hold { ns } => {
                let incarnation = self.incarnation;
                let others: Vec<usize> = (0..self.threads.len())
                    .filter(|id| {
                        !self.threads[*id].is_loop && self.threads[*id].incarnation == incarnation
                    })
                    .collect();
                let index = usize::try_from(self.random.below(others.len() as u64)).unwrap_or(0);
                if let Some(id) = others.get(index) {
                    let thread = &mut self.threads[*id];
                    thread.local_ns = thread.local_ns.max(self.now_ns) + ns;
                }
            }
            Happening::LimitMet(name) => {
                let found = self.machine.pods.iter().find(|pod| pod.uid == name);
                let pid = found.and_then(|pod| pod.processes.first().copied());
                if let Some(pid) = pid {
                    self.oom_kill_process(pid);
                }
            }
            Happening::UserLocks => {
                self.user_locks();
                self.machine
                    .at(self.now_ns + 100 * MS, Happening::UserLocks);
            }
            Happening::RootLocks { file, for_ns } => {
                self.root_locks(file);
                self.machine.at(self.now_ns + for_ns, Happening::Unlock);
            }
            Happening::Unlock => self.root_unlocks(),
            Happening::Disk(place, lacks) => {
                let place = self.root.join(place);
                let now_ns = self.now_ns;
                match lacks {
                    Some(lacks) => self.machine.disks.fill(place, lacks),
                    None => self.machine.disks.empty(&place, now_ns),
                }
            }
            Happening::Clock(by_ns) => self.machine.clock_ns += by_ns,
            Happening::Freeze(name) => {
                let pod = self.machine.pods.iter().position(|pod| pod.uid == name);
                let of_pod = self.machine.cgroups.iter_mut();
                for cgroup in
                    of_pod.filter(|it| it.pod == pod && it.values.contains_key("freezer.state"))
                {
                    cgroup
                        .values
                        .insert("freezer.state".to_owned(), "FROZEN".to_owned());
                }
            }
            Happening::StartAgent => crate::run::start_agent(self),
            // Before it catches signals it would just end; nothing is changed by then.
            Happening::StopAgent if !self.checks.is_serving() => {
                self.machine.at(self.now_ns + SECOND, Happening::StopAgent);
            }
            Happening::StopAgent => crate::run::stop_agent(self),
            Happening::End => {
                let now_ns = self.now_ns;
                self.checks.never_ended(now_ns);
                crate::run::report_and_exit(self)
            }
        }
    }
}

/// Everything that has come by now.
pub(crate) fn step(world: &mut World) {
    let now_ns = world.now_ns;
    world.machine.now_ns = now_ns;
    world.machine.next_ns = None;
    world.poked = true;
    // What crosses first: the kernel counts before a process can end.
    if let Some(armed) = world.machine.armed_bytes
        && world.machine.charged(now_ns) >= armed
    {
        cross(world);
    }
    let due = world.machine.ends.iter();
    let mut ended: Vec<i32> = due
        .take_while(|(at_ns, _)| *at_ns <= now_ns)
        .map(|(_, pid)| *pid)
        .collect();
    ended.sort_unstable();
    for pid in ended {
        world.process_ended(pid);
    }
    while let Some(entry) = world.machine.events.first_entry()
        && entry.key().0 <= now_ns
    {
        let happening = entry.remove();
        world.happen(happening);
    }
    for bell in world.machine.crossed_bells() {
        ring_eventfd(bell);
    }
    let free = world.machine.free(now_ns);
    if free < EXHAUSTED_BYTES {
        world.oom_kill();
    }
    if free < PRESSED_BYTES && world.machine.stalled_since_ns.is_none() {
        world.machine.stalled_since_ns = Some(now_ns);
        let triggers: Vec<i32> = world
            .fds
            .iter()
            .filter(|(_, fd)| fd.kind == Kind::PsiTrigger)
            .map(|(fd, _)| *fd)
            .collect();
        for fd in triggers {
            ring_eventfd(fd);
        }
    } else if free >= PRESSED_BYTES {
        world.machine.stalled_since_ns = None;
    }
    world.check_machine();
}

/// The agent has written into `CHARGES`.
pub(crate) fn armed(world: &mut World) {
    let pages = world.bpf.word("CHARGES", abi::charges::THRESHOLD_PAGES);
    world.machine.now_ns = world.now_ns;
    world.machine.armed_bytes = (pages > 0).then(|| pages * PAGE);
    world.machine.next_ns = None;
}

/// The total, as the program counts it.
pub(crate) fn count_charges(world: &mut World) {
    let pages = world.machine.charged(world.now_ns) / PAGE;
    world
        .bpf
        .set_word("CHARGES", abi::charges::TOTAL_PAGES, pages);
}

fn cross(world: &mut World) {
    world.machine.armed_bytes = None;
    world.machine.next_ns = None;
    let is_heap_held = world.machine.heap_held_until_ns > world.now_ns;
    // A loop that is at work may be at any of its allocations, and finishes what it does first.
    let waits = |thread: &Thread| thread.is_loop && matches!(thread.state, State::Poll(_));
    if world.machine.heap_ns > 0 && !is_heap_held && world.threads.iter().any(waits) {
        let name = format!("kubepods/burstable/podcalm0/app/c{}", world.now_ns);
        let path = world.machine.hierarchies[0].place(&name);
        world.make_cgroup(&path, false).ok();
        crate::world::hold_heap(world.now_ns + world.machine.heap_ns);
    }
    count_charges(world);
    world
        .bpf
        .set_word("CHARGES", abi::charges::THRESHOLD_PAGES, 0);
    if !world.bpf.is_attached(&world.root) {
        return;
    }
    let record = abi::ChargesReached {
        header: header(abi::Kind::ChargesReached, 0, world.now_ns),
        charged_pages: world.bpf.word("CHARGES", abi::charges::TOTAL_PAGES),
        generation: world.bpf.word("CHARGES", abi::charges::GENERATION),
        // As with more NUMA nodes than the program adds up: what the loop reads is where its sample is checked.
        node: abi::NodePages::UNKNOWN,
    };
    world.bpf.send(
        "CRITICAL",
        abi::Kind::ChargesReached,
        record.as_bytes(),
        usize::MAX,
    );
    world.ring_bell("CRITICAL");
    // What the loop does after an answer takes the heap's lock, and the next crossing waits for that.
    if !is_heap_held {
        world.checks.crossed(world.now_ns);
    }
}

/// `kill -9` of the agent: its process has gone, another comes.
pub(crate) fn agent_killed(world: &mut World) {
    world.machine.now_ns = world.now_ns;
    world.machine.forget_bells(|_| true);
    world
        .machine
        .at(world.now_ns + 200 * MS, Happening::StartAgent);
    if world.machine.stop_ns <= world.now_ns + SECOND {
        // The one that follows is to end as well.
        world
            .machine
            .at(world.now_ns + 10 * SECOND, Happening::StopAgent);
    }
}
