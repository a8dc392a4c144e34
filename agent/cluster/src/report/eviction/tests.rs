//! The life of one eviction as a table: what is heard, when, and what comes of it.

use serde_json::json;

use super::*;
use crate::pod::tests::api_pod;

const DECIDED_MS: u64 = 1_795_341_600_123;
const MARK: &str = "2026-11-22T10:00:00.123Z";

fn now(mono_ms: u64) -> Now {
    Now {
        mono_ms,
        unix_ms: DECIDED_MS + mono_ms,
    }
}

fn intent(grace_s: u32) -> EvictionIntent {
    EvictionIntent {
        uid: "u1".into(),
        namespace: "shop".into(),
        name: "name-u1".into(),
        decided_unix_ms: DECIDED_MS,
        signal: "memory.available".into(),
        message: "The node was low on resource: memory.".into(),
        rank: 1,
        ranked: 37,
        journal: Some(4711),
        grace_s,
        is_held: true,
        starved_resource: "memory".into(),
        offending_containers: "app".into(),
        offending_containers_usage: "2Gi".into(),
    }
}

/// The API's pod: phase, reason, annotation.
type Shown = (&'static str, &'static str, Option<&'static str>);

fn pod((phase, reason, annotation): Shown) -> SeenPod {
    let mut pod = api_pod("u1", "7");
    pod["status"]["phase"] = json!(phase);
    pod["status"]["reason"] = json!(reason);
    if let Some(rest) = annotation {
        pod["metadata"]["annotations"]["plimsoll.dev/evicted"] = json!(format!("{MARK}{rest}"));
    }
    SeenPod::read(pod.to_string().as_bytes(), "node-1", false).unwrap()
}

const RUNNING: Shown = ("Running", "", None);
const FAILED: Shown = ("Failed", "Evicted", Some(" x"));
const NO_REASON: Shown = ("Failed", "", Some(" x"));
const TAKEN_BACK: Shown = ("Running", "", Some(" x"));

/// What happens at a time.
#[derive(Clone, Debug)]
enum At {
    /// The watch shows this.
    Sees(Shown),
    /// The watch shows nothing of this UID.
    Gone,
    /// The agent saw the cgroup go.
    CgroupGone,
    /// The agent lets the pod run again.
    LetGo,
    /// The agent evicts it again.
    Keeps,
    /// This comes next.
    Next(Step),
    /// This call is next, and is answered so; this is the effect.
    Call(Purpose, Answer, Effect),
}
use At::{Call, CgroupGone, Gone, Keeps, LetGo, Next, Sees};
use Effect::{None as NoEffect, RefusedByBudget, Reported};
use Purpose::{Delete, Evict, Read, Report};

fn done() -> Answer {
    Answer::Done(Vec::new())
}

fn refused(code: u16) -> Answer {
    let reason = if code == 404 { "NotFound" } else { "" };
    Answer::Refused(Refusal {
        code,
        reason: reason.to_owned(),
        ..Refusal::default()
    })
}

/// No authorizer allows the eviction.
fn no_right() -> Answer {
    let message = r#"pods "name-u1" is forbidden: User "x" cannot create resource "pods/eviction" in API group "" in the namespace "shop""#;
    Answer::Refused(Refusal {
        code: 403,
        message: message.to_owned(),
        ..Refusal::default()
    })
}

/// From a load balancer, a proxy or a login page.
fn foreign(code: u16) -> Answer {
    Answer::Refused(Refusal {
        code,
        is_foreign: true,
        ..Refusal::default()
    })
}

fn by_budget() -> Answer {
    let causes = vec![("DisruptionBudget".to_owned(), String::new())];
    Answer::Refused(Refusal {
        code: 429,
        causes,
        ..Refusal::default()
    })
}

fn wait(until_ms: u64) -> At {
    Next(Step::Wait(Some(until_ms)))
}

const fn settle(how: Settled) -> At {
    Next(Step::Settle(how))
}

struct Case {
    what: &'static str,
    policy: Policy,
    heeds_status: bool,
    grace_s: u32,
    script: Vec<(u64, At)>,
}

fn case(what: &'static str, script: Vec<(u64, At)>) -> Case {
    Case {
        what,
        policy: Policy::default(),
        heeds_status: true,
        grace_s: 0,
        script,
    }
}

/// All is known, and the kubelet is a new one.
fn view_with(policy: &Policy) -> View<'_> {
    View {
        policy,
        is_listed: true,
        is_complete: true,
        list_began_ms: Some(u64::MAX),
        kubelet_heeds_status: true,
        has_eviction_api: Some(true),
    }
}

