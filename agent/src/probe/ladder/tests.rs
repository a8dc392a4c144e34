//! The choice on every machine that matters.

use super::*;
use crate::probe::facts::tests::everything;
use crate::probe::facts::{Hook, Lockdown};
use crate::probe::mechanism::Mechanism::*;
use crate::probe::mechanism::Without;

/// What was chosen for each of the first signals, in the ladder's order.
fn primaries(facts: &Facts) -> [Mechanism; 8] {
    let chosen: Vec<_> = choose(facts)
        .into_iter()
        .filter(|choice| choice.role == Role::Primary)
        .collect();
    for (choice, row) in chosen.iter().zip(&LADDER) {
        assert_eq!(choice.signal, row.signal);
    }
    assert_eq!(chosen.len(), LADDER.len());
    let mechanisms: Vec<_> = chosen.iter().map(|choice| choice.mechanism).collect();
    *mechanisms.first_chunk().unwrap()
}

/// The same for what is counted and timed per cgroup, the rest of the ladder.
fn counted(facts: &Facts) -> [Mechanism; 6] {
    let chosen: Vec<_> = choose(facts)
        .into_iter()
        .filter(|choice| choice.role == Role::Primary)
        .map(|choice| choice.mechanism)
        .collect();
    *chosen.last_chunk().unwrap()
}

fn primary(facts: &Facts, signal: LadderSignal) -> Choice {
    choose(facts)
        .into_iter()
        .find(|choice| choice.signal == signal && choice.role == Role::Primary)
        .unwrap()
}

fn beside(facts: &Facts, signal: LadderSignal) -> Vec<Mechanism> {
    choose(facts)
        .into_iter()
        .filter(|choice| choice.signal == signal && choice.role == Role::Beside)
        .map(|choice| choice.mechanism)
        .collect()
}

fn refuse(facts: &mut Facts, refused: impl Fn(&Hook) -> bool) {
    for hook in facts
        .bpf
        .as_mut()
        .unwrap()
        .iter_mut()
        .filter(|hook| refused(hook))
    {
        hook.outcome = HookOutcome::Unavailable {
            reason: "Operation not permitted (errno 1)".to_owned(),
        };
    }
}

fn refuse_fentry(facts: &mut Facts) {
    for hook in facts
        .bpf
        .as_mut()
        .unwrap()
        .iter_mut()
        .filter(|hook| hook.kind.mechanism() == Fentry)
    {
        hook.outcome = HookOutcome::KindRefused {
            reason: "refused by this host: errno 1 (EPERM)".to_owned(),
        };
    }
}

fn v1(mut facts: Facts) -> Facts {
    facts.memory = Ok(Version::V1);
    facts.cpu = Ok(Version::V1);
    facts.event_control = Ok(());
    facts
}

fn no_bpf() -> Facts {
    Facts {
        bpf: Err("built without its BPF object".to_owned()),
        ..everything()
    }
}

/// The host that Plimsoll is developed on: hybrid with memory on v1, fentry refused, tracepoints fine, no
/// CAP_SYS_RESOURCE.
fn development_host() -> Facts {
    let mut facts = v1(everything());
    refuse_fentry(&mut facts);
    facts.psi = Ok(PsiReach::Unprivileged);
    facts
}

