//! Checksums are those of the kubelet's own tests (state_checkpoint_test.go of both managers).

use super::*;

mod takeover;

fn cpu(entries: &str, checksum: u64) -> String {
    format!(r#"{{"policyName":"static","defaultCpuSet":"7-9",{entries}"checksum":{checksum}}}"#)
}

const ENTRIES: &str = r#""entries":{"pod":{"container1":"4-6","container2":"1-3"}},"#;

#[test]
fn cpu_formats() {
    let cpus = |list: &str| CpuSet::parse(list).unwrap();
    let state = CpuManagerState::parse(&cpu(ENTRIES, 1_942_532_442)).unwrap();
    let pod = PodUid::from("pod");
    let containers = [("container1", cpus("4-6")), ("container2", cpus("1-3"))];
    let wanted = CpuManagerState {
        policy: "static".into(),
        default_cpus: cpus("7-9"),
        entries: BTreeMap::from([(
            pod.clone(),
            containers.map(|(name, cpus)| (name.into(), cpus)).into(),
        )]),
        pods: BTreeMap::new(),
        verified: true,
    };
    assert_eq!(state, wanted);
    let unverified = CpuManagerState {
        verified: false,
        ..wanted.clone()
    };
    assert_eq!(CpuManagerState::parse(&cpu(ENTRIES, 0)), Ok(unverified));
    // As kubelets until 1.35 write it: without a field for pods.
    assert_eq!(
        CpuManagerState::parse(&cpu(ENTRIES, 964_019_483)),
        Ok(wanted.clone())
    );
    let none = r#"{"policyName":"none","defaultCpuSet":"7-9","checksum":98002435}"#;
    let none = CpuManagerState::parse(none).unwrap();
    assert!(none.entries.is_empty() && none.verified && none.policy == "none");
    let v3 = r#"{"policyName":"static","defaultCpuSet":"1-2","entries":{"pod1":{"container1":"5-6","container2":"3-4"}},
        "podEntries":{"pod2":{"cpuSet":"7-9"}},"checksum":766259872}"#;
    let v3 = CpuManagerState::parse(v3).unwrap();
    assert_eq!(v3.pods, BTreeMap::from([("pod2".into(), cpus("7-9"))]));
    let data = r#""{\"policyName\":\"none\",\"defaultCpuSet\":\"4-6\"}""#;
    let sum = checksum::text(&serde_json::from_str::<String>(data).unwrap());
    let v4 = |sum: u64| {
        let outer = r#""policyName":"other","defaultCpuSet":"1-9","checksum":1234"#;
        format!(r#"{{{outer},"data":{data},"dataChecksum":{sum}}}"#)
    };
    let state = CpuManagerState::parse(&v4(sum)).unwrap();
    assert_eq!(
        (state.policy.as_str(), state.default_cpus),
        ("none", cpus("4-6"))
    );
    let upstream = r#"{"policyName":"static","defaultCPUSet":"7-9","entries":{"pod":{"container1":"4-6","container2":"1-3"}}}"#;
    assert_eq!(checksum::text(upstream), 1_420_829_534);
    assert!(CpuManagerState::parse(&v4(0)).is_err());
}

#[test]
fn what_is_no_state_is_refused() {
    let refused = |text: &str| CpuManagerState::parse(text).unwrap_err();
    assert_eq!(
        refused(&cpu(ENTRIES, 1_942_532_443)).to_string(),
        "its checksum is 1942532443 and should be 964019483: the file is damaged, was edited, or has a format that is not supported; \
         drain the node with its kubelet, or remove the file"
    );
    let by_id = r#""entries":{"containerID1":"4-6","containerID2":"1-3"},"#;
    assert_eq!(
        refused(&cpu(by_id, 2_026_311_253)).to_string(),
        "it has format v1, of kubelets before 1.18, which is not supported: drain the node with its kubelet, or remove the file"
    );
    let error = refused(&cpu(r#""entries":{"pod":{"c":"1.3"}},"#, 0)).to_string();
    assert!(error.starts_with("entries.pod.c: \"1.3\""), "{error}");
    for text in ["{", "", "[]", r#"{"policyName":"static"}"#] {
        assert!(
            matches!(refused(text), KubeletStateError::Malformed(_)),
            "{text}"
        );
    }
}

const MEMORY: &str = r#"{"policyName":"static",
    "machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048,"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]}},
    "entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}},PODS"checksum":SUM}"#;