fn run(case: &Case) {
    let view = View {
        kubelet_heeds_status: case.heeds_status,
        ..view_with(&case.policy)
    };
    let mut eviction = Eviction::new(intent(case.grace_s), now(0), 1);
    let mut seen = Some(pod(RUNNING));
    for (row, (at, what)) in case.script.iter().enumerate() {
        let place = format!("{}, row {row} at {at} ms: {what:?}", case.what);
        let next = eviction.next(seen.as_ref(), view, now(*at));
        match what {
            Sees(shown) => seen = Some(pod(*shown)),
            Gone => seen = None,
            CgroupGone => eviction.cgroup_gone(now(*at)),
            LetGo => eviction.let_go(),
            Keeps => eviction.keep(false),
            Next(step) => assert_eq!(next, *step, "{place}"),
            Call(purpose, answer, effect) => {
                assert_eq!(next, Step::Call(*purpose), "{place}");
                eviction.sent();
                let meanwhile = eviction.next(seen.as_ref(), view, now(*at));
                assert_eq!(meanwhile, Step::Wait(None), "{place}");
                assert_eq!(
                    eviction.answered(*purpose, answer, now(*at)),
                    *effect,
                    "{place}"
                );
            }
        }
    }
}

#[test]
fn a_pod_that_was_let_go_is_not_ended_long_after() {
    for case in [
        case(
            "nothing was written",
            vec![
                (0, LetGo),
                (4_000_000, settle(Settled::GivenUp)),
                // It is evicted for something new.
                (4_000_000, Keeps),
                (4_000_000, Call(Report, done(), Reported)),
            ],
        ),
        case(
            "its end is written already",
            vec![
                (0, Call(Report, done(), Reported)),
                (600_000, LetGo),
                (600_000, Sees(("Failed", "", Some(" x report=1")))),
                (600_000, Call(Report, done(), Reported)),
            ],
        ),
    ] {
        run(&case);
    }
}

