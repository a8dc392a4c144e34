use super::*;

/// No bound of holes that are begun.
const ALL: usize = usize::MAX;

fn reclaim(pod: &str, victims: &[&str]) -> Reclaim {
    Reclaim {
        pod: pod.into(),
        node: "n".into(),
        victims: victims.iter().map(|&victim| victim.to_owned()).collect(),
        is_urgent: false,
    }
}

fn refused(code: u16, cause: Option<&str>) -> Answer {
    Answer::Refused(Refusal {
        code,
        causes: cause
            .map(|cause| (cause.to_owned(), String::new()))
            .into_iter()
            .collect(),
        ..Refusal::default()
    })
}

fn at(mono_ms: u64) -> Now {
    Now {
        mono_ms,
        unix_ms: 1_795_341_600_000 + mono_ms,
    }
}

fn waits(_: &str) -> Fate {
    Fate::Waits(("b".into(), 1))
}

fn due(reclaims: &mut Reclaims, plan: &[Reclaim], ms: u64) -> Option<String> {
    reclaims.plan(plan.to_vec(), at(ms), |_| 30_000);
    reclaims.read(|_, _| true);
    while let Some((victim, for_pod)) = reclaims.next_trial(ms, ALL, |_, _| true) {
        reclaims.tries(&victim, "1", &for_pod, ms);
        let next = reclaims.next(ms, ALL, |_, _| true);
        assert!(next.is_none_or(|(next, _)| next != victim), "untried");
        reclaims.note_trial(&victim, &Answer::Done(Vec::new()), ms);
    }
    let next = reclaims.next(ms, ALL, |_, _| true);
    next.map(|(victim, _)| victim)
}

fn sent(reclaims: &mut Reclaims, ms: u64) {
    reclaims.sent("v", "1", &reclaim("p", &["v"]), ms);
}

#[test]
fn a_victim_has_notice_and_one_that_the_plan_drops_keeps_its_place() {
    let mut reclaims = Reclaims::new(1);
    assert_eq!(due(&mut reclaims, &[reclaim("p", &["v", "w"])], 0), None);
    // Another one joins late: neither goes before both have had their notice.
    assert_eq!(
        due(&mut reclaims, &[reclaim("p", &["v", "x"])], 29_000),
        None
    );
    assert_eq!(
        due(&mut reclaims, &[reclaim("p", &["v", "x"])], 58_999),
        None
    );
    assert_eq!(
        due(&mut reclaims, &[reclaim("p", &["v", "x"])], 59_000).as_deref(),
        Some("v")
    );
    // Its owner chose another pod, and the hole is there: the notice ends.
    assert_eq!(due(&mut reclaims, &[], 59_500), None);
    assert!(reclaims.notices.is_empty());
    assert_eq!(due(&mut reclaims, &[], 69_500), None);
    assert_eq!(
        due(&mut reclaims, &[reclaim("p", &["v"])], 69_600),
        None,
        "it begins anew"
    );
}

#[test]
fn a_plan_that_names_another_pod_for_a_moment_ends_no_notice() {
    let mut reclaims = Reclaims::new(1);
    let plans = [[reclaim("p", &["v"])], [reclaim("p", &["young"])]];
    // A new pod of the namespace is the better victim in every other plan.
    for second in 0..30 {
        let plan = &plans[usize::from(second % 5 == 1)];
        assert_eq!(due(&mut reclaims, plan, second * 1_000), None, "{second}");
    }
    assert!(reclaims.is_noticed("young"));
    assert_eq!(due(&mut reclaims, &plans[0], 30_000).as_deref(), Some("v"));
}

