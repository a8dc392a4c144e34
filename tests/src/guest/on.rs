//! What a test declares of the machines that it runs on. What they are is in [`super::machines`].

/// A machine on which tests run, for their declarations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// Kernel 6.1, cgroup v2, one CPU: with more it does not boot where time counts instructions.
    V6_1,
    /// Kernel 6.1, cgroup v2, four CPUs and the host's clock: for what needs the speed of a disk or of several CPUs.
    V6_1Smp,
    /// Kernel 6.12, cgroup v2.
    V6_12,
    /// Kernel 7.2, cgroup v2.
    V7_2,
    /// Kernel 6.1, memory controller on cgroup v1, one CPU: the one kernel of the three that has it.
    Hybrid,
    /// Two NUMA nodes.
    Numa2,
    /// Two NUMA nodes, four CPUs, memory controller on cgroup v1.
    Numa2Hybrid,
    /// Eight NUMA nodes, threads and split caches.
    Numa8,
    /// A kernel that lets nobody load BPF programs.
    Confidential,
    /// A kernel that lets only signed code in, without PSI.
    IntegrityNoPsi,
    /// One that only `--all` starts.
    More,
}

/// The machines that a test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// The kernel has no part in what it shows, or a small one: once, here.
    Once(Machine),
    /// It shows something of the kernel: once on the oldest and on the newest, with cgroup v2; on each with `--all`.
    EachKernel,
    /// The same, and with memory on cgroup v1.
    EachKernelAndHybrid,
    /// On the first of these; on all of them with `--all`. The kernel or the hierarchy has a small part in it, and what
    /// is shown by other tests on the others each time is most of that.
    First(&'static [Machine]),
    /// On these.
    These(&'static [Machine]),
    /// Here, with `--all` only: it takes an emulated machine long, by its size or because it waits for a time to pass,
    /// and finds what changes seldom; or tests without a guest show most of it each time.
    Weekly(Machine),
}

impl On {
    /// The machines of `cargo xtask test`.
    #[must_use]
    pub fn machines(self) -> Vec<Machine> {
        use Machine::{Hybrid, V6_1, V7_2};
        match self {
            Self::Weekly(_) => Vec::new(),
            Self::EachKernel => vec![V6_1, V7_2],
            Self::EachKernelAndHybrid => vec![V6_1, V7_2, Hybrid],
            Self::First(machines) => machines.first().copied().into_iter().collect(),
            _ => self.machines_with_all(),
        }
    }

    /// The machines of `cargo xtask test --all`; there, it runs on those that are alike, too.
    #[must_use]
    pub fn machines_with_all(self) -> Vec<Machine> {
        use Machine::{Hybrid, V6_1, V6_12, V7_2};
        match self {
            Self::Once(machine) | Self::Weekly(machine) => vec![machine],
            Self::EachKernel => vec![V6_1, V6_12, V7_2],
            Self::EachKernelAndHybrid => vec![V6_1, V6_12, V7_2, Hybrid],
            Self::First(machines) | Self::These(machines) => machines.to_vec(),
        }
    }
}