#[test]
fn memory_formats() {
    let file = |pods: &str, sum: &str| MEMORY.replace("PODS", pods).replace("SUM", sum);
    let state = MemoryManagerState::parse(&file("", "4215593881")).unwrap();
    assert!(state.verified);
    assert_eq!(state.machine[&0].tables["memory"].free_bytes, 1024);
    let block = MemoryBlock {
        nodes: NumaMask::of(0),
        resource: "memory".into(),
        bytes: 512,
    };
    assert_eq!(
        state.entries[&PodUid::from("pod")]["container1"],
        std::slice::from_ref(&block)
    );
    let pods = r#""podEntries":{"pod":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":512}]}},"#;
    let state = MemoryManagerState::parse(&file(pods, "1278640530")).unwrap();
    assert_eq!(state.pods[&PodUid::from("pod")], [block]);
    assert!(MemoryManagerState::parse(&file("", "1")).is_err());
    let far = file("", "0").replace("[0]", "[64]");
    let error = MemoryManagerState::parse(&far).unwrap_err().to_string();
    assert!(
        error.contains("entries.pod.container1: NUMA node 64"),
        "{error}"
    );
}

#[test]
fn a_node_is_taken_over_as_it_is() {
    let cpu = CpuManagerState::parse(&cpu(ENTRIES, 0)).unwrap();
    let memory = MEMORY.replace("PODS", "").replace("SUM", "0");
    let memory = MemoryManagerState::parse(&memory).unwrap();
    let assignments = assignments(&cpu, Some(&memory));
    let pod = PodUid::from("pod");
    assert_eq!(assignments.shared_pool, cpu.default_cpus);
    assert_eq!(assignments.exclusive().to_string(), "1-6");
    assert_eq!(assignments.nodes(&pod, "container1"), Some(NumaMask::of(0)));
    assert_eq!(assignments.nodes(&pod, "container2"), None);
}

/// What the managers of kubelet 1.36.2 wrote: two sockets and NUMA nodes of four cores with two threads and 8 GiB,
/// topology policy best-effort. The second pod was refused for its memory after it had got its CPUs, which the kubelet
/// takes back later.
#[test]
fn files_of_a_kubelet_are_taken_over() {
    let cpu = CpuManagerState::parse(include_str!("fixtures/cpu_manager_state")).unwrap();
    let memory = MemoryManagerState::parse(include_str!("fixtures/memory_manager_state")).unwrap();
    assert!(cpu.verified && memory.verified, "they have checksums");
    assert_eq!(
        (cpu.policy.as_str(), memory.policy.as_str()),
        ("static", "Static")
    );
    let assignments = assignments(&cpu, Some(&memory));
    assert_eq!(assignments.shared_pool.to_string(), "0,4-7,12-15");
    let uid =
        |number| PodUid::from(format!("0a1b2c3d-0000-4000-8000-00000000000{number}").as_str());
    for (pod, container, cpus, nodes) in [
        (1, "main", "1,9", Some(0)),
        (2, "main", "2,8,10", None),
        (3, "setup", "3,11", Some(0)),
        (3, "main", "3", Some(0)),
    ] {
        let assigned = assignments.cpus(&uid(pod), container);
        assert_eq!(assigned.cpus.to_string(), cpus, "{pod} {container}");
        assert!(assigned.exclusive, "{pod} {container}");
        let nodes = nodes.map(NumaMask::of);
        assert_eq!(
            assignments.nodes(&uid(pod), container),
            nodes,
            "{pod} {container}"
        );
    }
    // One and a half CPUs are not exclusive; its memory has a node all the same.
    assert!(!assignments.cpus(&uid(3), "side").exclusive);
    assert_eq!(assignments.nodes(&uid(3), "side"), Some(NumaMask::of(0)));
    let damaged = include_str!("fixtures/cpu_manager_state").replace("1,9", "1,8");
    assert!(matches!(
        CpuManagerState::parse(&damaged),
        Err(KubeletStateError::Checksum { .. })
    ));
}
