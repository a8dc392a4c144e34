//! The optional parts of the agent that the configuration asks for.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;

use anyhow::Result;
use plimsoll_core::kube::cgroup_config::NodeCapacity;
use plimsoll_core::model::options::OomOrder;

use super::plan::Plan;
use super::{Loaded, Start};
use crate::act::cpu_time::{CPU_LEDGER, CpuTime, READ_EVERY};
use crate::act::memory_release::MemoryRelease;
use crate::act::oom_group::OomGroups;
use crate::act::oom_order::OomOrdering;
use crate::act::oom_scores::OomScores;
use crate::act::placement::NodePaths;
use crate::act::remedies::{REMEDIES_LEDGER, Remedies};
use crate::daemon::{Agent, LastLine, OomWork, PlacementWork, Sources};
use crate::host::ledger::{AGENT_LEDGER, Ledger};
use crate::host::meminfo::MeminfoFile;
use crate::input::devices;
use crate::record::lines::Line;

/// Optional parts of the agent.
pub(super) struct Features {
    pub(super) placement: Option<PlacementWork>,
    last_line: Option<LastLine>,
    oom: OomWork,
    remedies: Option<Remedies>,
    memory_release: Option<MemoryRelease>,
    cpu_time: Option<CpuTime>,
}

impl Features {
    pub(super) fn add_to(self, agent: Agent) -> Agent {
        let mut agent = agent
            .with_placement(self.placement)
            .with_last_line(self.last_line)
            .with_oom(self.oom)
            .with_memory_release(self.memory_release);
        if let Some(remedies) = self.remedies {
            agent = agent.with_remedies(remedies);
        }
        if let Some(cpu_time) = self.cpu_time {
            agent = agent.with_cpu_time(cpu_time);
        }
        agent
    }
}