#[test]
fn the_status_is_written_until_it_stands() {
    let cases = [
        case(
            "one is enough",
            vec![
                (0, Call(Report, done(), Reported)),
                (20, Sees(FAILED)),
                (30, wait(30_000)),
                (3_000, CgroupGone),
                (3_001, settle(Settled::Shown)),
            ],
        ),
        case(
            "nothing says that the kubelet has finished, and it stands",
            vec![
                (0, Call(Report, done(), Reported)),
                (20, Sees(FAILED)),
                (30_000, settle(Settled::Shown)),
            ],
        ),
        case(
            "the kubelet dropped the reason: written again while the cgroup is there, not faster than every 2 s",
            vec![
                (0, Call(Report, done(), Reported)),
                (300, Sees(NO_REASON)),
                (301, wait(2_000)),
                (2_000, Call(Report, done(), Reported)),
                (2_001, wait(4_000)),
                (2_500, Sees(FAILED)),
                (3_000, CgroupGone),
                (3_001, settle(Settled::Shown)),
            ],
        ),
        case(
            "dropped, and the kubelet has finished: only undone",
            vec![
                (0, Call(Report, done(), Reported)),
                (300, Sees(NO_REASON)),
                (400, CgroupGone),
                (401, settle(Settled::Shown)),
            ],
        ),
        case(
            "Running is written back while the kubelet is busy",
            vec![
                (0, Call(Report, done(), Reported)),
                (2_300, Sees(TAKEN_BACK)),
                (2_301, Call(Report, done(), Reported)),
                (2_400, Sees(FAILED)),
                (9_000, CgroupGone),
                (9_001, settle(Settled::Shown)),
            ],
        ),
        case(
            "five times, then it is given up",
            vec![
                (0, Call(Report, done(), Reported)),
                (1, Sees(TAKEN_BACK)),
                (2_000, Call(Report, done(), Reported)),
                (4_000, Call(Report, done(), Reported)),
                (6_000, Call(Report, done(), Reported)),
                (8_000, Call(Report, done(), Reported)),
                (10_000, wait(38_000)),
                (38_000, settle(Settled::GivenUp)),
            ],
        ),
        case(
            "five times, and the phase stands without a reason",
            vec![
                (0, Call(Report, done(), Reported)),
                (1, Sees(NO_REASON)),
                (2_000, Call(Report, done(), Reported)),
                (4_000, Call(Report, done(), Reported)),
                (6_000, Call(Report, done(), Reported)),
                (8_000, Call(Report, done(), Reported)),
                (10_000, wait(38_000)),
                (38_000, settle(Settled::Shown)),
            ],
        ),
        case(
            "not again after the cgroup has gone, and the last look is waited for",
            vec![
                (0, Call(Report, done(), Reported)),
                (100, Sees(TAKEN_BACK)),
                (200, CgroupGone),
                (5_000, wait(60_200)),
                (5_001, Sees(FAILED)),
                (5_002, settle(Settled::Shown)),
            ],
        ),
        case(
            "the cgroup went before anything could be told: told once",
            vec![
                (0, CgroupGone),
                (1, Call(Report, done(), Reported)),
                (2, wait(60_001)),
            ],
        ),
        case(
            "told by an earlier process",
            vec![
                (0, Sees(FAILED)),
                (1, wait(30_000)),
                (2, Sees(("Running", "", Some(" x report=5")))),
                (3, wait(2_000)),
                (2_000, Call(Report, done(), Reported)),
            ],
        ),
    ];
    cases.iter().for_each(run);
}

#[test]
fn what_others_did_stays() {
    let cases = [
        case(
            "it had ended",
            vec![
                (0, Sees(("Succeeded", "", None))),
                (1, settle(Settled::EndedOtherwise)),
            ],
        ),
        case(
            "the kubelet evicted it",
            vec![
                (0, Sees(("Failed", "Evicted", None))),
                (1, settle(Settled::EndedOtherwise)),
            ],
        ),
        case("gone", vec![(0, Gone), (1, settle(Settled::Gone))]),
        case(
            "a conflict: read, and it had ended",
            vec![
                (0, Call(Report, refused(409), NoEffect)),
                (1, Call(Read, done(), NoEffect)),
                (2, Sees(("Succeeded", "", None))),
                (3, settle(Settled::EndedOtherwise)),
            ],
        ),
        case(
            "a conflict with a heartbeat: read, and told",
            vec![
                (0, Call(Report, refused(409), NoEffect)),
                (1, Call(Read, done(), NoEffect)),
                (2, Call(Report, done(), Reported)),
            ],
        ),
        case(
            "not there",
            vec![
                (0, Call(Report, refused(404), NoEffect)),
                (1, Call(Read, refused(404), NoEffect)),
                (2, settle(Settled::Gone)),
            ],
        ),
        case(
            "a load balancer without an API server, and a login page: told later",
            vec![
                (0, Call(Report, foreign(404), NoEffect)),
                (2_000, Call(Report, foreign(302), NoEffect)),
                (5_000, Call(Report, foreign(403), NoEffect)),
                (20_000, Call(Report, done(), Reported)),
            ],
        ),
        case(
            "a conflict, and a load balancer's word for it",
            vec![
                (0, Call(Report, refused(409), NoEffect)),
                (1, Call(Read, foreign(404), NoEffect)),
                (2_000, Call(Read, done(), NoEffect)),
                (2_001, Call(Report, done(), Reported)),
            ],
        ),
        case(
            "a conflict, and then not there",
            vec![
                (0, Call(Report, refused(409), NoEffect)),
                (1, Call(Read, refused(404), NoEffect)),
                (2, settle(Settled::Gone)),
            ],
        ),
    ];
    cases.iter().for_each(run);
    let mut eviction = Eviction::new(intent(0), now(0), 1);
    let policy = Policy::default();
    let view = view_with(&policy);
    // An old server's word for another UID: read, and it is another pod of this name.
    assert_eq!(eviction.answered(Report, &refused(422), now(0)), NoEffect);
    assert_eq!(
        eviction.next(Some(&pod(RUNNING)), view, now(2_000)),
        Step::Call(Read)
    );
    eviction.gone();
    assert_eq!(
        eviction.next(Some(&pod(RUNNING)), view, now(2_000)),
        Step::Settle(Settled::Gone)
    );
    // Nothing is settled by a list that was never read.
    let unlisted = View {
        is_listed: false,
        is_complete: false,
        ..view
    };
    assert_eq!(
        Eviction::new(intent(0), now(0), 1).next(None, unlisted, now(0)),
        Step::Wait(None)
    );
    // Nor by one that left some out: the pod may be there, and would be started again.
    let incomplete = View {
        is_complete: false,
        ..view
    };
    assert_eq!(
        Eviction::new(intent(0), now(0), 1).next(None, incomplete, now(0)),
        Step::Wait(None)
    );
    // Nor by one that was begun before it came: the pod may be newer, and the watch may have stopped.
    let eviction = Eviction::new(intent(0), now(1_000), 1);
    for (list_began_ms, waits) in [(None, true), (Some(1_000), true), (Some(1_001), false)] {
        let view = View {
            list_began_ms,
            ..view
        };
        let step = eviction.next(None, view, now(2_000));
        assert_eq!(
            step == Step::Wait(None),
            waits,
            "{list_began_ms:?}: {step:?}"
        );
        assert_eq!(eviction.waits_for_a_list(None, list_began_ms), waits);
    }
    assert!(!eviction.waits_for_a_list(Some(&pod(RUNNING)), None));
}

