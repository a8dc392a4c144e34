//! What is answered at which path.

use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, StatusCode};

use super::server::{Asked, PLAIN, Pages};
use crate::host::clock::wall;
use crate::host::processes::process_cost;
use crate::kernel::stats::RunMeter;
use crate::serve::control::{NoSnapshot, Snapshots};
use crate::serve::listener::ClientFigures;
use crate::serve::metrics::{Form, ProcessFigures, Readings};
use crate::serve::summary::{PodStats, Statistics, Summary, Wanted, resource_metrics};

/// The paths, and what is there.
pub const PATHS: [(&str, &str); 5] = [
    (
        "/metrics",
        "metrics for Prometheus (docs/reference/metrics.md)",
    ),
    (
        "/metrics/resource",
        "CPU, memory and swap of node, pods and containers, as the kubelet serves them to metrics-server",
    ),
    (
        "/stats/summary",
        "usage of node, pods and containers, as the kubelet serves it; ?only_cpu_and_memory=true for less",
    ),
    ("/healthz", "200 if the agent's loop answers in time"),
    (
        "/readyz",
        "200 if the pods are listed and every source is open",
    ),
];

/// In this time the loop answers unless it is stuck: it is real-time, and a turn takes milliseconds.
const LOOP_BOUND: Duration = Duration::from_secs(2);

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// What `body` is.
    pub content_type: &'static str,
    /// The text.
    pub body: String,
}

impl Reply {
    /// Text for people.
    pub fn plain(status: StatusCode, body: String) -> Self {
        Self {
            status,
            content_type: PLAIN,
            body,
        }
    }

    /// To a path that is none of these, which are listed with what is there.
    pub fn no_such_page(paths: &[(&str, &str)]) -> Self {
        let mut text = String::from("no such page; the pages are:\n");
        for (path, what) in paths {
            text.push_str(&format!("  {path:<19}{what}\n"));
        }
        Self::plain(StatusCode::NOT_FOUND, text)
    }

    /// Refuses what would change something.
    pub fn unless_read(method: &Method) -> Option<Self> {
        let reads = [Method::GET, Method::HEAD].contains(method);
        let text = || "read-only: use GET or HEAD\n".to_owned();
        (!reads).then(|| Self::plain(StatusCode::METHOD_NOT_ALLOWED, text()))
    }
}

/// Where answers come from.
#[derive(Debug)]
pub struct Answers {
    snapshots: Arc<Snapshots>,
    statistics: Statistics,
    programs: Vec<RunMeter>,
    pods_in_metrics: bool,
    started: Duration,
    loop_bound: Duration,
}

impl Pages for Answers {
    const PROBES: &'static [&'static str] = &["/healthz", "/readyz"];

    async fn answer(&self, asked: Asked<'_>) -> Reply {
        if !PATHS.iter().any(|(known, _)| *known == asked.path) {
            return Reply::no_such_page(&PATHS);
        }
        if let Some(refused) = Reply::unless_read(asked.method) {
            return refused;
        }
        match asked.path {
            "/metrics" => {
                self.metrics(Form::accepted(asked.accept), asked.clients)
                    .await
            }
            "/metrics/resource" => self.resource_metrics().await,
            "/stats/summary" => self.summary(asked.query).await,
            "/readyz" => self.ready().await,
            _ => self.healthy().await,
        }
    }
}

impl Answers {
    /// From the loop's snapshots, and from files.
    pub fn new(snapshots: Arc<Snapshots>, statistics: Statistics) -> Self {
        Self {
            snapshots,
            statistics,
            programs: Vec::new(),
            pods_in_metrics: false,
            started: wall(),
            loop_bound: LOOP_BOUND,
        }
    }

    /// Also shows what these programs have run.
    pub fn with_programs(mut self, programs: Vec<RunMeter>) -> Self {
        self.programs = programs;
        self
    }

    /// Whether pods have series of their own.
    pub fn with_pods_in_metrics(mut self, pods: bool) -> Self {
        self.pods_in_metrics = pods;
        self
    }

