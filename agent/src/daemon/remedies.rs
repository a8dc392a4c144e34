//! Remedies: what is tried before an eviction, by a thread or by a signal.

use std::collections::VecDeque;

use plimsoll_core::kube::pod::PressureSignal;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::event::{Event, EventKind, RemedyReport};
use plimsoll_core::model::remedy::Remedy;

use super::{Agent, now_ns};
use crate::act::remedies::{Busy, Remedies, Report};

/// What it takes to carry out remedies.
#[derive(Debug)]
pub(super) struct RemedyWork {
    remedies: Remedies,
    /// What could not be done, for the engine; the oldest first.
    failed: VecDeque<Report>,
}

impl Agent {
    /// Lets it carry out what is tried before an eviction.
    #[must_use]
    pub fn with_remedies(mut self, remedies: Remedies) -> Self {
        self.remedies = Some(RemedyWork {
            remedies,
            failed: VecDeque::with_capacity(Remedy::ALL.len()),
        });
        self
    }

    /// Has the kernel take memory back from a pod. Allocates only when that fails, as the next three.
    pub(super) fn reclaim(&mut self, uid: &PodUid, bytes: u64, until_ns: u64) {
        let Some(work) = &self.remedies else { return };
        let files = self.pods.remedy_files(uid);
        let started = files.map(|files| work.remedies.reclaim(uid, files, bytes, until_ns));
        self.remedy_started(uid, Remedy::Reclaim, started);
    }

    /// Stops that.
    pub(super) fn stop_reclaim(&self) {
        if let Some(work) = &self.remedies {
            work.remedies.stop_reclaim();
        }
    }

    /// Holds a pod at a size.
    pub(super) fn set_high(&mut self, uid: &PodUid, bytes: u64, until_ns: u64) {
        let Some(work) = &mut self.remedies else {
            return;
        };
        let files = self.pods.remedy_files(uid);
        let started = files.map(|files| work.remedies.set_high(uid, files, bytes, until_ns));
        self.remedy_started(uid, Remedy::Throttle, started);
    }

    /// Lets it go.
    pub(super) fn clear_high(&mut self, uid: &PodUid) {
        let cleared = self
            .remedies
            .as_mut()
            .map(|work| work.remedies.clear_high(uid));
        if let Some(Err(error)) = cleared {
            let error = error.to_string();
            self.remedy_failed(uid, Remedy::Throttle, RemedyReport::NotCleared { error });
        }
    }

    /// Signals to a pod that memory is short.
    pub(super) fn notify(&mut self, uid: &PodUid, signal: PressureSignal) {
        let error = match self.pods.notify(uid, signal) {
            Ok(1..) => return,
            Ok(0) => "none of its containers has a first process that is known".to_owned(),
            Err(error) => error.to_string(),
        };
        self.remedy_failed(uid, Remedy::Notify, RemedyReport::Failed { error });
    }

    fn remedy_started(&mut self, uid: &PodUid, remedy: Remedy, started: Option<Result<(), Busy>>) {
        let error = match started {
            Some(Ok(())) => return,
            Some(Err(busy)) => busy.to_string(),
            None => "its cgroup is gone".to_owned(),
        };
        self.remedy_failed(uid, remedy, RemedyReport::Failed { error });
    }

    fn remedy_failed(&mut self, uid: &PodUid, remedy: Remedy, report: RemedyReport) {
        if let Some(work) = &mut self.remedies {
            let uid = uid.clone();
            work.failed.push_back(Report {
                uid,
                remedy,
                report,
            });
        }
    }

    /// Tells the engine what could not be done. What it decides about that is done at once, and what then fails is told
    /// the next time.
    pub(super) fn remedy_outcomes(&mut self) {
        let waiting = self.remedies.as_ref().map_or(0, |work| work.failed.len());
        for _ in 0..waiting {
            let failed = self
                .remedies
                .as_mut()
                .and_then(|work| work.failed.pop_front());
            if let Some(report) = failed {
                self.step(now_ns(), event_of(report));
            }
        }
    }

    /// The thread has something to say.
    pub(super) fn remedy_reported(&mut self, report: Report) {
        self.handle_event(event_of(report));
    }

    /// Says what went wrong with a remedy.
    pub(super) fn report_remedy(&mut self, event: &Event) {
        let EventKind::RemedyReported {
            uid,
            remedy,
            report,
        } = &event.kind
        else {
            return;
        };
        let (what, error) = match report {
            RemedyReport::Failed { error } => ("could not be done", error),
            RemedyReport::NotCleared { error } => (
                "memory.high could not be put back, which is tried again",
                error,
            ),
            // The decision says it.
            RemedyReport::Reclaimed { .. } | RemedyReport::Unsupported => return,
        };
        self.warn_of_pod(uid, format_args!("{}: {what}: {error}", remedy.name()));
    }
}

fn event_of(
    Report {
        uid,
        remedy,
        report,
    }: Report,
) -> EventKind {
    EventKind::RemedyReported {
        uid,
        remedy,
        report,
    }
}
