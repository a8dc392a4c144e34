use std::collections::BTreeSet;

use plimsoll_core::engine::EngineConfig;
use plimsoll_core::kube::admission::standing::RefusedPod;
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::threshold::{Amount, Operator, Passes, Threshold};

use super::*;
use crate::kernel::{Account, KindCount};
use crate::record::tally::{PlacementTally, ReportCounts, Tally};
use crate::testkit::{self, MIB};

fn threshold(signal: Signal, operator: Operator, value: u64, grace_ns: u64) -> Threshold {
    Threshold {
        signal,
        operator,
        value: Amount::Absolute(value),
        grace_ns,
        min_reclaim: None,
        passes: Passes::All,
    }
}

fn snapshot(pods: u64) -> Snapshot {
    let config = EngineConfig {
        thresholds: vec![
            threshold(Signal::MemoryAvailable, Operator::LessThan, 100 * MIB, 0),
            threshold(Signal::MemoryAvailable, Operator::LessThan, 600 * MIB, 1),
            threshold(Signal::MemoryFull10, Operator::GreaterThan, 4000, 0),
        ],
        ..EngineConfig::default()
    };
    let pods = (0..pods).map(|index| {
        let json = format!(
            r#"{{"metadata":{{"name":"p\"{index}","uid":"u{index:05}"}},"spec":{{"containers":[{{"name":"app"}}]}}}}"#
        );
        let pod: Pod = serde_json::from_str(&json).unwrap();
        (Arc::new(pod), index)
    });
    let events = testkit::events(pods, &[(2, 512), (10, 512)]);
    let mut tally = Tally {
        journal_steps_lost: Some(2),
        cgroups_unwatched: Some(6),
        placement: Some(PlacementTally {
            is_active: true,
            writes: 12,
            failed: 1,
            cpus_outside: 3,
            reports_lost: 5,
        }),
        reports: Some(ReportCounts {
            unsettled: 7,
            is_connected: true,
            ..ReportCounts::default()
        }),
        nri: Some(NriTally {
            is_connected: true,
            refused: 3,
            ..NriTally::default()
        }),
        ..Tally::default()
    };
    let engine = testkit::engine(config, &events, |_, decisions| {
        decisions.iter().for_each(|it| tally.decided(it));
    });
    tally.oom_kills.add(true, 3);
    tally.admissions = [4, 2];
    tally.reactions.kswapd_wake.add(70_000);
    let mut records = AccountReport::from(&Account::default());
    let charges = records
        .kinds
        .iter_mut()
        .find(|kind| kind.kind == "charges-reached")
        .unwrap();
    charges.count = KindCount {
        produced: 5,
        consumed: 4,
        dropped: 1,
        folded: 2,
    };
    Snapshot {
        records: Some(records),
        refused: Arc::from([RefusedPod {
            pod: "team/web".into(),
            uid: PodUid::from("w"),
            place: "web.yaml:1".into(),
            message: "exceeded quota".into(),
        }]),
        tally,
        ..Snapshot::of(&engine)
    }
}

fn readings(snapshot: Option<Snapshot>) -> Readings {
    Readings {
        snapshot: snapshot.map(Arc::new),
        programs: vec![RunCounts {
            program: "charge",
            count: 7,
            time: Duration::from_micros(1500),
            missed: Some(11),
        }],
        process: ProcessFigures {
            cpu: Duration::from_millis(1250),
            resident_bytes: 4096,
            started: Duration::from_secs(1_700_000_000),
        },
        clients: ClientFigures::default(),
        pods: true,
    }
}

/// What `promtool check metrics` and the OpenMetrics specification ask for, as far as one page can show it.
fn lint(page: &str, form: Form) -> BTreeMap<String, String> {
    let mut types: BTreeMap<String, String> = BTreeMap::new();
    let mut helps = BTreeSet::new();
    let mut series = BTreeSet::new();
    let mut family = String::new();
    for line in page.lines() {
        if let Some(it) = line.strip_prefix("# HELP ") {
            let (name, help) = it.split_once(' ').unwrap();
            assert!(helps.insert(name.to_owned()), "two HELP: {line}");
            assert!(!help.is_empty() && help.ends_with('.'), "{line}");
            name.clone_into(&mut family);
        } else if let Some(it) = line.strip_prefix("# TYPE ") {
            let (name, kind) = it.split_once(' ').unwrap();
            assert_eq!(name, family, "TYPE follows its HELP");
            assert!(
                types.insert(name.to_owned(), kind.to_owned()).is_none(),
                "two TYPE: {line}"
            );
            assert!(
                name.starts_with("plimsoll_") || name.starts_with("process_"),
                "{line}"
            );
            let plain =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            assert!(name.bytes().all(plain), "{line}");
            assert_eq!(
                name.ends_with("_total"),
                kind == "counter" && form == Form::Classic,
                "{line}"
            );
            for unit in [
                "milliseconds",
                "nanoseconds",
                "_ns",
                "_ms",
                "kilobytes",
                "percent",
            ] {
                assert!(!name.contains(unit), "base units only: {line}");
            }
        } else if let Some(it) = line.strip_prefix("# UNIT ") {
            let (name, unit) = it.split_once(' ').unwrap();
            assert_eq!(form, Form::OpenMetrics, "{line}");
            assert!(name.ends_with(&format!("_{unit}")), "{line}");
        } else if line != "# EOF" {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(series.insert(name.to_owned()), "twice: {line}");
            let bare = name.split('{').next().unwrap();
            let rest = bare.strip_prefix(family.as_str()).unwrap();
            let suffixes: &[&str] = match (types[&family].as_str(), form) {
                ("histogram", _) => &["_bucket", "_sum", "_count"],
                ("counter", Form::OpenMetrics) => &["_total"],
                _ => &[""],
            };
            assert!(suffixes.contains(&rest), "{line} in {family}");
        }
    }
    assert_eq!(page.ends_with("# EOF\n"), form == Form::OpenMetrics);
    assert_eq!(helps.len(), types.len());
    types
}

