use std::io::Write as _;
use std::os::unix::net::UnixStream;

use plimsoll_core::placement::assignments::Assignments;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::node::{CpuManagerPolicy, NodePlacement, PlacementSettings};
use plimsoll_core::protocol::pod_resources::{FRAMING, Given, PROTOCOL};
use serde_json::Value;

use super::*;
use crate::host::child_program::ChildProgram;
use crate::host::wake_fd::WakeFd;

fn send(stream: &mut UnixStream, message: &FromKubelet) {
    let frame = FRAMING.frame(&serde_json::to_vec(message).unwrap());
    // The agent may have gone.
    let _gone = stream.write_all(&frame.unwrap());
}

const SAME: FromKubelet = FromKubelet::Same { asked_at_ns: 0 };

fn hello(stream: &mut UnixStream) {
    send(stream, &FromKubelet::Hello { protocol: PROTOCOL });
}

fn slot() -> TopologySlot {
    TopologySlot::new(WakeFd::new().unwrap())
}

fn zones_only(slot: &TopologySlot) -> Outlets {
    Outlets {
        zones: Some(slot.clone()),
        devices: None,
    }
}

/// A source on this machine whose other ends come out here, as they are made.
fn source(outlets: Outlets) -> (TopologySource, std::sync::mpsc::Receiver<UnixStream>) {
    let (made, ends) = std::sync::mpsc::channel();
    let start = move || {
        let (stream, theirs) = UnixStream::pair()?;
        made.send(theirs).map_err(io::Error::other)?;
        Ok(Connection(ChildProgram {
            stream,
            process: None,
        }))
    };
    let alignment = || {
        Some(Alignment {
            policy: "single-numa-node".to_owned(),
            scope: "pod".to_owned(),
        })
    };
    let source = TopologySource::started_by(
        Box::new(start),
        HostRoot::live(),
        Box::new(alignment),
        outlets,
    );
    (source.unwrap(), ends)
}

