//! A node with some pods, of which one has to go: its journal, and its control socket.

use std::path::Path;
use std::sync::Arc;

use plimsoll::host::{CgroupPath, HostRoot};
use plimsoll::record::journal::Journal;
use plimsoll::record::limit_counts::LimitTotals;
use plimsoll::record::snapshot::Snapshot;
use plimsoll::serve::control::server::{AnswerSources, Bounds, Server};
use plimsoll::serve::control::{Snapshots, snapshots};
use plimsoll::serve::summary::Statistics;
use plimsoll_core::engine::Engine;

#[path = "../../src/testkit.rs"]
mod testkit;

/// An engine that has seen these pods, and how it came there.
pub(crate) fn engine(pods: &[&str], journal: Option<&Path>) -> Engine {
    let config = testkit::config();
    let mut journal =
        journal.map(|path| Journal::create(path, &Engine::new(config.clone())).unwrap());
    let pods = pods
        .iter()
        .map(|name| testkit::pod(name, testkit::PLAIN))
        .zip(1..);
    let events = testkit::events(pods, &[(1_000_000_000, 512), (2_000_000_000, 1000)]);
    let engine = testkit::engine(config, &events, |event, decisions| {
        if let Some(journal) = &mut journal {
            journal.record(event, decisions);
        }
    });
    if let Some(mut journal) = journal {
        let uid = engine.state().pods.keys().next().unwrap();
        let mut totals = LimitTotals::default();
        (totals.all.throttled, totals.all.throttled_ns) = (30, 1_500_000_000);
        journal.record_aside(2_500_000_000, [(uid, totals)].into_iter(), None);
        journal.finish().unwrap();
    }
    engine
}

/// An agent's socket, with a loop that always knows the same.
pub(crate) fn serve(path: &Path, group: Option<&str>, pods: &[&str]) -> Server {
    let (source, mut requests) = snapshots();
    let engine = engine(pods, None);
    std::thread::spawn(move || {
        while let Some(asked) = requests.blocking_recv() {
            asked.send(Snapshot::of(&engine)).ok();
        }
    });
    let host = HostRoot::live();
    let mounts = host.cgroup_mounts().unwrap();
    let sources = AnswerSources {
        snapshots: Arc::new(Snapshots::new(source)),
        statistics: Statistics::new(host, mounts, CgroupPath::default()),
    };
    Server::start(path, group, sources, Bounds::default()).unwrap()
}