/// Its owner may change the pod all the time, and write whatever number of reports.
#[test]
fn the_pods_owner_neither_ends_the_reports_nor_has_them_asked_for_at_full_rate() {
    let policy = Policy::default();
    let view = view_with(&policy);
    let mut eviction = Eviction::new(intent(0), now(0), 1);
    let written = pod(("Running", "", Some(" x report=5")));
    assert_eq!(
        eviction.next(Some(&written), view, now(60_000)),
        Step::Call(Report)
    );
    eviction.answered(Report, &done(), now(60_000));
    for report in 2..=REPORTS_MAX {
        let at = now(60_000 + u64::from(report) * REPORT_EVERY_MS);
        assert_eq!(
            eviction.next(Some(&written), view, at),
            Step::Call(Report),
            "{report}"
        );
        eviction.answered(Report, &done(), at);
    }

    let mut eviction = Eviction::new(intent(0), now(0), 1);
    let running = pod(RUNNING);
    let mut calls = 0;
    for at in 0..60_000 {
        let Step::Call(purpose) = eviction.next(Some(&running), view, now(at)) else {
            continue;
        };
        calls += 1;
        let conflicts = purpose != Read;
        let answer = if conflicts { refused(409) } else { done() };
        eviction.answered(purpose, &answer, now(at));
    }
    assert!((8..40).contains(&calls), "{calls}");
}

