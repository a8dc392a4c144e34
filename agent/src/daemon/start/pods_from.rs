//! Where pods come from, and who runs them: manifests or a kubelet, and the container runtime.

use std::sync::Arc;

use anyhow::Result;
use plimsoll_core::kube::cgroup_config::NodeCapacity;
use tokio::sync::mpsc;

use super::Start;
use super::kubelet::{conflicts, soft_grace_s};
use super::plan::{Plan, nri_settings, topology_source};
use crate::act::holds::{HOLDS_LEDGER, Holds, HoldsError};
use crate::daemon::admission::is_running;
use crate::daemon::{KubeletWork, NriWork, Sources};
use crate::host::ledger::Ledger;
use crate::host::meminfo::MeminfoFile;
use crate::host::shown::Show as _;
use crate::input::manifests::admission::AdmissionContext;
use crate::pods::cgroup_worker::CgroupWorker;
use crate::pods::kill::{Ages, KillThread};
use crate::pods::memory_reader::StatThread;
use crate::pods::registry::Pods;
use crate::source::cluster::{ClusterLink, ClusterSettings};
use crate::source::nri::NriLink;

impl Start<'_> {
    /// Where pods come from: manifests, or a kubelet. `is_aligned`: containers are to be near to their devices.
    pub(super) fn pod_source(
        &mut self,
        sources: &mut Sources,
        is_aligned: bool,
    ) -> Result<Option<KubeletWork>> {
        let Plan { args, kubelet, .. } = &self.plan;
        let Some(tree) = kubelet else {
            let (mounts, root) = (self.plan.mounts.clone(), self.plan.cgroup_root.clone());
            let ground = AdmissionContext {
                state_dir: args.state_dir.clone(),
                is_running: Box::new(move |pod| is_running(&mounts, &root, pod)),
            };
            sources.watch_manifests(&args.manifests, ground)?;
            return Ok(None);
        };
        let conflicts = match &self.plan.kubelets_config {
            Ok(Some(kubelet)) => {
                let memory_bytes = MeminfoFile::open(&self.plan.host)?.read()?.total;
                let theirs = &kubelet.config.engine;
                let mut lines = conflicts(&self.plan.config.engine, theirs, memory_bytes);
                lines.extend(kubelet.drop_ins.as_ref().map(|dir| {
                    format!(
                        "{}: the kubelet also takes settings from there, which were not compared: look for evictionHard and evictionSoft",
                        dir.shown()
                    )
                }));
                lines
            }
            Ok(None) => {
                tracing::info!("no kubelet's configuration was found to compare with");
                Vec::new()
            }
            Err(error) => vec![format!(
                "the kubelet's configuration was not compared: {error}; say with --kubelet-config where it is"
            )],
        };
        tracing::info!(kubepods = %tree.kubepods(), driver = tree.driver().name(), "beside a kubelet");
        let (link, events, left) = ClusterLink::start(&ClusterSettings {
            socket: args.kubelet.cluster_socket.clone(),
            user: args.kubelet.cluster_uid,
            state_dir: args.state_dir.clone(),
            soft_grace_s: soft_grace_s(&self.plan.config.engine),
        })?;
        sources.watch_cluster(events);
        let devices = is_aligned.then(|| {
            let (devices, given) = mpsc::channel(1);
            sources.watch_devices(given);
            devices
        });
        let topology = topology_source(&self.plan, &link, devices);
        let what = "knowing what the kubelet has given to containers";
        let topology = self.without(what, topology.transpose());
        conflicts.into_iter().for_each(|text| self.warn(text));
        // The loop writes to it.
        let ledger = self.plan.ledger(HOLDS_LEDGER).map(Ledger::without_waiting);
        let taken_up = ledger.map_err(HoldsError::from);
        let taken_up = taken_up.and_then(|ledger| Holds::take_up(ledger, &left.unsettled));
        let (holds, held) = self
            .without(
                "holding evicted pods, which their kubelet starts again",
                taken_up,
            )
            .map_or((None, Vec::new()), |(holds, held)| (Some(holds), held));
        let lost = self.lost.clone();
        let work = KubeletWork::new(Some(link), holds, held, left, lost);
        Ok(Some(work.with_topology(topology.flatten())))
    }

    /// What answers the container runtime, where one runs the pods.
    pub(super) fn nri(&mut self, sources: &mut Sources) -> Option<NriWork> {
        let settings = nri_settings(&self.plan)?;
        let (link, events) = self.without("NRI", NriLink::start(settings))?;
        sources.watch_nri(events);
        Some(NriWork::new(link))
    }

    /// The registry of pods, with its threads.
    pub(super) fn pods(&mut self, capacity: NodeCapacity) -> Pods {
        let worker = self.without("removal of the cgroups of pods", CgroupWorker::start());
        let kill_thread = self.without("kills that no tenant can hold up", KillThread::start());
        let ages = Ages::start(self.plan.host.clone(), Arc::clone(&self.news));
        let ages = self.without("a thread that reads how old processes are", ages);
        let stat_thread = self.without(
            "readings of memory.stat that no tenant can hold up",
            StatThread::start(),
        );
        let Plan {
            config,
            host,
            mounts,
            cgroup_root,
            kubelet,
            ..
        } = &self.plan;
        Pods::new(host.clone(), mounts.clone(), cgroup_root.clone())
            .with_settings(config.cgroups.qos, capacity)
            .with_worker(worker)
            .with_kill_thread(kill_thread)
            .with_ages(ages)
            .with_stat_thread(stat_thread)
            .beside_kubelet(kubelet.clone())
            .with_remedy_files(config.engine.options.remedies.is_some())
    }
}