#[test]
fn no_pod_goes_before_its_notice_was_seen() {
    let mut reclaims = Reclaims::new(1);
    let mut plan = [reclaim("p", &["v"])];
    let next = |reclaims: &Reclaims, ms| reclaims.next(ms, ALL, |_, _| true).is_some();
    for ms in [0, 90_000] {
        reclaims.plan(plan.to_vec(), at(ms), |_| 30_000);
    }
    assert!(!next(&reclaims, 90_000));
    assert_eq!(reclaims.notices["v"].value(), "2026-11-22T10:00:30Z");
    // Once is enough: its owner may take it off again.
    reclaims.read(|_, _| true);
    reclaims.read(|_, _| false);
    assert!(next(&reclaims, 90_000));
    // Also where a plan leaves it out for a moment; but not with another time.
    for (ms, grace_ms, goes) in [(90_500, 30_000, true), (91_000, 60_000, false)] {
        reclaims.plan(Vec::new(), at(ms - 100), |_| grace_ms);
        reclaims.plan(plan.to_vec(), at(ms), |_| grace_ms);
        assert_eq!(next(&reclaims, ms), goes, "{ms}");
    }
    // There is no grace, so no notice to wait for.
    plan[0].is_urgent = true;
    reclaims.plan(plan.to_vec(), at(91_001), |_| 30_000);
    assert!(next(&reclaims, 91_001));
}

#[test]
fn a_pod_that_changes_again_and_again_is_left_alone() {
    let mut reclaims = Reclaims::new(1);
    let plan = [reclaim("p", &["v"])];
    for second in 0..CONFLICTS_MAX {
        let ms = u64::from(second) * 2_000;
        due(&mut reclaims, &plan, ms);
        assert!(reclaims.left_alone(ms).is_empty());
        sent(&mut reclaims, ms);
        let outcome = reclaims.answered("v", &refused(409, None), false, ms);
        assert_eq!(outcome.0, Outcome::Changed);
    }
    assert_eq!(reclaims.left_alone(5_000), ["v".to_owned()].into());
}

/// As where a webhook on evictions in its namespace is away.
#[test]
fn a_pod_whose_eviction_always_fails_is_left_alone_and_holds_up_the_others_once() {
    let mut reclaims = Reclaims::new(1);
    let plan = [reclaim("p", &["v"]), reclaim("q", &["w"])];
    let mut ms = 0;
    for time in 1..=ERRORS_MAX {
        due(&mut reclaims, &plan, ms);
        ms += 60_000;
        assert_eq!(due(&mut reclaims, &plan, ms).as_deref(), Some("v"));
        sent(&mut reclaims, ms);
        let outcome = reclaims.answered("v", &refused(500, None), false, ms);
        assert_eq!(outcome.0, Outcome::Unclear);
        let next = reclaims.next(ms, ALL, |_, _| true);
        assert_eq!(next.is_some(), time > 1, "{time}");
        ms += UNCLEAR_MS;
        reclaims.look(ms, |_| false, |_| false, waits);
    }
    assert_eq!(reclaims.left_alone(ms), ["v".to_owned()].into());
    // A hiccup is no row, as of trials, which follow each other at once; nor is another answer in between.
    let mut reclaims = Reclaims::new(1);
    for at in 0..ERRORS_MAX {
        reclaims.tries("v", "1", "p", u64::from(at));
        reclaims.note_trial("v", &refused(500, None), u64::from(at));
    }
    reclaims.tries("v", "1", "p", UNCLEAR_MS);
    reclaims.note_trial("v", &refused(500, None), UNCLEAR_MS);
    reclaims.tries("v", "1", "p", 2 * UNCLEAR_MS);
    reclaims.note_trial("v", &refused(409, None), 2 * UNCLEAR_MS);
    reclaims.tries("v", "1", "p", 3 * UNCLEAR_MS);
    reclaims.note_trial("v", &refused(500, None), 3 * UNCLEAR_MS);
    assert!(reclaims.left_alone(3 * UNCLEAR_MS).is_empty());
    // Silence is no pod's fault.
    let mut reclaims = Reclaims::new(1);
    for _ in 0..10 {
        sent(&mut reclaims, ms);
        reclaims.answered("v", &Answer::Lost(String::new()), false, ms);
        ms += UNCLEAR_MS;
        reclaims.look(ms, |_| false, |_| false, waits);
    }
    assert!(reclaims.left_alone(ms).is_empty());
}

