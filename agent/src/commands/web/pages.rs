//! What is answered at which path.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::StatusCode;

use super::Shown;
use super::document::{Problem, json};
use super::nodes::Cluster;
use super::recorded::Recorded;
use crate::serve::control::client::ask_overview;
use crate::serve::http::{Asked, Pages, Reply};

/// The paths, and what is there.
const PATHS: [(&str, &str); 6] = [
    ("/", "the page"),
    ("/script.js", "its script"),
    ("/style.css", "its look"),
    (
        "/state.json",
        "the node, its pods and who goes next; ?at=NANOSECONDS in a journal, ?node=NAME in a cluster",
    ),
    ("/nodes.json", "the nodes of a cluster, a row each"),
    ("/timeline.json", "what a journal has: memory and decisions"),
];

/// A document that there is not with this source.
const NONE: &str = "null";
/// However many browsers ask, the agent is asked so often.
const AGE_MAX: Duration = Duration::from_millis(500);

/// Where the figures come from.
#[derive(Debug)]
pub(super) enum Source {
    /// The control socket of an agent.
    Live(PathBuf),
    /// A journal.
    Recorded(Box<Recorded>),
    /// The agents of a cluster.
    Cluster(Arc<Cluster>),
}

/// The page and its documents.
#[derive(Debug)]
pub(super) struct WebPages {
    shared: Arc<Shared>,
    hosts: Vec<String>,
}

#[derive(Debug)]
struct Shared {
    source: Mutex<Source>,
    /// The newest answer of the agent, and when it came.
    newest: Mutex<Option<(Instant, String)>>,
}

impl WebPages {
    /// Answers browsers that call this host by an address, `localhost` or one of `hosts`: under another name a page of
    /// a stranger could read this one (DNS rebinding).
    pub(super) fn new(source: Source, hosts: Vec<String>) -> Self {
        Self {
            shared: Arc::new(Shared {
                source: Mutex::new(source),
                newest: Mutex::new(None),
            }),
            hosts,
        }
    }

    fn knows(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let address = name.trim_start_matches('[').trim_end_matches(']');
        address.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self
                .hosts
                .iter()
                .any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Makes a document on a thread that may wait.
    async fn document(
        &self,
        make: impl FnOnce(&Shared) -> Result<String, Problem> + Send + 'static,
    ) -> Reply {
        let shared = Arc::clone(&self.shared);
        let made = tokio::task::spawn_blocking(move || make(&shared)).await;
        match made.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(body) => reply("application/json", body),
            Err(problem) => Reply::plain(StatusCode::SERVICE_UNAVAILABLE, problem + "\n"),
        }
    }
}

impl Pages for WebPages {
    const PROBES: &'static [&'static str] = &[];

    async fn answer(&self, asked: Asked<'_>) -> Reply {
        if let Some(refused) = Reply::unless_read(asked.method) {
            return refused;
        }
        if !self.knows(asked.host) {
            let text = "this page is served to browsers that call its host by an address or localhost; for another name start it with --host NAME\n";
            return Reply::plain(StatusCode::FORBIDDEN, text.to_owned());
        }
        match asked.path {
            "/" => reply(
                "text/html; charset=utf-8",
                include_str!("../../show/web/index.html").to_owned(),
            ),
            "/script.js" => reply(
                "text/javascript; charset=utf-8",
                include_str!("../../show/web/script.js").to_owned(),
            ),
            "/style.css" => reply(
                "text/css; charset=utf-8",
                include_str!("../../show/web/style.css").to_owned(),
            ),
            "/state.json" => {
                let given = |name| asked.query.split('&').find_map(|it| it.strip_prefix(name));
                let at_ns = given("at=").and_then(|it| it.parse().ok());
                let node = given("node=").map(str::to_owned);
                self.document(move |shared| shared.state(at_ns, node.as_deref()))
                    .await
            }
            "/nodes.json" => self.document(Shared::nodes).await,
            "/timeline.json" => self.document(Shared::timeline).await,
            _ => Reply::no_such_page(&PATHS),
        }
    }
}

fn reply(content_type: &'static str, body: String) -> Reply {
    Reply {
        status: StatusCode::OK,
        content_type,
        body,
    }
}

impl Shared {
    fn state(&self, at_ns: Option<u64>, node: Option<&str>) -> Result<String, Problem> {
        if let Some(cluster) = self.cluster() {
            return cluster.node(node.unwrap_or_default());
        }
        // One question at a time; a mistake in one leaves nothing half done that another would read.
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = match &mut *source {
            Source::Cluster(_) => return Err("a node has to be named".to_owned()),
            Source::Recorded(recorded) => {
                let overview = recorded.at(at_ns).map_err(|error| error.to_string())?;
                return json(&Shown::of(&overview));
            }
            Source::Live(socket) => socket,
        };
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, text)) = &*newest
            && at.elapsed() < AGE_MAX
        {
            return Ok(text.clone());
        }
        let overview = ask_overview(socket).map_err(|error| error.to_string())?;
        let text = json(&Shown::of(&overview))?;
        *newest = Some((Instant::now(), text.clone()));
        Ok(text)
    }

    fn timeline(&self) -> Result<String, Problem> {
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        match &*source {
            Source::Recorded(recorded) => json(recorded.timeline()),
            Source::Live(_) | Source::Cluster(_) => Ok(NONE.to_owned()),
        }
    }

    fn nodes(&self) -> Result<String, Problem> {
        self.cluster()
            .map_or_else(|| Ok(NONE.to_owned()), |cluster| cluster.table())
    }

    /// Asked without the lock: its nodes answer one beside the other.
    fn cluster(&self) -> Option<Arc<Cluster>> {
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        match &*source {
            Source::Cluster(cluster) => Some(Arc::clone(cluster)),
            Source::Live(_) | Source::Recorded(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_s_name_for_this_host_is_refused() {
        let source = Source::Live(PathBuf::from("/nowhere"));
        let pages = WebPages::new(source, vec!["node1.example".to_owned()]);
        for known in [
            "127.0.0.1:9187",
            "127.0.0.1",
            "[::1]:9187",
            "LocalHost:9187",
            "node1.example",
            "Node1.example:80",
        ] {
            assert!(pages.knows(known), "{known}");
        }
        for unknown in [
            "",
            "rebound.example:9187",
            "localhost.example",
            "127.0.0.1.example",
            "node1.example.evil",
        ] {
            assert!(!pages.knows(unknown), "{unknown}");
        }
    }
}