#[test]
fn which_mechanism_on_which_machine() {
    let with = |change: &dyn Fn(&mut Facts)| {
        let mut facts = everything();
        change(&mut facts);
        facts
    };
    let without_any = [
        Without::Bpf,
        Without::Psi,
        Without::MemoryEvents,
        Without::EventControl,
        Without::Inotify,
    ];
    let no_bpf_on_v2 = [
        Psi,
        Psi,
        Inotify,
        Sampling,
        MemoryEvents,
        MemoryEvents,
        Sampling,
        Psi,
    ];
    #[rustfmt::skip]
    let table = [
        ("everything", everything(), [Fentry, Tracepoint, Tracepoint, Tracepoint, Fentry, Fentry, Fentry, Psi]),
        ("everything on v1", v1(everything()), [Fentry, Tracepoint, Tracepoint, Tracepoint, Fentry, Fentry, Fentry, Psi]),
        ("fentry refused, v2", with(&|facts| refuse(facts, |hook| hook.kind != HookKind::TpBtf)),
            [Tracepoint, Tracepoint, Tracepoint, Tracepoint, Tracepoint, MemoryEvents, Sampling, Psi]),
        ("development host", development_host(), [EventControl, Tracepoint, Tracepoint, Tracepoint, Tracepoint, Sampling, Sampling, Psi]),
        ("tracepoints refused", with(&|facts| refuse(facts, |hook| hook.kind == HookKind::TpBtf)),
            [Fentry, Psi, Inotify, Sampling, Fentry, Fentry, Fentry, Psi]),
        ("no object", no_bpf(), no_bpf_on_v2),
        ("no BTF", with(&|facts| { facts.btf = false; facts.bpf = Err("no BTF".to_owned()); }), no_bpf_on_v2),
        ("lockdown", with(&|facts| { facts.lockdown = Lockdown::Confidentiality; facts.bpf = Err("not tried".to_owned()); }), no_bpf_on_v2),
        ("no BPF on v1", v1(no_bpf()), [EventControl, Psi, Inotify, Sampling, EventControl, Sampling, Sampling, Psi]),
        ("no BPF, no PSI on v1", Facts { psi: Err("psi=0".to_owned()), ..v1(no_bpf()) },
            [EventControl, EventControl, Inotify, Sampling, EventControl, Sampling, Sampling, Sampling]),
        ("no BPF, no PSI on v2", Facts { psi: Err("psi=0".to_owned()), ..no_bpf() },
            [Sampling, Sampling, Inotify, Sampling, MemoryEvents, MemoryEvents, Sampling, Sampling]),
        ("v1 without event_control (PREEMPT_RT)", Facts { event_control: Err("absent".to_owned()), ..v1(no_bpf()) },
            [Psi, Psi, Inotify, Sampling, Sampling, Sampling, Sampling, Psi]),
        ("nothing at all", with(&|facts| facts.without = without_any.to_vec()), [Sampling; 8]),
    ];
    for (machine, facts, wanted) in table {
        assert_eq!(primaries(&facts), wanted, "{machine}");
    }
}

#[test]
fn what_is_counted_per_cgroup_on_which_machine() {
    let with = |change: &dyn Fn(&mut Facts)| {
        let mut facts = everything();
        change(&mut facts);
        facts
    };
    let all = [Tracepoint, Fentry, Fentry, Fentry, Fentry, Psi];
    let table = [
        ("everything", everything(), all),
        ("everything on v1", v1(everything()), all),
        (
            "development host",
            development_host(),
            [Tracepoint, Sampling, Sampling, Tracepoint, Sampling, Psi],
        ),
        (
            "no sleep of memory.high",
            with(&|facts| refuse(facts, |hook| hook.program == "high_sleep")),
            [Tracepoint, Fentry, Fentry, Tracepoint, Fentry, Psi],
        ),
        (
            "no object",
            no_bpf(),
            [Sampling, Sampling, Sampling, Sampling, Sampling, Psi],
        ),
        (
            "psi=0",
            with(&|facts| facts.psi = Err("psi=0".to_owned())),
            [Tracepoint, Fentry, Fentry, Fentry, Fentry, Sampling],
        ),
    ];
    for (machine, facts, wanted) in table {
        assert_eq!(counted(&facts), wanted, "{machine}");
    }
}

#[test]
fn psi_and_sampling_run_beside_the_armed_threshold() {
    assert_eq!(
        beside(&everything(), LadderSignal::MemoryThreshold),
        [Psi, Sampling]
    );
    assert_eq!(
        beside(&development_host(), LadderSignal::MemoryThreshold),
        [Tracepoint, Psi, Sampling]
    );
    assert_eq!(
        beside(
            &Facts {
                psi: Err("psi=0".to_owned()),
                ..everything()
            },
            LadderSignal::MemoryThreshold
        ),
        [Sampling]
    );
    assert_eq!(
        beside(
            &Facts {
                without: vec![Without::Psi],
                ..everything()
            },
            LadderSignal::MemoryThreshold
        ),
        [Sampling]
    );
}