#[test]
fn refusals_and_silence() {
    let forever = |answer: Answer| {
        let mut script = Vec::new();
        for at in 0..40_u64 {
            script.push((at * 100_000, Call(Report, answer.clone(), NoEffect)));
        }
        script.push((4_000_000, Call(Report, done(), Reported)));
        script
    };
    // Of a pod that is held: it runs again after ten minutes.
    let untaken = |code: u16| {
        let calls = (0..6_u64).map(|at| (at * 100_000, Call(Report, refused(code), NoEffect)));
        calls.chain([(600_000, settle(Settled::GivenUp))]).collect()
    };
    let refused_for_good = |code: u16, reads: bool| {
        let mut script = Vec::new();
        for at in 0..u64::from(REFUSALS_MAX) {
            script.push((at * 100_000, Call(Report, refused(code), NoEffect)));
            if reads && at + 1 < u64::from(REFUSALS_MAX) {
                script.push((at * 100_000 + 50_000, Call(Read, done(), NoEffect)));
            }
        }
        script.push((u64::from(REFUSALS_MAX) * 100_000, settle(Settled::GivenUp)));
        script
    };
    let slow = Answer::Refused(Refusal {
        code: 429,
        retry_after_ms: Some(7_000),
        ..Refusal::default()
    });
    let cases = [
        case("no answer", forever(Answer::Lost(String::new()))),
        case("500, as of a webhook that is away", untaken(500)),
        case("a token that is not taken", untaken(401)),
        case(
            "500 for a while",
            vec![
                (0, Call(Report, refused(500), NoEffect)),
                (599_000, Call(Report, done(), Reported)),
                (602_000, Sees(TAKEN_BACK)),
                (602_001, Call(Report, refused(500), NoEffect)),
                (1_200_000, Call(Report, done(), Reported)),
            ],
        ),
        case(
            "flow control",
            vec![
                (0, Call(Report, slow, NoEffect)),
                (1, wait(7_000)),
                (7_000, Call(Report, done(), Reported)),
            ],
        ),
        case("forbidden", refused_for_good(403, false)),
        case("invalid", refused_for_good(422, true)),
        case(
            "forbidden until the role is there",
            vec![
                (0, Call(Report, refused(403), NoEffect)),
                (2_000, Call(Report, refused(403), NoEffect)),
                (6_000, Call(Report, done(), Reported)),
                (6_001, Sees(NO_REASON)),
                (9_000, Call(Report, refused(403), NoEffect)),
                (20_000, Call(Report, refused(403), NoEffect)),
                (90_000, Call(Report, refused(403), NoEffect)),
                (190_000, Call(Report, done(), Reported)),
            ],
        ),
    ];
    cases.iter().for_each(run);
}

#[test]
fn a_pod_that_is_not_held_waits_for_nobody() {
    let mut eviction = Eviction::new(
        EvictionIntent {
            is_held: false,
            ..intent(0)
        },
        now(0),
        1,
    );
    for at in 0..40 {
        eviction.answered(Report, &refused(500), now(at * 100_000));
        assert!(!eviction.is_untaken(now(at * 100_000)));
    }
    // One with a grace is held when nobody acknowledges it.
    eviction.intent.grace_s = 30;
    assert!(eviction.is_untaken(now(4_000_000)) && eviction.is_never_taken());
}

#[test]
fn objects_that_are_not_kept() {
    let deletes = Policy {
        evicted_pods: EvictedPods::Delete,
        ..Policy::default()
    };
    let delete = |what, heeds_status, policy, script| Case {
        what,
        policy,
        heeds_status,
        grace_s: 30,
        script,
    };
    let cases = [
        delete(
            "deleted once told",
            true,
            deletes,
            vec![
                (0, Call(Report, done(), Reported)),
                (1, Call(Delete, done(), Reported)),
                (2, wait(90_001)),
                (900, Gone),
                (901, settle(Settled::Gone)),
            ],
        ),
        delete(
            "a finalizer keeps it",
            true,
            deletes,
            vec![
                (0, Call(Report, done(), Reported)),
                (1, Call(Delete, done(), Reported)),
                (900, CgroupGone),
                (901, settle(Settled::Shown)),
            ],
        ),
        delete(
            "a kubelet before 1.22 takes the status back",
            false,
            Policy::default(),
            vec![
                (0, Call(Report, done(), Reported)),
                (1, Sees(TAKEN_BACK)),
                (2, Call(Delete, refused(500), NoEffect)),
                (2_000, Call(Delete, done(), Reported)),
                (2_001, wait(92_000)),
                (3_000, Gone),
                (3_001, settle(Settled::Gone)),
            ],
        ),
        delete(
            "another pod of this name",
            true,
            deletes,
            vec![
                (0, Call(Report, done(), Reported)),
                (1, Call(Delete, refused(409), NoEffect)),
                (2, Call(Read, refused(404), NoEffect)),
                (3, settle(Settled::Gone)),
            ],
        ),
        delete(
            "it succeeds, and stays",
            true,
            deletes,
            vec![
                (0, Sees(("Succeeded", "", None))),
                (1, settle(Settled::EndedOtherwise)),
            ],
        ),
        delete(
            "dry run",
            true,
            Policy {
                dry_run: true,
                ..Policy::default()
            },
            vec![
                (0, Call(Report, done(), Reported)),
                (1, Sees(TAKEN_BACK)),
                (2, settle(Settled::Shown)),
            ],
        ),
    ];
    cases.iter().for_each(run);
}