    /// The loop is to answer in this time.
    pub fn with_loop_bound(mut self, bound: Duration) -> Self {
        self.loop_bound = bound;
        self
    }

    async fn metrics(&self, form: Form, clients: ClientFigures) -> Reply {
        let snapshot = self.snapshots.get(self.loop_bound).await.ok();
        let (cpu, resident_bytes) = process_cost();
        let programs = self.programs.iter().filter_map(|it| it.read().ok());
        let readings = Readings {
            snapshot,
            programs: programs.collect(),
            process: ProcessFigures {
                cpu,
                resident_bytes,
                started: self.started,
            },
            clients,
            pods: self.pods_in_metrics,
        };
        match readings.page(form) {
            Ok(body) => Reply {
                status: StatusCode::OK,
                content_type: form.content_type(),
                body,
            },
            Err(error) => Reply::plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("the page cannot be written: {error}\n"),
            ),
        }
    }

    /// As the kubelet does, a page that has failed is a page.
    async fn resource_metrics(&self) -> Reply {
        let read = self.read(Wanted::AllButNetwork).await;
        let read = read.as_ref().map(|it| (&it.node, it.pods.as_slice()));
        Reply {
            status: StatusCode::OK,
            content_type: Form::Classic.content_type(),
            body: resource_metrics(read.ok()),
        }
    }

    /// Node and pods, as they are now.
    async fn read(&self, wanted: Wanted) -> Result<Summary, NoSnapshot> {
        let snapshot = self.snapshots.get(self.loop_bound).await?;
        let request = self.statistics.request(&snapshot.state);
        let node = request.node(wanted);
        let mut pods = Vec::with_capacity(snapshot.state.pods.len());
        for uid in request.pods() {
            pods.extend(request.pod(uid, wanted));
            // Others who ask meanwhile have their turn.
            tokio::task::yield_now().await;
        }
        Ok(Summary { node, pods })
    }

    async fn summary(&self, query: &str) -> Reply {
        // As the kubelet's handler reads it.
        let is_short = query.split('&').any(|it| it == "only_cpu_and_memory=true");
        let wanted = match is_short {
            true => Wanted::AllButNetwork,
            false => Wanted::All,
        };
        let Summary { mut node, mut pods } = match self.read(wanted).await {
            Ok(read) => read,
            Err(error) => {
                return Reply::plain(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"));
            }
        };
        if is_short {
            node = node.only_cpu_and_memory();
            let short = pods.into_iter().map(PodStats::only_cpu_and_memory);
            pods = short.collect();
        }
        match serde_json::to_string(&Summary { node, pods }) {
            Ok(body) => Reply {
                status: StatusCode::OK,
                content_type: "application/json",
                body: body + "\n",
            },
            Err(error) => Reply::plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("the summary cannot be written: {error}\n"),
            ),
        }
    }

    async fn healthy(&self) -> Reply {
        match self.snapshots.get(self.loop_bound).await {
            Ok(_) => Reply::plain(StatusCode::OK, "ok\n".to_owned()),
            Err(error) => Reply::plain(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        }
    }

    /// The loop begins when every source is open, so one that answers has them.
    async fn ready(&self) -> Reply {
        match self.snapshots.get(self.loop_bound).await {
            Ok(snapshot) if snapshot.tally.pods_watched => {
                let pods = snapshot.state.pods.len();
                let last_line = snapshot.tally.last_line_holds_ns.map_or_else(String::new, |ns| {
                    let holds = Duration::from_nanos(ns);
                    format!("; the last line in the kernel holds for {holds:?} after the agent's last sign of life")
                });
                let text = format!("ready: sources are open, {pods} pods are watched{last_line}\n");
                Reply::plain(StatusCode::OK, text)
            }
            Ok(_) => Reply::plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "not ready: the pods are not known yet\n".to_owned(),
            ),
            Err(error) => Reply::plain(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("not ready: {error}\n"),
            ),
        }
    }
}
