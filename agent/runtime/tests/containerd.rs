//! `plimsoll-runtime` as it is installed, beside a real containerd of this test's own, with images, a pod that runs and
//! a container that has ended.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod support;

use std::time::Duration;

use plimsoll_core::protocol::runtime_link::{ContainerState, Removal};
use plimsoll_runtime::connection::connect;
use plimsoll_runtime::cri::Runtime;
use plimsoll_runtime::interface::cri::runtime_service_client::RuntimeServiceClient;

use plimsoll_runtime::interface::cri::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, ImageSpec, Mount,
};

use support::{
    Containerd, NEEDED, NEEDED_WITH_NRI, end_pod, notes, pod, programs, programs_with_nri,
    remove_container, run_container, run_pod,
};

/// Of an image.
const BYTES: usize = 2 << 20;

#[tokio::test]
async fn containers_and_images_of_a_real_containerd_are_listed_and_removed() {
    let Some((programs, busybox)) = programs() else {
        notes::left_out(NEEDED);
        return;
    };
    let containerd = Containerd::start(programs, None).await;
    containerd.import(
        &busybox,
        "localhost/sandbox:1",
        BYTES,
        &["/busybox", "sleep", "100000"],
    );
    containerd.import(
        &busybox,
        "localhost/app:1",
        BYTES,
        &["/busybox", "sleep", "100000"],
    );
    containerd.import(&busybox, "localhost/short:1", BYTES, &["/busybox", "true"]);
    containerd.import(&busybox, "localhost/old:1", BYTES, &["/busybox", "true"]);
    let file_systems = containerd.listed("filesystems");
    assert_eq!(file_systems["runtime"]["name"], "containerd");
    let directory = file_systems["filesystems"][0]["directory"]
        .as_str()
        .unwrap();
    assert!(
        directory.starts_with(containerd.dir.path().to_str().unwrap()),
        "{directory}"
    );

    let pod = pod("u1", &containerd.cgroup);
    let mut client = RuntimeServiceClient::new(connect(&containerd.socket()).await.unwrap());
    let sandbox = run_pod(&mut client, &pod).await;
    let running = run_container(&mut client, &pod, &sandbox, ("app", 0), "localhost/app:1").await;
    let dead = run_container(
        &mut client,
        &pod,
        &sandbox,
        ("once", 0),
        "localhost/short:1",
    )
    .await;

    let runtime = Runtime::open(&containerd.socket()).await.unwrap();
    let state_of = async |id: &str| {
        let inventory = runtime.inventory().await.unwrap();
        assert_eq!(inventory.left_out, 0);
        let one = inventory
            .containers
            .into_iter()
            .find(|container| container.id == id);
        one.map(|one| {
            (
                one.state,
                one.finished_unix_ns.is_some(),
                one.is_sandbox_ready,
                one.pod,
            )
        })
    };
    while state_of(&dead).await.unwrap().0 != ContainerState::Exited {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(
        state_of(&dead).await,
        Some((ContainerState::Exited, true, true, "web".to_owned()))
    );
    assert_eq!(state_of(&running).await.unwrap().0, ContainerState::Running);
    for (image, used) in [
        ("localhost/sandbox:1", "pinned"),
        ("localhost/app:1", "in use"),
        ("localhost/short:1", "in use"),
        ("localhost/old:1", "unused"),
    ] {
        assert_eq!(containerd.use_of(image).as_deref(), Some(used), "{image}");
    }

    // The one that runs is not ended by mistake; the dead one goes, and then its image is unused.
    let refused = runtime
        .remove(&Removal::Container(running.clone()))
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("has not ended"), "{refused}");
    runtime
        .remove(&Removal::Container(dead.clone()))
        .await
        .unwrap();
    assert_eq!(state_of(&dead).await, None);
    assert_eq!(state_of(&running).await.unwrap().0, ContainerState::Running);
    // Once more: it is gone, as when a kubelet was faster.
    runtime.remove(&Removal::Container(dead)).await.unwrap();
    assert_eq!(
        containerd.use_of("localhost/short:1").as_deref(),
        Some("unused")
    );
    let images = runtime.inventory().await.unwrap().images;
    for name in ["localhost/short:1", "localhost/old:1"] {
        let image = images.iter().find(|image| image.is_named(name)).unwrap();
        let removal = Removal::Image(image.id.clone());
        runtime.remove(&removal).await.unwrap();
        runtime.remove(&removal).await.unwrap();
        assert_eq!(containerd.use_of(name), None);
    }

    end_pod(&mut client, sandbox).await;
}

/// containerd has image volumes from 2.1 on.
#[tokio::test]
async fn an_image_that_a_container_of_a_real_containerd_has_as_a_volume_is_in_use() {
    let Some((programs, busybox)) = programs_with_nri() else {
        notes::left_out(NEEDED_WITH_NRI);
        return;
    };
    let containerd = Containerd::start_with_nri(programs).await;
    let sleeps = ["/busybox", "sleep", "100000"];
    containerd.import(&busybox, "localhost/sandbox:1", 4096, &sleeps);
    containerd.import(&busybox, "localhost/data:1", BYTES, &["/busybox", "true"]);
    let runtime = Runtime::open(&containerd.socket()).await.unwrap();
    let images = runtime.inventory().await.unwrap().images;
    let data = images
        .iter()
        .find(|image| image.is_named("localhost/data:1"));
    let pod = pod("u1", &containerd.cgroup);
    let mut client = RuntimeServiceClient::new(connect(&containerd.socket()).await.unwrap());
    let sandbox = run_pod(&mut client, &pod).await;
    assert_eq!(
        containerd.use_of("localhost/data:1").as_deref(),
        Some("unused")
    );
    let image = |image: &str| ImageSpec {
        image: image.to_owned(),
        ..ImageSpec::default()
    };
    let volume = Mount {
        container_path: "/data".to_owned(),
        readonly: true,
        // As the kubelet names it: by what the runtime said when it was pulled.
        image: Some(image(&data.unwrap().id)),
        ..Mount::default()
    };
    let config = ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: "app".to_owned(),
            attempt: 0,
        }),
        image: Some(image("localhost/sandbox:1")),
        labels: pod.labels.clone(),
        log_path: "app.0".to_owned(),
        mounts: vec![volume],
        ..ContainerConfig::default()
    };
    let create = CreateContainerRequest {
        pod_sandbox_id: sandbox.clone(),
        config: Some(config),
        sandbox_config: Some(pod.clone()),
    };
    let created = client.create_container(create).await.unwrap().into_inner();
    assert_eq!(
        containerd.use_of("localhost/data:1").as_deref(),
        Some("in use")
    );
    remove_container(&mut client, created.container_id).await;
    assert_eq!(
        containerd.use_of("localhost/data:1").as_deref(),
        Some("unused")
    );
    end_pod(&mut client, sandbox).await;
}