#[test]
fn the_eviction_api_is_asked_at_soft_thresholds_only() {
    let asks = Policy {
        evict_by: EvictBy::EvictionApi,
        ..Policy::default()
    };
    let with = |what, grace_s, script| Case {
        what,
        policy: asks,
        heeds_status: true,
        grace_s,
        script,
    };
    let two = Answer::Refused(Refusal {
        code: 500,
        message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.".into(),
        ..Refusal::default()
    });
    let slow = Answer::Refused(Refusal {
        code: 429,
        retry_after_ms: Some(2_000),
        ..Refusal::default()
    });
    let with_cause = |code| {
        Answer::Refused(Refusal {
            code,
            causes: vec![("DisruptionBudget".to_owned(), String::new())],
            ..Refusal::default()
        })
    };
    let cases = [
        with("hard", 0, vec![(0, Call(Report, done(), Reported))]),
        with(
            "201",
            30,
            vec![
                (0, Call(Evict, done(), Reported)),
                (1, wait(90_000)),
                (900, Gone),
                (901, settle(Settled::Gone)),
            ],
        ),
        with(
            "a budget, until the grace is over",
            12,
            vec![
                (0, Call(Evict, by_budget(), RefusedByBudget)),
                (1, wait(5_000)),
                (5_000, Call(Evict, by_budget(), RefusedByBudget)),
                (10_000, Call(Evict, by_budget(), RefusedByBudget)),
                (10_001, wait(12_000)),
                (12_000, Call(Report, done(), Reported)),
            ],
        ),
        with(
            "two budgets",
            30,
            vec![
                (0, Call(Evict, two, RefusedByBudget)),
                (1, wait(5_000)),
                (5_000, Call(Evict, done(), Reported)),
            ],
        ),
        with(
            "flow control is no budget",
            30,
            vec![
                (0, Call(Evict, slow, NoEffect)),
                (1, wait(2_000)),
                (2_000, Call(Evict, done(), Reported)),
            ],
        ),
        with(
            "a policy, a webhook or a budget that cannot be counted: it has the grace, too",
            12,
            vec![
                (0, Call(Evict, refused(403), RefusedByBudget)),
                (1, wait(5_000)),
                (5_000, Call(Evict, refused(400), RefusedByBudget)),
                (10_000, Call(Evict, refused(422), RefusedByBudget)),
                (10_001, wait(12_000)),
                (12_000, Call(Report, done(), Reported)),
            ],
        ),
        with(
            "the cause of a budget with another code",
            30,
            vec![
                (0, Call(Evict, with_cause(403), RefusedByBudget)),
                (5_000, Call(Evict, with_cause(503), RefusedByBudget)),
                (10_000, Call(Evict, done(), Reported)),
            ],
        ),
        with(
            "no right, or an API server that has not read the roles yet: the pod has its grace, and no other one goes",
            12,
            vec![
                (0, Call(Evict, no_right(), NoEffect)),
                (2_000, Call(Evict, no_right(), NoEffect)),
                (10_000, Call(Evict, no_right(), NoEffect)),
                (10_001, wait(12_000)),
                (12_000, Call(Report, done(), Reported)),
            ],
        ),
        with(
            "a login page in the way is waited out",
            30,
            vec![
                (0, Call(Evict, foreign(403), NoEffect)),
                (20_000, Call(Evict, done(), Reported)),
            ],
        ),
        with(
            "no such API: the status says the same",
            30,
            vec![
                (0, Call(Evict, refused(405), NoEffect)),
                (1, Call(Report, done(), Reported)),
            ],
        ),
        with(
            "gone",
            30,
            vec![
                (0, Call(Evict, refused(404), NoEffect)),
                (1, Call(Read, refused(404), NoEffect)),
                (2, settle(Settled::Gone)),
            ],
        ),
        with(
            "no such API, and the pod is there: the status says the same",
            30,
            vec![
                (0, Call(Evict, refused(404), NoEffect)),
                (1, Call(Read, done(), NoEffect)),
                (2, Call(Report, done(), Reported)),
            ],
        ),
    ];
    cases.iter().for_each(run);
}

