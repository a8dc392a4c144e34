//! Who may ask the agent: the control socket, and HTTP.

use std::sync::Arc;

use anyhow::Result;

use super::Start;
use super::plan::Plan;
use crate::daemon::Sources;
use crate::kernel::Bpf;
use crate::serve::control::server::{AnswerSources, Bounds, Server};
use crate::serve::control::{self, Snapshots};
use crate::serve::http;
use crate::serve::summary::Statistics;

impl Start<'_> {
    /// The control socket, and HTTP where it is asked for.
    pub(super) fn serve(
        &mut self,
        sources: &mut Sources,
        bpf: Option<&Bpf>,
    ) -> Result<(Option<Server>, Option<http::Server>)> {
        let listener = self.plan.listener.take();
        let Plan {
            args,
            host,
            mounts,
            cgroup_root,
            kubelet,
            ..
        } = &self.plan;
        let (snapshot_source, requests) = control::snapshots();
        sources.give_snapshots_to(requests);
        let snapshots = Arc::new(Snapshots::new(snapshot_source));
        let statistics = || {
            Statistics::new(host.clone(), mounts.clone(), cgroup_root.clone())
                .beside_kubelet(kubelet.clone())
        };
        let group = args.control_group.as_deref();
        let option = args.control_socket.as_deref();
        let socket = control::prepare_place(&args.state_dir, option, group);
        let answers = AnswerSources {
            snapshots: Arc::clone(&snapshots),
            statistics: statistics(),
        };
        let control =
            socket.and_then(|path| Server::start(&path, group, answers, Bounds::default()));
        let control = match control {
            Err(error) if self.plan.no_space.is_some() => {
                self.lost.push(format!("control socket: {error}"));
                None
            }
            control => Some(control?),
        };
        let http = listener.map(|listener| {
            let answers = http::Answers::new(snapshots, statistics())
                .with_programs(bpf.map(Bpf::run_meters).unwrap_or_default())
                .with_pods_in_metrics(args.metrics_per_pod);
            http::Server::start(listener, answers, http::Bounds::default())
        });
        let http = http.and_then(|started| self.without("HTTP", started));
        Ok((control, http))
    }
}