/// The next zones that are put.
fn zones(slot: &TopologySlot) -> Value {
    loop {
        if let Some(frame) = slot.take() {
            let frame = frame.unwrap();
            return serde_json::from_slice::<Value>(&frame[4..]).unwrap()["topology"].take();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The next question.
fn question(end: &mut UnixStream) -> ToKubelet {
    let mut question = vec![0; 4];
    io::Read::read_exact(end, &mut question).unwrap();
    let length = u32::from_le_bytes(question[..].try_into().unwrap());
    question.resize(length as usize, 0);
    io::Read::read_exact(end, &mut question).unwrap();
    serde_json::from_slice(&question).unwrap()
}

/// No manager places anything, and these pods are listed.
fn resources(pods: &[&str]) -> FromKubelet {
    FromKubelet::Resources {
        asked_at_ns: 0,
        resources: Box::new(NodeResources {
            allocatable: Some(Given::default()),
            given: Vec::new(),
            pods: pods.iter().map(|pod| (*pod).to_owned()).collect(),
        }),
    }
}

#[test]
fn zones_are_put_when_they_have_changed_and_outlive_a_failure() {
    let slot = slot();
    let (source, ends) = source(zones_only(&slot));
    let mut end = ends.recv().unwrap();
    hello(&mut end);
    send(&mut end, &resources(&["n/a"]));
    let first = zones(&slot);
    assert!(!first["zones"].as_array().unwrap().is_empty());
    assert_eq!(first["alignment"]["scope"], "pod");
    assert_eq!(first["pods"][0]["name"], "a");
    // None of these puts anything.
    send(&mut end, &SAME);
    send(&mut end, &resources(&["n/a"]));
    let why = "away".to_owned();
    send(&mut end, &FromKubelet::Failed { why });
    send(&mut end, &resources(&["n/a", "n/b"]));
    assert_eq!(zones(&slot)["pods"].as_array().unwrap().len(), 2);
    // It ends, and is started again.
    drop(end);
    let mut end = ends.recv().unwrap();
    hello(&mut end);
    send(&mut end, &resources(&[]));
    assert_eq!(zones(&slot)["pods"].as_array().unwrap().len(), 0);
    // The end does not wait for a word.
    drop(source);
    assert!(ends.recv().is_err());
}

#[test]
fn what_the_agent_has_placed_counts_when_the_kubelet_has_answered_next() {
    let slot = slot();
    let (source, ends) = source(zones_only(&slot));
    let mut end = ends.recv().unwrap();
    hello(&mut end);
    send(&mut end, &resources(&[]));
    let machine = read_machine(&HostRoot::live()).unwrap();
    let online = machine.online();
    let free = |zones: &Value| {
        let zones = zones["zones"].as_array().unwrap().iter();
        let of = |zone: &Value| zone["resources"]["cpu"]["available"].as_u64();
        zones.filter_map(of).sum::<u64>()
    };
    assert_eq!(free(&zones(&slot)), u64::from(online.len()));
    let settings = PlacementSettings {
        cpu_manager_policy: CpuManagerPolicy::Static,
        reserved_system_cpus: CpuSet::of(online.first().unwrap()),
        reserved_cpu_count: 1,
        ..PlacementSettings::default()
    };
    let placement = NodePlacement::start(settings, machine, &Assignments::default());
    let placed = || AgentPlacement::of(&placement.as_ref().unwrap().0, |_| None);
    source.place(Some(placed()));
    assert_eq!(question(&mut end), ToKubelet::Ask);
    send(&mut end, &SAME);
    assert_eq!(free(&zones(&slot)), u64::from(online.len()) - 1);
    // The same again is nothing new: the next question is for what follows.
    source.place(Some(placed()));
    source.ask();
    assert_eq!(question(&mut end), ToKubelet::Ask);
    source.place(None);
    assert_eq!(question(&mut end), ToKubelet::Ask);
    send(&mut end, &SAME);
    assert_eq!(free(&zones(&slot)), u64::from(online.len()));
    drop(source);
    // No question that nobody has asked.
    let mut rest = Vec::new();
    io::Read::read_to_end(&mut end, &mut rest).unwrap();
    assert!(rest.is_empty(), "{rest:?}");
}

#[test]
fn devices_are_sent_as_they_change_and_when_they_are_asked_for() {
    let (sender, mut devices) = mpsc::channel(1);
    let (source, ends) = source(Outlets {
        zones: None,
        devices: Some(sender),
    });
    let mut end = ends.recv().unwrap();
    hello(&mut end);
    let given = |pod: &str| FromKubelet::Resources {
        asked_at_ns: 0,
        resources: Box::new(NodeResources {
            allocatable: None,
            given: vec![Given {
                container: format!("n/{pod}/c"),
                devices: vec![plimsoll_core::protocol::pod_resources::Devices {
                    resource: "x/gpu".to_owned(),
                    ids: vec!["g".to_owned()],
                    numa_nodes: vec![1],
                }],
                ..Given::default()
            }],
            pods: vec![format!("n/{pod}")],
        }),
    };
    let pods = |sent: Option<Option<Arc<ListedDevices>>>| {
        let pods = sent.unwrap().map(|given| given.pods.clone());
        pods.map(|pods| pods.into_keys().collect::<Vec<_>>())
    };
    let said = |pod: &str| Some(vec![format!("n/{pod}")]);
    send(&mut end, &given("a"));
    assert_eq!(pods(devices.blocking_recv()), said("a"));
    source.ask();
    assert_eq!(question(&mut end), ToKubelet::Ask);
    // The same is said once again, when it was asked for after the question.
    send(&mut end, &SAME);
    for asked_at_ns in [now_ns(), now_ns()] {
        send(&mut end, &FromKubelet::Same { asked_at_ns });
    }
    let again = devices.blocking_recv().unwrap().unwrap();
    assert!(again.asked_at_ns > 0 && again.pods.contains_key("n/a"));
    // The same is not said again; what finds no room is said with the next word.
    send(&mut end, &given("a"));
    send(&mut end, &given("b"));
    send(&mut end, &given("c"));
    send(&mut end, &given("c"));
    assert_eq!(pods(devices.blocking_recv()), said("b"));
    send(&mut end, &SAME);
    let mut newest = pods(devices.blocking_recv());
    while newest != said("c") {
        newest = pods(devices.blocking_recv());
    }
    // It ends: who has which devices is not known any more.
    drop(end);
    assert_eq!(pods(devices.blocking_recv()), None);
    let mut end = ends.recv().unwrap();
    hello(&mut end);
    send(&mut end, &given("c"));
    assert_eq!(pods(devices.blocking_recv()), said("c"));
    let why = "away".to_owned();
    send(&mut end, &FromKubelet::Failed { why });
    assert_eq!(pods(devices.blocking_recv()), None);
}

#[test]
fn a_source_ends_while_it_waits_to_start_again() {
    let failing = || Err(io::Error::other("no program"));
    let source = TopologySource::started_by(
        Box::new(failing),
        HostRoot::live(),
        Box::new(|| None),
        zones_only(&slot()),
    );
    drop(source.unwrap());
}

#[test]
fn what_is_no_answer_is_refused() {
    let refused = |sends: &dyn Fn(&mut UnixStream)| {
        let (stream, mut theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection(ChildProgram {
            stream,
            process: None,
        });
        sends(&mut theirs);
        drop(theirs);
        connection.greet().unwrap_err().to_string()
    };
    let bytes =
        |bytes: &'static [u8]| refused(&move |end: &mut UnixStream| end.write_all(bytes).unwrap());
    assert!(bytes(&[]).contains("has ended"));
    assert!(bytes(&[9, 0, 0, 0, b'{']).contains("has ended"));
    assert!(bytes(&[0xff; 4]).contains("announced a frame of 4294967295 bytes"));
    assert!(bytes(&[2, 0, 0, 0, b'{', b'}']).contains("no frame"));
    let other = |end: &mut UnixStream| send(end, &FromKubelet::Hello { protocol: 99 });
    assert!(refused(&other).contains("protocol 99"));
    let no_hello = |end: &mut UnixStream| send(end, &SAME);
    assert!(refused(&no_hello).contains("no frame"));
}