impl Start<'_> {
    /// The optional parts that the configuration asks for. One that cannot start is left out, with a line among the
    /// losses. Remedies then leave the engine's options as well: it must not wait for what no thread carries out.
    pub(super) fn features(
        &mut self,
        loaded: &Loaded,
        capacity: NodeCapacity,
        sources: &mut Sources,
    ) -> Result<Features> {
        let options = self.plan.config.engine.options;
        let oom_order = match options.oom_order {
            OomOrder::Kubelet => None,
            OomOrder::Dynamic => {
                let order = OomOrdering::open(&self.plan.host, &self.plan.mounts);
                self.without("oomOrder Dynamic", order)
            }
        };
        // Beside a kubelet scores are its own, unless they are to follow the order of eviction.
        let has_scores = self.plan.kubelet.is_none() || oom_order.is_some();
        let oom_scores = match has_scores {
            true => {
                let started = self.oom_scores(loaded)?;
                self.without("oom_score_adj of processes", started)
            }
            false => None,
        };
        self.leave_to_kubelet();
        let mut features = Features {
            placement: self.placement(capacity, sources)?,
            last_line: options
                .last_line
                .map(|options| LastLine::new(options, &self.plan.host)),
            oom: OomWork {
                scores: oom_scores,
                order: oom_order,
                groups: self.oom_groups(),
            },
            remedies: None,
            memory_release: None,
            cpu_time: None,
        };
        let release = MemoryRelease::start(self.plan.host.clone());
        features.memory_release = self.without("release of killed pods' memory", release);
        if options.remedies.is_some() {
            let started = self
                .plan
                .ledger(REMEDIES_LEDGER)
                .map_err(anyhow::Error::from)
                .and_then(|ledger| Ok(Remedies::start(ledger)?));
            match self.without("memory remedies", started) {
                Some((remedies, reports)) => {
                    sources.watch_remedies(reports);
                    features.remedies = Some(remedies);
                }
                None => self.plan.config.engine.options.remedies = None,
            }
        }
        let cpu = &self.plan.config.engine.cpu;
        if cpu.burst.is_some() || cpu.suppress.is_some() {
            let Plan { host, mounts, .. } = &self.plan;
            let started = self
                .plan
                .ledger(CPU_LEDGER)
                .map_err(anyhow::Error::from)
                .and_then(|ledger| Ok(CpuTime::start(host, mounts, ledger, READ_EVERY)?));
            if let Some((cpu_time, reports)) = self.without("cpuBurst and cpuSuppress", started) {
                sources.watch_cpu_time(reports);
                features.cpu_time = Some(cpu_time);
            }
        }
        Ok(features)
    }

    /// What a kubelet owns is not changed, whatever the configuration asks for.
    fn leave_to_kubelet(&mut self) {
        if self.plan.kubelet.is_none() {
            return;
        }
        let config = &mut self.plan.config;
        let cpu = std::mem::take(&mut config.engine.cpu);
        if cpu.burst.is_some() || cpu.suppress.is_some() {
            let text = "cpuBurst and cpuSuppress: cpu.max is the kubelet's; they are off with --kubernetes";
            self.lost.push(text.to_owned());
        }
    }

    fn placement(
        &mut self,
        capacity: NodeCapacity,
        sources: &mut Sources,
    ) -> Result<Option<PlacementWork>> {
        let Plan {
            args,
            config,
            host,
            mounts,
            cgroup_root,
            kubelet,
            ..
        } = &self.plan;
        let paths = NodePaths {
            host: host.clone(),
            mounts: mounts.clone(),
            cgroup_root: cgroup_root.clone(),
            kubelet: kubelet.clone(),
            state_dir: args.state_dir.clone(),
            kubelet_dir: args.kubelet_dir.clone(),
        };
        let devices = args.devices.as_deref().map(devices::read).transpose()?;
        let reporter = &mut self.reporter;
        let prepared = PlacementWork::prepare(
            paths,
            capacity,
            args.move_interrupts,
            config,
            devices,
            |text| {
                reporter.say(&Line::Warning { text });
            },
        );
        let prepared = match self.plan.kubelet {
            None => prepared?,
            // Evictions go on without it.
            Some(_) => {
                let prepared = prepared.map_err(|error| {
                    format!(
                        "{error:#}; this is checked only at start: restart plimsoll when it is mended"
                    )
                });
                self.without("placement of CPUs and memory", prepared)
                    .flatten()
            }
        };
        Ok(prepared.map(|(work, reports)| {
            sources.watch_placement(reports);
            work
        }))
    }

    fn oom_groups(&mut self) -> Option<OomGroups> {
        let pod_oom_group = self.plan.config.engine.options.pod_oom_group;
        let ledger = pod_oom_group.then(|| self.plan.ledger(AGENT_LEDGER));
        let ledger = ledger.and_then(|ledger| self.without("podOOMGroup", ledger));
        // The loop writes to it.
        let ledger = ledger.map(Ledger::without_waiting);
        let single_process = self.plan.config.cgroups.single_process_oom_kill;
        let single_process = single_process.unwrap_or(false);
        let groups = OomGroups::new(&self.plan.mounts, single_process, ledger);
        if groups.is_none() && pod_oom_group {
            self.warn(
                "podOOMGroup has no effect: memory is on cgroup v1 here, which has no memory.oom.group"
                    .to_owned(),
            );
        }
        groups
    }

    fn oom_scores(&self, loaded: &Loaded) -> Result<io::Result<OomScores>> {
        let host = &self.plan.host;
        let capacity_bytes = NonZeroU64::new(MeminfoFile::open(host)?.read()?.total);
        let capacity_bytes = capacity_bytes.unwrap_or(NonZeroU64::MIN);
        let sees_attach = loaded.attaches("cgroup_attach_task");
        let news = Arc::clone(&self.news);
        let started = OomScores::start(host.clone(), capacity_bytes, sees_attach, news);
        Ok(started)
    }
}