/// No authorizer allows it: so answers an API server that has not read the roles yet.
fn no_right() -> Answer {
    let message = r#"pods "v" is forbidden: User "x" cannot create resource "pods/eviction" in API group "" in the namespace "a""#;
    Answer::Refused(Refusal {
        code: 403,
        message: message.to_owned(),
        ..Refusal::default()
    })
}

#[test]
fn an_api_server_that_has_just_started_costs_no_victim_its_turn() {
    let mut reclaims = Reclaims::new(1);
    let plan = [reclaim("p", &["v"]), reclaim("q", &["w"])];
    due(&mut reclaims, &plan, 0);
    assert_eq!(due(&mut reclaims, &plan, 30_000).as_deref(), Some("v"));
    sent(&mut reclaims, 30_000);
    let outcome = reclaims.answered("v", &no_right(), false, 30_000);
    assert_eq!(outcome.0, Outcome::NoRight);
    assert!(reclaims.left_alone(30_000).is_empty() && reclaims.evicted().is_empty());
    assert_eq!(due(&mut reclaims, &plan, 30_500), None, "all wait a moment");
    assert_eq!(due(&mut reclaims, &plan, 32_000).as_deref(), Some("v"));
    sent(&mut reclaims, 32_000);
    let outcome = reclaims.answered("v", &Answer::Done(Vec::new()), false, 32_000);
    assert_eq!(outcome.0, Outcome::Evicted);
}

/// As where the right was granted in other namespaces.
#[test]
fn a_right_that_is_never_there_costs_others_a_moment_once() {
    let mut reclaims = Reclaims::new(1);
    let plan = [reclaim("p", &["v"]), reclaim("q", &["w"])];
    due(&mut reclaims, &plan, 0);
    let mut ms = 30_000;
    for time in 1..=ERRORS_MAX {
        assert!(reclaims.left_alone(ms).is_empty());
        assert_eq!(due(&mut reclaims, &plan, ms).as_deref(), Some("v"));
        sent(&mut reclaims, ms);
        reclaims.answered("v", &no_right(), false, ms);
        assert_eq!(
            reclaims.next(ms, ALL, |_, _| true).is_some(),
            time > 1,
            "{time}"
        );
        ms += UNCLEAR_MS;
    }
    assert_eq!(reclaims.left_alone(ms), ["v".to_owned()].into());
}

/// A watch that is late shows the same version again.
#[test]
fn only_versions_that_are_seen_to_change_count_as_old() {
    let mut reclaims = Reclaims::new(1);
    let plan = [reclaim("p", &["v"])];
    for (second, version, old) in [(0, "7", 1), (1, "7", 1)] {
        let ms = second * 2_000;
        due(&mut reclaims, &plan, ms);
        reclaims.sent("v", version, &plan[0], ms);
        reclaims.answered("v", &refused(409, None), false, ms);
        assert_eq!(reclaims.old_versions("v"), old, "{second}");
    }
    let mut reclaims = Reclaims::new(1);
    for (second, version) in [(0, "7"), (1, "8")] {
        due(&mut reclaims, &plan, second * 2_000);
        reclaims.sent("v", version, &plan[0], second * 2_000);
        reclaims.answered("v", &refused(409, None), false, second * 2_000);
    }
    assert_eq!(reclaims.old_versions("v"), 2);
}