#[test]
fn a_rung_needs_all_of_its_programs() {
    for (target, signal, wanted) in [
        (
            "page_counter_try_charge",
            LadderSignal::MemoryThreshold,
            Tracepoint,
        ),
        ("cgroup_rmdir", LadderSignal::CgroupLifecycle, Inotify),
        ("reclaim_high", LadderSignal::MemoryLimit, MemoryEvents),
        (
            "try_to_free_mem_cgroup_pages",
            LadderSignal::MemoryLimit,
            MemoryEvents,
        ),
        ("unthrottle_cfs_rq", LadderSignal::CpuThrottling, Sampling),
    ] {
        let mut facts = everything();
        refuse(&mut facts, |hook| hook.target == target);
        let choice = primary(&facts, signal);
        assert_eq!(choice.mechanism, wanted, "{target}");
        assert!(
            choice.obstacles[0].to_string().contains(target),
            "{}",
            choice.obstacles[0]
        );
    }
}

#[test]
fn a_newer_function_or_the_older_pair() {
    // 7.2 has __memcg_memory_event; the programs on the older functions are idle there.
    let mut facts = everything();
    for hook in facts
        .bpf
        .as_mut()
        .unwrap()
        .iter_mut()
        .filter(|hook| hook.program.starts_with("memcg_"))
    {
        hook.outcome = HookOutcome::Idle {
            reason: "not needed: memcg_memory_event is attached".to_owned(),
        };
    }
    let choice = primary(&facts, LadderSignal::MemoryLimit);
    assert_eq!(choice.mechanism, MemoryEvents);
    assert_eq!(
        choice.obstacles,
        [Obstacle::ProgramAbsent {
            program: "memcg_memory_event"
        }]
    );
    facts.bpf.as_mut().unwrap().push(Hook {
        program: "memcg_memory_event".to_owned(),
        target: "__memcg_memory_event".to_owned(),
        kind: HookKind::Fentry,
        outcome: HookOutcome::Attached,
    });
    assert_eq!(primary(&facts, LadderSignal::MemoryLimit).mechanism, Fentry);
}

/// The table names programs by hand; the loader has the list.
#[test]
fn every_program_of_the_table_exists() {
    let hooks = include_str!("../../kernel/hooks.rs");
    for rung in LADDER.iter().flat_map(|row| row.rungs) {
        for need in rung.needs {
            let Need::Program(programs) = need else {
                continue;
            };
            for program in *programs {
                assert!(hooks.contains(&format!("\"{program}\"")), "{program}");
            }
        }
    }
}

#[test]
fn the_reason_is_the_deepest_one_known() {
    let first = |facts: &Facts| primary(facts, LadderSignal::MemoryThreshold).obstacles[0].clone();
    let mut facts = no_bpf();
    assert!(matches!(first(&facts), Obstacle::NotLoaded { .. }));
    // CAP_BPF alone.
    facts.capabilities = Some(crate::host::capabilities::Capabilities::from_bits(1 << 39));
    assert_eq!(
        first(&facts),
        Obstacle::Capabilities {
            missing: "CAP_PERFMON".to_owned()
        }
    );
    facts.btf = false;
    assert_eq!(first(&facts), Obstacle::NoBtf);
    facts.lockdown = Lockdown::Confidentiality;
    assert_eq!(first(&facts), Obstacle::Lockdown);
    facts.without = vec![Without::Bpf];
    assert_eq!(
        first(&facts),
        Obstacle::Without {
            option: Without::Bpf
        }
    );
}

#[test]
fn what_is_attached_counts_whatever_else_is_said() {
    // Capabilities may come from a user namespace or a BPF token: the loader's success is the better witness.
    let facts = Facts {
        capabilities: Some(crate::host::capabilities::Capabilities::from_bits(0)),
        ..everything()
    };
    assert!(is_full(&choose(&facts)));
}

