use std::sync::atomic::AtomicU64;

use super::*;
use crate::storage::freeing::FreeError;
use crate::storage::tests::{Machine, pod};

/// Nobody listens to it, and it takes no orders but those of the test.
fn surveyor(machine: &Machine, providers: Vec<Box<dyn FreesDisk>>) -> Surveyor {
    let means = Means {
        paths: crate::storage::paths(&machine.settings),
        mounts: machine.settings.host.cgroup_mounts().unwrap(),
        providers,
        // None comes again by itself.
        cycle: Duration::from_secs(100_000),
        reader: None,
    };
    let shared = Arc::new(Shared {
        interval_ms: AtomicU64::new(0),
        events_dropped: AtomicU64::new(0),
    });
    let (_, orders) = std::sync::mpsc::sync_channel(1);
    let (figures, _) = std::sync::mpsc::sync_channel(1);
    let (events, _) = tokio::sync::mpsc::channel(1);
    Surveyor::new(means, shared, orders, figures, events)
}

fn namespaced(uid: &str) -> PodDirs {
    PodDirs {
        has_user_namespace: true,
        ..pod(uid)
    }
}

/// Has always more to free.
struct Endless;

impl FreesDisk for Endless {
    fn name(&self) -> &'static str {
        "endless"
    }

    fn free(&mut self, _: &FreeRequest, _: bool, _: u32) -> Result<Freed, FreeError> {
        Ok(Freed {
            items: 1,
            more: true,
            ..Freed::default()
        })
    }
}

#[test]
fn pods_are_surveyed_while_space_is_freed() {
    let machine = Machine::new();
    machine.volume_file("a", "1");
    let mut surveyor = surveyor(&machine, vec![Box::new(Endless)]);
    surveyor.set_pods([pod("a")].into());
    surveyor.take(Order::Free(FreeRequest::default()));
    surveyor.take(Order::Rank);
    for _ in 0..20 {
        assert!(surveyor.slice(Instant::now()));
    }
    assert_eq!(surveyor.surveyed.len(), 1);
    assert!(surveyor.is_ranked && !surveyor.is_ranking);
    // It goes on with both: where there is nothing to survey, every slice frees.
    let freed = surveyor.freeing.as_ref().map(|it| it.so_far.items);
    assert!(freed >= Some(15), "{freed:?}");
}

#[test]
fn a_count_that_ended_early_is_said() {
    let machine = Machine::new();
    for file in 0..50 {
        machine.volume_file("a", &file.to_string());
    }
    let mut surveyor = surveyor(&machine, Vec::new());
    surveyor.set_pods([pod("a")].into());
    let figure = |surveyor: &Surveyor| {
        let pod = surveyor.surveyed.values().next().unwrap();
        pod.storage.volumes[0].used.inodes
    };
    surveyor.slice(Instant::now());
    assert_eq!(figure(&surveyor), Some(51));
    assert!(surveyor.unsent.is_empty());
    let mut short = surveyor.survey_of(Arc::clone(&surveyor.pods));
    short.names_max = 20;
    surveyor.survey = Some(short);
    surveyor.slice(Instant::now());
    assert_eq!(figure(&surveyor), Some(21));
    let warning = format!("{:?}", surveyor.unsent);
    assert!(warning.contains("ended after 20 names"), "{warning}");
}

#[test]
fn quotas_are_doubted_from_the_first_pod_on_that_could_change_projects() {
    let machine = Machine::new();
    let mut surveyor = surveyor(&machine, Vec::new());
    let believes = |survey: &Survey| survey.believes_quotas;
    let survey = |surveyor: &Surveyor| surveyor.survey_of([namespaced("a")].into());
    surveyor.set_pods([namespaced("a")].into());
    assert!(believes(&survey(&surveyor)));
    // Also by the survey that is under way, and by one of the new pods alone.
    surveyor.survey = Some(survey(&surveyor));
    surveyor.set_pods([namespaced("a"), pod("b")].into());
    assert!(!surveyor.survey.as_ref().is_some_and(believes));
    assert!(!believes(&survey(&surveyor)));
    // What it put into projects of others stays when it ends.
    surveyor.set_pods([namespaced("a")].into());
    assert!(!believes(&survey(&surveyor)));
}

#[test]
fn a_ranking_goes_on_with_pods_that_came_meanwhile_but_not_for_ever() {
    let machine = Machine::new();
    let mut surveyor = surveyor(&machine, Vec::new());
    let pods = |count: usize| {
        ["a", "b", "c", "d"][..count]
            .iter()
            .map(|uid| pod(uid))
            .collect()
    };
    surveyor.set_pods(pods(1));
    surveyor.survey = Some(surveyor.survey_of(Arc::clone(&surveyor.pods)));
    surveyor.is_ranking = true;
    for (known, measured, is_ranked) in [(2, 1, false), (3, 2, false), (4, 3, true)] {
        surveyor.set_pods(pods(known));
        assert!(!surveyor.is_ranked);
        assert!(surveyor.slice(Instant::now()));
        assert_eq!(
            (surveyor.surveyed.len(), surveyor.is_ranked),
            (measured, is_ranked)
        );
    }
    // The next ranking has as many rounds.
    surveyor.take(Order::Rank);
    surveyor.is_ranked = false;
    assert!(surveyor.slice(Instant::now()));
    assert!(surveyor.is_ranked && surveyor.late_rounds == 0);
}

/// Has a mistake.
struct Mistaken;

impl FreesDisk for Mistaken {
    fn name(&self) -> &'static str {
        "mistaken"
    }

    fn free(&mut self, _: &FreeRequest, _: bool, _: u32) -> Result<Freed, FreeError> {
        panic!("on purpose")
    }
}

#[test]
fn what_a_survey_that_panicked_had_not_come_to_is_unknown() {
    let machine = Machine::new();
    let mut surveyor = surveyor(&machine, vec![Box::new(Mistaken)]);
    surveyor.set_pods([pod("a")].into());
    surveyor.survey = Some(surveyor.survey_of(Arc::clone(&surveyor.pods)));
    surveyor.take(Order::Free(FreeRequest::default()));
    assert!(surveyor.slice(Instant::now()));
    assert!(surveyor.survey.is_none());
    assert!(surveyor.surveyed[&PodUid::new("a")].storage.is_cut);
}