/// Several calls are on their way at once.
#[test]
fn no_answer_shortens_the_pause_that_another_has_asked_for() {
    let mut reclaims = Reclaims::new(1);
    let plan = [reclaim("p", &["v"]), reclaim("q", &["w"])];
    due(&mut reclaims, &plan, 0);
    due(&mut reclaims, &plan, 30_000);
    reclaims.sent("v", "1", &plan[0], 30_000);
    reclaims.sent("w", "1", &plan[1], 30_000);
    let mut later = refused(429, None);
    if let Answer::Refused(refusal) = &mut later {
        refusal.retry_after_ms = Some(30_000);
    }
    reclaims.answered("v", &later, false, 30_000);
    reclaims.answered("w", &refused(409, None), false, 30_000);
    let next = |ms| reclaims.next(ms, ALL, |_, _| true).is_some();
    assert!(!next(59_999) && next(90_000));
}

#[test]
fn an_eviction_that_is_not_carried_out_begins_no_hole() {
    for (answer, begun_ms) in [
        (refused(429, None), None),
        (refused(429, Some("DisruptionBudget")), None),
        (refused(409, None), None),
        (refused(403, None), None),
        (no_right(), None),
        (refused(500, None), Some(30_000)),
        (Answer::Done(Vec::new()), Some(30_000)),
    ] {
        let mut reclaims = Reclaims::new(1);
        let plan = [reclaim("p", &["v"])];
        due(&mut reclaims, &plan, 0);
        due(&mut reclaims, &plan, 30_000);
        sent(&mut reclaims, 30_000);
        assert_eq!(reclaims.begun_ms(), Some(30_000));
        reclaims.answered("v", &answer, false, 30_100);
        assert_eq!(reclaims.begun_ms(), begun_ms, "{answer:?}");
    }
}