#[test]
fn both_forms_keep_the_rules() {
    for form in [Form::OpenMetrics, Form::Classic] {
        for snapshot in [None, Some(snapshot(3))] {
            let page = readings(snapshot).page(form).unwrap();
            lint(&page, form);
        }
    }
}

#[test]
fn figures_are_those_of_the_snapshot() {
    let page = readings(Some(snapshot(3))).page(Form::Classic).unwrap();
    for line in [
        "plimsoll_loop_answering 1",
        "process_cpu_seconds_total 1.25",
        "process_resident_memory_bytes 4096",
        "plimsoll_bpf_program_runs_total{program=\"charge\"} 7",
        "plimsoll_bpf_program_run_seconds_total{program=\"charge\"} 0.0015",
        "plimsoll_bpf_program_missed_runs_total{program=\"charge\"} 11",
        "plimsoll_records_produced_total{kind=\"charges-reached\"} 5",
        "plimsoll_records_folded_total{kind=\"charges-reached\"} 2",
        "plimsoll_kernel_oom_kills_total{victim=\"pod\"} 3",
        "plimsoll_journal_steps_lost_total 2",
        "plimsoll_placement_active 1",
        "plimsoll_placement_writes_total 12",
        "plimsoll_placement_failed 1",
        "plimsoll_placement_cpus_outside 3",
        "plimsoll_placement_reports_lost_total 5",
        "plimsoll_cgroups_unwatched 6",
        "plimsoll_evictions_unsettled 7",
        "plimsoll_cluster_connected 1",
        "plimsoll_nri_connected 1",
        "plimsoll_nri_containers_total{answer=\"refused\"} 3",
        "plimsoll_nri_containers_total{answer=\"changed\"} 0",
        "plimsoll_admissions_total{verdict=\"admitted\"} 4",
        "plimsoll_admissions_total{verdict=\"refused\"} 2",
        "plimsoll_pods_refused 1",
        "plimsoll_reaction_seconds_bucket{le=\"0.00005\",cause=\"kswapd_wake\"} 0",
        "plimsoll_reaction_seconds_bucket{le=\"0.0001\",cause=\"kswapd_wake\"} 1",
        "plimsoll_reaction_seconds_bucket{le=\"+Inf\",cause=\"kswapd_wake\"} 1",
        "plimsoll_reaction_seconds_count{cause=\"kswapd_wake\"} 1",
        "plimsoll_signal_observed_bytes{signal=\"memory.available\"} 536870912",
        "plimsoll_threshold_headroom_bytes{signal=\"memory.available\",threshold=\"hard\"} 432013312",
        "plimsoll_threshold_headroom_bytes{signal=\"memory.available\",threshold=\"soft\"} -92274688",
        "plimsoll_threshold_met{signal=\"memory.available\",threshold=\"soft\"} 1",
        "plimsoll_threshold_met{signal=\"memory.available\",threshold=\"hard\"} 0",
        "plimsoll_node_condition{condition=\"MemoryPressure\"} 1",
        "plimsoll_decisions_total{decision=\"evict\",reason=\"memory.available\"} 1",
        "plimsoll_decisions_total{decision=\"evict\",reason=\"memoryPressure.full.avg10\"} 0",
        "plimsoll_pods{state=\"leaving\"} 1",
        "plimsoll_pods{state=\"running\"} 2",
        "plimsoll_pod_memory_usage_bytes{namespace=\"default\",pod=\"p\\\"2\",uid=\"u00002\"} 2097152",
        "plimsoll_pods_without_series 0",
    ] {
        assert!(page.lines().any(|it| it == line), "{line}\n{page}");
    }
}

#[test]
fn without_the_loop_there_is_what_is_known_without_it() {
    let page = readings(None).page(Form::Classic).unwrap();
    assert!(page.contains("plimsoll_loop_answering 0\n"), "{page}");
    assert!(page.contains("process_cpu_seconds_total"), "{page}");
    assert!(!page.contains("plimsoll_pods{"), "{page}");
}

#[test]
fn series_of_pods_are_asked_for_and_bounded() {
    let many = POD_SERIES_MAX as u64 + 5;
    let mut readings = readings(Some(snapshot(many)));
    let page = readings.clone().page(Form::Classic).unwrap();
    let series = page.matches("plimsoll_pod_running{").count();
    assert_eq!(series, POD_SERIES_MAX);
    assert!(page.contains("plimsoll_pods_without_series 5\n"));
    readings.pods = false;
    let page = readings.page(Form::Classic).unwrap();
    assert!(!page.contains("plimsoll_pod_"), "{page}");
    assert!(
        page.lines().count() < 450,
        "bounded: {}",
        page.lines().count()
    );
}

#[test]
fn every_family_is_in_the_reference() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/metrics.md");
    let reference = std::fs::read_to_string(path).unwrap();
    let page = readings(Some(snapshot(1))).page(Form::Classic).unwrap();
    for name in lint(&page, Form::Classic).keys() {
        assert!(
            reference.contains(&format!("`{name}`")),
            "{name} is not in {path}"
        );
    }
}