#[test]
fn a_refused_type_is_one_reason_for_all_its_hooks() {
    let wanted = Obstacle::KindRefused {
        kind: HookKind::Fentry,
        reason: "refused by this host: errno 1 (EPERM)".to_owned(),
    };
    for signal in [
        LadderSignal::MemoryThreshold,
        LadderSignal::OomKill,
        LadderSignal::MemoryLimit,
        LadderSignal::CpuThrottling,
    ] {
        let choice = primary(&development_host(), signal);
        assert_eq!(choice.obstacles[0], wanted);
        assert!(choice.remedy().unwrap().contains("allow fentry"));
    }
}

#[test]
fn one_reason_is_said_once() {
    let facts = Facts {
        without: vec![Without::Bpf],
        ..everything()
    };
    let choice = primary(&facts, LadderSignal::MemoryThreshold);
    let wanted = [
        Obstacle::Without {
            option: Without::Bpf,
        },
        Obstacle::MemoryOnV2,
    ];
    assert_eq!(
        choice.obstacles, wanted,
        "fentry and tracepoint share a reason"
    );
    assert_eq!(choice.because().count(), 1);
    assert_eq!(choice.remedy().unwrap(), "run without --without bpf");
}

#[test]
fn a_slow_psi_trigger_says_so() {
    let facts = Facts {
        psi: Ok(PsiReach::Unprivileged),
        ..no_bpf()
    };
    let choice = primary(&facts, LadderSignal::MemoryThreshold);
    assert!(choice.why.ends_with("in windows of 2 s"));
    assert!(
        choice
            .lost
            .as_deref()
            .unwrap()
            .ends_with("up to 2 s more here")
    );
    assert!(choice.obstacles.contains(&Obstacle::PsiUnprivileged));
}

#[test]
fn every_row_ends_with_sampling() {
    for row in &LADDER {
        let last = row.rungs.last().unwrap();
        assert_eq!(last.mechanism, Sampling);
        assert!(last.needs.is_empty());
        for rung in row.rungs {
            assert!(
                rung.beside
                    .iter()
                    .all(|mechanism| row.rungs.iter().any(|other| other.mechanism == *mechanism)),
                "{rung:?}"
            );
            assert!(!rung.beside.contains(&rung.mechanism), "{rung:?}");
        }
    }
}

/// Every combination of facts: one primary for each signal, nothing that was left out, and a loss exactly when it is
/// not the top.
#[test]
fn every_machine_is_served() {
    let options = [
        Without::Bpf,
        Without::Fentry,
        Without::Tracepoint,
        Without::Psi,
        Without::MemoryEvents,
        Without::EventControl,
        Without::Inotify,
    ];
    let bases = [
        everything(),
        v1(everything()),
        development_host(),
        no_bpf(),
        v1(no_bpf()),
        Facts {
            memory: Err("none".to_owned()),
            ..no_bpf()
        },
    ];
    for base in bases {
        for mask in 0..1_u32 << options.len() {
            let without: Vec<_> = (0..)
                .zip(options)
                .filter(|(bit, _)| mask & (1 << bit) != 0)
                .map(|(_, option)| option)
                .collect();
            let facts = Facts {
                without,
                ..base.clone()
            };
            let choices = choose(&facts);
            primaries(&facts);
            for choice in &choices {
                assert!(
                    !facts
                        .without
                        .iter()
                        .any(|option| option.covers(choice.mechanism)),
                    "{choice:?}"
                );
                let degraded = choice.role == Role::Primary && choice.rung > 0;
                assert_eq!(choice.lost.is_some(), degraded, "{choice:?}");
                assert_eq!(!choice.obstacles.is_empty(), degraded, "{choice:?}");
            }
            let full = choices
                .iter()
                .all(|choice| choice.role == Role::Beside || choice.lost.is_none());
            assert_eq!(is_full(&choices), full);
        }
    }
}