#[test]
fn holes_that_may_not_be_begun_wait_and_those_that_are_go_on() {
    let mut reclaims = Reclaims::new(1);
    let other = Reclaim {
        pod: "q".into(),
        ..reclaim("q", &["x"])
    };
    let plan = [reclaim("p", &["v", "w"]), other];
    due(&mut reclaims, &plan, 0);
    due(&mut reclaims, &plan, 30_000);
    let next = |reclaims: &Reclaims, begins| {
        let next = reclaims.next(30_000, begins, |_, _| true);
        next.map(|(victim, _)| victim)
    };
    let holes = |reclaims: &Reclaims, begins| {
        let holes = reclaims.holes(30_000, begins);
        holes.into_keys().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(next(&reclaims, 0), None);
    assert_eq!(holes(&reclaims, Some(0)), [""; 0]);
    assert_eq!(holes(&reclaims, Some(1)), ["p"]);
    assert_eq!(holes(&reclaims, Some(2)), ["p", "q"]);
    assert_eq!(next(&reclaims, 1).as_deref(), Some("v"));
    assert_eq!(reclaims.begun_ms(), None);
    reclaims.sent("v", "1", &plan[0], 30_000);
    assert_eq!(reclaims.begun_ms(), Some(30_000));
    assert_eq!(next(&reclaims, 0), None);
    reclaims.answered("v", &Answer::Done(Vec::new()), false, 30_000);
    due(
        &mut reclaims,
        &[reclaim("p", &["w"]), plan[1].clone()],
        30_000,
    );
    // The second victim of the same hole.
    assert_eq!(next(&reclaims, 0).as_deref(), Some("w"));
}

#[test]
fn what_was_not_seen_is_no_miss() {
    let mut reclaims = Reclaims::new(1);
    for round in 0..3 {
        let ms = round * 100_000;
        sent(&mut reclaims, ms);
        reclaims.answered("v", &Answer::Done(Vec::new()), false, ms);
        reclaims.pause();
        reclaims.look(ms + CLAIM_MS, |uid| uid == "v", |uid| uid == "v", waits);
    }
    assert!(reclaims.unserved(300_000).is_empty());
}

#[test]
fn who_needs_another_hole_has_missed_the_one_before() {
    let mut reclaims = Reclaims::new(1);
    let mut evicted = |victims: &[&str], ms| {
        let hole = reclaim("p", victims);
        reclaims.sent(victims[0], "1", &hole, ms);
        reclaims.answered(victims[0], &Answer::Done(Vec::new()), false, ms);
        reclaims.look(ms + 1, |_| true, |_| true, waits);
        reclaims.unserved(ms + 2).len()
    };
    // Two victims of one hole, and then another hole every 32 s.
    assert_eq!(evicted(&["v", "w"], 0), 0);
    assert_eq!(evicted(&["w"], 1_000), 0);
    assert_eq!(evicted(&["x"], 33_000), 0);
    assert_eq!(evicted(&["y"], 65_000), 1);
}

#[test]
fn a_hole_has_an_end_also_where_nothing_is_seen() {
    let mut reclaims = Reclaims::new(1);
    reclaims.sent("v", "1", &reclaim("p", &["v"]), 0);
    reclaims.answered("v", &Answer::Done(Vec::new()), false, 0);
    reclaims.look(1, |_| true, |_| false, waits);
    for ms in (0..KEPT_MAX_MS).step_by(10_000) {
        reclaims.pause();
        assert_eq!(reclaims.holes(ms, None).len(), 1, "{ms}");
    }
    assert!(reclaims.holes(KEPT_MAX_MS, None).is_empty());
}

#[test]
fn victims_of_a_hole_go_one_after_the_other_and_a_refusal_ends_it() {
    let mut reclaims = Reclaims::new(1);
    let plan = [reclaim("p", &["v", "w"])];
    due(&mut reclaims, &plan, 0);
    assert_eq!(due(&mut reclaims, &plan, 30_000).as_deref(), Some("v"));
    sent(&mut reclaims, 30_000);
    assert_eq!(due(&mut reclaims, &plan, 30_001), None, "it is on its way");
    let outcome = reclaims.answered("v", &refused(429, Some("DisruptionBudget")), false, 30_100);
    assert_eq!(outcome, (Outcome::Budget, "p".to_owned()));
    assert_eq!(reclaims.left_alone(30_101), ["v".to_owned()].into());
    assert_eq!(due(&mut reclaims, &plan, 31_000), None);
    // A minute, then two, up to 16.
    let mut at = 30_100;
    for minutes in [1, 2, 4, 8, 16, 16] {
        assert!(
            reclaims.left_alone(at + minutes * 60_000 - 1).contains("v"),
            "{minutes}"
        );
        at += minutes * 60_000;
        assert!(reclaims.left_alone(at).is_empty(), "{minutes}");
        sent(&mut reclaims, at);
        reclaims.answered("v", &refused(429, Some("DisruptionBudget")), false, at);
    }
}

#[test]
fn what_is_unclear_counts_as_done_until_it_is_clear_that_it_was_not() {
    let mut reclaims = Reclaims::new(1);
    let plan = [reclaim("p", &["v"])];
    due(&mut reclaims, &plan, 0);
    due(&mut reclaims, &plan, 30_000);
    sent(&mut reclaims, 30_000);
    reclaims.answered("v", &Answer::Lost("away".into()), false, 40_000);
    reclaims.look(54_999, |_| false, |_| false, waits);
    assert_eq!(reclaims.evicted(), ["v".to_owned()].into());
    assert_eq!(reclaims.overdue(54_999), None);
    reclaims.look(55_000, |_| false, |_| false, waits);
    assert!(reclaims.evicted().is_empty());
    // Done, and not seen: what is known is old.
    sent(&mut reclaims, 60_000);
    reclaims.answered("v", &Answer::Done(Vec::new()), false, 60_000);
    reclaims.look(75_000, |_| false, |_| false, waits);
    assert_eq!(reclaims.overdue(75_000), Some("v"));
    reclaims.look(75_001, |uid| uid == "v", |uid| uid == "v", waits);
    assert_eq!(
        (reclaims.overdue(75_001), reclaims.evicted().len()),
        (None, 0)
    );
}

#[test]
fn trouble_of_the_server_is_waited_out() {
    let mut reclaims = Reclaims::new(1);
    let plan = [reclaim("p", &["v"])];
    due(&mut reclaims, &plan, 0);
    let mut at = 30_000;
    // Whether it was done is not known.
    for code in [500, 502, 504] {
        assert_eq!(outcome(&refused(code, None)), Outcome::Unclear, "{code}");
    }
    for code in [429, 503] {
        assert!(due(&mut reclaims, &plan, at).is_some(), "{code}");
        sent(&mut reclaims, at);
        assert_eq!(
            reclaims.answered("v", &refused(code, None), false, at),
            (Outcome::Later, "p".to_owned())
        );
        assert_eq!(due(&mut reclaims, &plan, at + 700), None);
        at += 60_000;
    }
    assert!(reclaims.left_alone(at).is_empty());
}

#[test]
fn a_pod_that_does_not_start_in_its_hole_twice_is_not_served_for_a_while() {
    let mut reclaims = Reclaims::new(1);
    let mut at = 0;
    for minutes in [0, 1, 2, 4, 8, 16, 16] {
        sent(&mut reclaims, at);
        reclaims.answered("v", &Answer::Done(Vec::new()), false, at);
        let mut look = |ms| reclaims.look(ms, |uid| uid == "v", |uid| uid == "v", waits);
        look(at);
        at += CLAIM_MS;
        look(at);
        assert_eq!(reclaims.unserved(at).len(), usize::from(minutes > 0));
        at += minutes * 60_000;
        assert!(reclaims.unserved(at).is_empty(), "{minutes}");
    }
    // It starts, and all is forgotten.
    reclaims.look(at, |_| true, |_| true, |_| Fate::Started);
    assert!(reclaims.claims.is_empty());
}

/// A Job that ends, and the next one of the same CronJob.
#[test]
fn pods_that_come_one_after_the_other_inherit_what_was_missed() {
    let alike = || ("b".to_owned(), 1);
    let job = |reclaims: &mut Reclaims, pod: &str, ms, fate: Fate| {
        reclaims.sent("v", "1", &reclaim(pod, &["v"]), ms);
        reclaims.answered("v", &Answer::Done(Vec::new()), false, ms);
        reclaims.look(ms, |_| true, |_| true, waits);
        reclaims.look(ms + 20_000, |_| true, |_| true, |_| fate.clone());
        assert!(reclaims.claims.is_empty());
    };
    let mut reclaims = Reclaims::new(1);
    job(&mut reclaims, "p1", 0, Fate::Gone);
    assert!(!reclaims.inherits_wait("p2", &alike(), 20_000));
    job(&mut reclaims, "p2", 30_000, Fate::Gone);
    assert!(reclaims.inherits_wait("p3", &alike(), 109_999));
    assert!(
        !reclaims.inherits_wait("p3", &("b".into(), 2), 50_000),
        "of another kind"
    );
    assert!(!reclaims.inherits_wait("p3", &alike(), 110_000), "a minute");
    job(&mut reclaims, "p3", 110_000, Fate::Gone);
    assert!(reclaims.inherits_wait("p4", &alike(), 130_000 + 2 * ALONE_MS - 1));
    // One starts, and all is forgotten.
    job(&mut reclaims, "p4", 300_000, Fate::Started);
    assert!(reclaims.missed.is_empty());
    // After a while as well; and who has room made for nothing while nobody places pods has missed nothing.
    job(&mut reclaims, "p5", 400_000, Fate::Gone);
    reclaims.look(420_000 + ALONE_MAX_MS, |_| true, |_| true, waits);
    assert!(reclaims.missed.is_empty());
    reclaims.sent("v", "1", &reclaim("p6", &["v"]), 3_000_000);
    reclaims.answered("v", &Answer::Done(Vec::new()), false, 3_000_000);
    reclaims.look(3_000_000, |_| true, |_| true, waits);
    reclaims.nobody_places();
    reclaims.look(3_020_000, |_| true, |_| true, |_| Fate::Gone);
    assert!(reclaims.missed.is_empty());
}