/// After a restart it is not known yet: a report would go past the budgets.
#[test]
fn a_soft_eviction_waits_until_it_is_known_whether_budgets_can_be_asked() {
    let policy = Policy {
        evict_by: EvictBy::EvictionApi,
        ..Policy::default()
    };
    let eviction = Eviction::new(intent(30), now(0), 1);
    let next = |has_eviction_api, at| {
        let view = View {
            has_eviction_api,
            ..view_with(&policy)
        };
        eviction.next(Some(&pod(RUNNING)), view, now(at))
    };
    let Step::Wait(Some(until_ms)) = next(None, 0) else {
        panic!("{:?}", next(None, 0));
    };
    assert_eq!(next(None, until_ms), Step::Call(Report));
    assert_eq!(next(Some(true), 0), Step::Call(Evict));
    assert_eq!(next(Some(false), 0), Step::Call(Report));
}

#[test]
fn the_grace_counts_from_the_decision() {
    let policy = Policy {
        evict_by: EvictBy::EvictionApi,
        ..Policy::default()
    };
    let view = view_with(&policy);
    // Decided 60 s ago, while the API server was away; a clock that went back makes the grace no longer than it is.
    for (unix_ms, next) in [
        (DECIDED_MS + 60_000, Report),
        (DECIDED_MS + 10_000, Evict),
        (0, Evict),
    ] {
        let now = Now {
            mono_ms: 5,
            unix_ms,
        };
        let eviction = Eviction::new(intent(30), now, 1);
        assert_eq!(
            eviction.next(Some(&pod(RUNNING)), view, now),
            Step::Call(next),
            "{unix_ms}"
        );
        assert!(eviction.grace_ends_ms <= 30_005);
    }
}

#[test]
fn the_body_is_what_the_kubelet_looks_at() {
    let eviction = Eviction::new(intent(0), now(0), 1);
    let call = crate::report::body::call(&eviction, Report, &pod(RUNNING), "policy/v1", false);
    assert_eq!(
        call.path,
        "/api/v1/namespaces/shop/pods/name-u1/status?fieldManager=plimsoll"
    );
    let body: serde_json::Value = serde_json::from_slice(&call.body).unwrap();
    let message = "The node was low on resource: memory.";
    let expected = json!({
        "metadata": {"uid": "u1", "resourceVersion": "7", "annotations": {
            "plimsoll.dev/evicted": format!("{MARK} memory.available rank=1/37 journal=4711")}},
        "status": {"phase": "Failed", "reason": "Evicted", "message": message, "conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "TerminationByPlimsoll", "message": message,
            "lastTransitionTime": "2026-11-22T10:00:00Z"}]},
    });
    assert_eq!(body, expected);
    // Told again with another value, whoever told it before: an unchanged annotation is not looked at.
    let again = crate::report::body::call(&eviction, Report, &pod(TAKEN_BACK), "policy/v1", false);
    let text = String::from_utf8(again.body).unwrap();
    assert!(text.contains(" journal=4711 report=2\""), "{text}");
    // Deleting is never forced, and says which pod.
    let delete = crate::report::body::call(&eviction, Delete, &pod(FAILED), "policy/v1", false);
    let body: serde_json::Value = serde_json::from_slice(&delete.body).unwrap();
    assert_eq!(
        (&body["gracePeriodSeconds"], &body["preconditions"]["uid"]),
        (&json!(1), &json!("u1"))
    );
    let evict = crate::report::body::call(&eviction, Evict, &pod(RUNNING), "policy/v1beta1", true);
    let body: serde_json::Value = serde_json::from_slice(&evict.body).unwrap();
    assert_eq!(
        (&body["apiVersion"], &body["deleteOptions"]["dryRun"]),
        (&json!("policy/v1beta1"), &json!(["All"]))
    );
    assert!(evict.path.ends_with("&dryRun=All"));
}

