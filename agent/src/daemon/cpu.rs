//! CPU time in the loop: a thread reads and writes, the engine decides.

use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::model::event::EventKind;

use super::Agent;
use super::telling::Said;
use crate::act::cpu_time::{CpuTime, Report, Setting, Watch, WatchedPod};

/// What it takes to look after CPU time.
#[derive(Debug)]
pub(super) struct CpuWork {
    cpu_time: CpuTime,
    watched: Watch,
    dropped: Said,
}

impl Agent {
    /// Lets it look after CPU time.
    #[must_use]
    pub fn with_cpu_time(mut self, cpu_time: CpuTime) -> Self {
        self.cpu_work = Some(CpuWork {
            cpu_time,
            watched: Watch::default(),
            dropped: Said::default(),
        });
        self
    }

    /// What the thread has read, or could not do.
    pub(super) fn cpu_reported(&mut self, report: Report) {
        match report {
            Report::Reading(reading) => self.handle_event(EventKind::CpuReading(reading)),
            Report::NotWritten {
                uid,
                container,
                knob,
                error,
            } => {
                self.warn_of_pod(&uid, format_args!("{knob}: {error}"));
                self.handle_event(EventKind::CpuNotWritten {
                    uid,
                    container,
                    knob,
                    error,
                });
            }
            Report::Remark(text) => self.warn(text),
        }
    }

    /// Has the thread make a change. Does not wait.
    pub(super) fn change_cpu(&self, setting: Setting) {
        if let Some(work) = &self.cpu_work {
            work.cpu_time.change(setting);
        }
    }

    /// Tells the thread which pods there are.
    pub(super) fn look_after_cpu(&mut self) {
        let Some(work) = &mut self.cpu_work else {
            return;
        };
        let pods = self.pods.uids_with_cgroup().filter_map(|uid| {
            let (path, _) = self.pods.cgroup(uid)?;
            let pod = self.pods.pod(uid)?;
            let says = pod.latency_critical().unwrap_or_default();
            Some(WatchedPod {
                uid: uid.clone(),
                path: path.clone(),
                may_come_first: says.unwrap_or(pod.qos_class() != QosClass::BestEffort),
            })
        });
        let placement = self.engine.state().placement.as_ref();
        let watch = Watch {
            pods: pods.collect(),
            exclusive: placement
                .map(|placement| placement.assignments().exclusive())
                .unwrap_or_default(),
        };
        if watch != work.watched {
            work.cpu_time.watch(watch.clone());
            work.watched = watch;
        }
        if let Some(more) = work.dropped.more(work.cpu_time.dropped()) {
            self.warn(format!(
                "{more} readings or changes of CPU time were dropped, because this loop or their thread had no time; nothing is lost, they are made anew"
            ));
        }
    }
}
