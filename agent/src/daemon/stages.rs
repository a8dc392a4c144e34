//! The stages before an eviction, as the loop carries them out: by a thread, or by a signal.

use std::sync::Arc;

use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::{Event, EventKind, StageReport};
use plimsoll_core::model::units::PodUid;
use plimsoll_core::policy::memory::remedies::Stage;

use super::{Agent, now_ns};
use crate::act::remedies::{Busy, Remedies, Reports, Told};
use crate::pods::stage_files::StageFiles;

/// What it takes to carry out stages.
#[derive(Debug)]
pub(super) struct Stages {
    remedies: Remedies,
    reports: Option<Reports>,
    /// What could not be done, for the engine.
    told: Vec<Told>,
}

/// Waits for a report of the thread; for ever if there is none.
pub(super) async fn reported(reports: Option<&mut Reports>) -> Option<Told> {
    match reports {
        Some(reports) => reports.recv().await,
        None => std::future::pending().await,
    }
}

impl Agent {
    /// Lets it carry out what is tried before an eviction.
    #[must_use]
    pub fn with_remedies(mut self, remedies: Remedies, reports: Reports) -> Self {
        self.stages = Some(Stages {
            remedies,
            reports: Some(reports),
            told: Vec::with_capacity(Stage::ALL.len()),
        });
        self
    }

    pub(super) fn take_stage_reports(&mut self) -> Option<Reports> {
        self.stages.as_mut()?.reports.take()
    }

    /// Carries out a decision about a stage. Allocates only when that fails.
    pub(super) fn act_stage(&mut self, decision: &Decision) {
        match decision {
            Decision::Reclaim {
                uid,
                bytes,
                until_ns,
            } => {
                let started = self
                    .stage_files(uid)
                    .map(|(remedies, files)| remedies.reclaim(uid, files, *bytes, *until_ns));
                self.stage_started(uid, Stage::Reclaim, started);
            }
            Decision::SetHigh {
                uid,
                bytes,
                until_ns,
            } => {
                let started = self
                    .stage_files(uid)
                    .map(|(remedies, files)| remedies.set_high(uid, files, *bytes, *until_ns));
                self.stage_started(uid, Stage::Throttle, started);
            }
            Decision::StopReclaim { .. } => {
                if let Some(stages) = &self.stages {
                    stages.remedies.stop_reclaim();
                }
            }
            Decision::ClearHigh { uid } => {
                let cleared = self.stages.as_ref().map(|it| it.remedies.clear_high(uid));
                if let Some(Err(error)) = cleared {
                    let error = error.to_string();
                    self.stage_told(uid, Stage::Throttle, StageReport::NotCleared { error });
                }
            }
            Decision::Notify { uid, signal, .. } => {
                let error = match self.pods.notify(uid, *signal) {
                    Ok(1..) => return,
                    Ok(0) => "none of its containers has a first process that is known".to_owned(),
                    Err(error) => error.to_string(),
                };
                self.stage_told(uid, Stage::Notify, StageReport::Failed { error });
            }
            // `act` passes on no other.
            _ => {}
        }
    }

    fn stage_files(&self, uid: &PodUid) -> Option<(&Remedies, &Arc<StageFiles>)> {
        let stages = self.stages.as_ref()?;
        Some((&stages.remedies, self.pods.stage_files(uid)?))
    }

    fn stage_started(&mut self, uid: &PodUid, stage: Stage, started: Option<Result<(), Busy>>) {
        let error = match started {
            Some(Ok(())) => return,
            Some(Err(busy)) => busy.to_string(),
            None => "its cgroup is gone".to_owned(),
        };
        self.stage_told(uid, stage, StageReport::Failed { error });
    }

    fn stage_told(&mut self, uid: &PodUid, stage: Stage, report: StageReport) {
        if let Some(stages) = &mut self.stages {
            let uid = uid.clone();
            stages.told.push(Told { uid, stage, report });
        }
    }

    /// Tells the engine what could not be done. What it decides about that is done at once, and what then fails is told the next time.
    pub(super) fn stage_outcomes(&mut self) {
        let waiting = self.stages.as_ref().map_or(0, |stages| stages.told.len());
        for _ in 0..waiting {
            let told = self.stages.as_mut().and_then(|stages| stages.told.pop());
            if let Some(told) = told {
                self.step(now_ns(), event_of(told));
            }
        }
    }

    /// The thread has something to say.
    pub(super) fn stage_reported(&mut self, told: Told) {
        self.take_in(event_of(told));
    }

    /// Says what went wrong with a stage.
    pub(super) fn tell_stage(&mut self, event: &Event) {
        let EventKind::Stage { uid, stage, report } = &event.kind else {
            return;
        };
        let (what, error) = match report {
            StageReport::Failed { error } => ("could not be done", error),
            StageReport::NotCleared { error } => (
                "memory.high could not be put back, which is tried again",
                error,
            ),
            // The decision says it.
            StageReport::Reclaimed { .. } | StageReport::Unsupported => return,
        };
        let name = self.pods.name(uid);
        self.warn(format!("pod {name}: {}: {what}: {error}", stage.name()));
    }
}

fn event_of(Told { uid, stage, report }: Told) -> EventKind {
    EventKind::Stage { uid, stage, report }
}