/// Who makes the pod fills its annotations.
#[test]
fn a_pod_whose_annotations_are_full_is_told_by_a_label() {
    let too_long = Answer::Refused(Refusal {
        code: 422,
        reason: "Invalid".to_owned(),
        causes: vec![(
            "FieldValueTooLong".to_owned(),
            "metadata.annotations".to_owned(),
        )],
        ..Refusal::default()
    });
    let policy = Policy::default();
    let view = view_with(&policy);
    let mut eviction = Eviction::new(intent(0), now(0), 1);
    let metadata = |eviction: &Eviction, pod: &SeenPod| {
        let call = crate::report::body::call(eviction, Report, pod, "policy/v1", false);
        let body: serde_json::Value = serde_json::from_slice(&call.body).unwrap();
        body["metadata"].clone()
    };
    assert_eq!(
        eviction.answered(Report, &too_long, now(10)),
        NoEffect,
        "no refusal that counts"
    );
    let running = pod(RUNNING);
    let next = eviction.next(Some(&running), view, now(11));
    assert_eq!(next, Step::Call(Report), "at once");
    assert_eq!(
        metadata(&eviction, &running),
        json!({"uid": "u1", "resourceVersion": "7", "labels": {"plimsoll.dev/evicted": "2026-11-22T10.00.00.123Z.1"}})
    );
    assert_eq!(eviction.answered(Report, &done(), now(20)), Reported);
    // As the API shows it: another process, too, knows the eviction and goes on counting.
    let labelled = |phase: &str, reason: &str| {
        let mut pod = api_pod("u1", "8");
        pod["status"]["phase"] = json!(phase);
        pod["status"]["reason"] = json!(reason);
        pod["metadata"]["labels"]["plimsoll.dev/evicted"] = json!("2026-11-22T10.00.00.123Z.2");
        SeenPod::read(pod.to_string().as_bytes(), "node-1", false).unwrap()
    };
    let shown = labelled("Failed", "Evicted");
    let next = eviction.next(Some(&shown), view, now(30));
    assert_eq!(next, Step::Wait(Some(30_020)));
    let mut other = Eviction::new(intent(0), now(0), 1);
    let next = other.next(Some(&shown), view, now(30_000));
    assert_eq!(next, Step::Settle(Settled::Shown));
    // It was taken back: told again with another value, after one more refusal.
    let taken_back = labelled("Running", "");
    let next = other.next(Some(&taken_back), view, now(2_000));
    assert_eq!(next, Step::Call(Report));
    other.answered(Report, &too_long, now(2_000));
    assert_eq!(
        metadata(&other, &taken_back)["labels"]["plimsoll.dev/evicted"],
        "2026-11-22T10.00.00.123Z.3"
    );
    // Who refuses the label by the same name refuses for good.
    for at in 0..u64::from(REFUSALS_MAX) {
        other.answered(Report, &too_long, now(100_000 * (at + 1)));
    }
    let next = other.next(Some(&taken_back), view, now(2_000_000));
    assert_eq!(next, Step::Settle(Settled::GivenUp));
}

/// An admission policy whose expressions cost too much names no field.
#[test]
fn a_refusal_of_no_field_counts_and_is_followed_by_the_label() {
    let mut eviction = Eviction::new(intent(0), now(0), 1);
    let running = pod(RUNNING);
    assert_eq!(eviction.label(&running), None);
    eviction.answered(Report, &refused(403), now(0));
    assert_eq!(eviction.label(&running), None);
    eviction.answered(Report, &refused(422), now(0));
    let label = eviction.label(&running);
    assert_eq!(label.as_deref(), Some("2026-11-22T10.00.00.123Z.1"));
    assert_eq!(eviction.refusals, 2);
}
