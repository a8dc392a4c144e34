//! The container runtime: what it has, and the removal of what is not needed.
//!
//! **Approach.** Each question is a handful of calls, each with a bound on its time and on the length of its answer.
//! What cannot be read whole is said to be left out, and the agent removes nothing then. v1alpha2 has the same messages
//! under another name, as far as they are read here; it is tried where v1 is not known. **Sources.** CRI v1 of
//! Kubernetes 1.36 (`proto/`); labels of pods: pkg/kubelet/types/labels.go.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::uri::PathAndQuery;
use http::{Request, Uri};
use plimsoll_core::protocol::runtime_link::{
    CONTAINERS_MAX, ContainerState, IMAGES_MAX, Inventory, LayerUse, NAMES_MAX, Removal,
    RuntimeContainer, RuntimeDirectories, RuntimeImage, TEXT_BYTES_MAX, bare,
};
use serde::Serialize;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::{Code, Streaming};
use tower::Service;

use crate::connection::{ANSWER_BYTES_MAX, CallError, call, connect};
use crate::interface::cri::image_service_client::ImageServiceClient;
use crate::interface::cri::runtime_service_client::RuntimeServiceClient;
use crate::interface::cri::{
    self as messages, ContainerEventResponse, ContainerStatusRequest, FilesystemUsage,
    GetEventsRequest, ImageFsInfoRequest, ImageSpec, ListContainerStatsRequest,
    ListContainersRequest, ListImagesRequest, ListPodSandboxRequest, PodSandboxState,
    RemoveContainerRequest, RemoveImageRequest, StatusRequest, VersionRequest,
};

/// The label of containers that has their pod's UID.
const POD_UID: &str = "io.kubernetes.pod.uid";
/// For a list.
const LIST_WITHIN: Duration = Duration::from_secs(10);
/// For a container's status: one that hangs costs a list no more.
const STATUS_WITHIN: Duration = Duration::from_secs(2);
/// For all of them in one list. What is known by then is kept, and the next list goes on.
const STATUSES_WITHIN: Duration = Duration::from_secs(8);
/// For a removal: the runtime deletes the files before it answers.
const REMOVE_WITHIN: Duration = Duration::from_secs(20);
/// Containers that are asked for their status in one list: each of them once when it is new, and once when it has
/// ended. Those beyond have their turn in the next.
const STATUSES_MAX: usize = 1024;
/// Images that are mounted in containers, each counted in each: what is beyond is not known.
const MOUNTS_MAX: usize = 65_536;
/// Of the runtime's own configuration, in which it names the sandboxes' image.
const CONFIG_BYTES_MAX: usize = 1 << 20;

/// Which runtime it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Version {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// `v1` or `v1alpha2`.
    pub api: &'static str,
}

/// What file systems of the runtime are for.
const IMAGES: &str = "images";
const CONTAINERS: &str = "containers";

/// A file system of the runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileSystem {
    /// What it is for: `images` or `containers`.
    pub of: &'static str,
    /// A directory on it.
    pub directory: String,
    /// What the runtime has there, bytes.
    pub used_bytes: Option<u64>,
    /// What the runtime has there, inodes.
    pub used_inodes: Option<u64>,
}

/// Sends each call to the version of the interface that the runtime has.
#[derive(Debug, Clone)]
struct Versioned {
    channel: Channel,
    is_alpha: bool,
}

impl Service<Request<Body>> for Versioned {
    type Response = <Channel as Service<Request<Body>>>::Response;
    type Error = <Channel as Service<Request<Body>>>::Error;
    type Future = <Channel as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::poll_ready(&mut self.channel, context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if self.is_alpha
            && let Some(uri) = alpha(request.uri())
        {
            *request.uri_mut() = uri;
        }
        self.channel.call(request)
    }
}

/// The same call of v1alpha2.
fn alpha(uri: &Uri) -> Option<Uri> {
    let path = uri.path().strip_prefix("/runtime.v1.")?;
    let path = PathAndQuery::try_from(format!("/runtime.v1alpha2.{path}")).ok()?;
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).ok()
}

/// What a container's status says and a list does not. Mounts do not change while it lives, and its end does not after
/// it.
#[derive(Debug, Clone, Default)]
struct Status {
    /// It had ended when it was asked.
    has_ended: bool,
    finished_unix_ns: Option<u64>,
    /// Images that it has as volumes, as the kubelet names them: by id.
    mounted: BTreeSet<String>,
}

/// A container runtime.
#[derive(Debug, Clone)]
pub struct Runtime {
    service: Versioned,
    version: Version,
    /// By container, of those in the last list.
    statuses: Arc<Mutex<BTreeMap<String, Status>>>,
    /// The image of sandboxes, as it was said last; `None` until then.
    sandbox_image: Arc<Mutex<Option<Option<String>>>>,
    /// Asked once: to answer, some runtimes count all their files.
    directories: Arc<OnceLock<RuntimeDirectories>>,
}

impl Runtime {
    /// Connects, and asks which runtime it is.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn open(socket: &Path) -> Result<Self, CallError> {
        let mut service = Versioned {
            channel: connect(socket).await?,
            is_alpha: false,
        };
        let mut answer = version(&service).await;
        if answer
            .as_ref()
            .is_err_and(|error| error.is(Code::Unimplemented))
        {
            service.is_alpha = true;
            answer = version(&service).await;
        }
        let answer = answer?;
        let api = if service.is_alpha { "v1alpha2" } else { "v1" };
        let version = Version {
            name: answer.runtime_name,
            version: answer.runtime_version,
            api,
        };
        Ok(Self {
            service,
            version,
            statuses: Arc::default(),
            sandbox_image: Arc::default(),
            directories: Arc::default(),
        })
    }

    /// Which runtime it is.
    pub fn version(&self) -> &Version {
        &self.version
    }

    fn containers(&self) -> RuntimeServiceClient<Versioned> {
        RuntimeServiceClient::new(self.service.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    fn images(&self) -> ImageServiceClient<Versioned> {
        ImageServiceClient::new(self.service.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// All containers and images.
    ///
    /// # Errors
    /// [`CallError`] of the first call that failed. Without figures of writable layers or the status of a container it
    /// goes on, and without an answer about the sandboxes' image if there was one before.
    pub async fn inventory(&self) -> Result<Inventory, CallError> {
        let mut client = self.containers();
        let sandboxes = client.list_pod_sandbox(ListPodSandboxRequest::default());
        let sandboxes = call("ListPodSandbox", LIST_WITHIN, sandboxes).await?;
        // The rest of an answer goes before the next one comes: pods choose how long their annotations are.
        let ready: BTreeSet<String> = sandboxes
            .items
            .into_iter()
            .filter(|sandbox| sandbox.state == PodSandboxState::SandboxReady as i32)
            .map(|sandbox| sandbox.id)
            .collect();
        let listed = client.list_containers(ListContainersRequest::default());
        let listed = call("ListContainers", LIST_WITHIN, listed).await?;
        let listed_images = self.list_images().await?;
        let sandbox_image = self.sandbox_image().await?;
        let layers = self.layers().await;
        let directories = self.directories().await;

        let mut inventory = Inventory {
            directories,
            ..Inventory::default()
        };
        let ids: BTreeSet<&str> = listed.containers.iter().map(|one| &*one.id).collect();
        self.statuses().retain(|id, _| ids.contains(&**id));
        drop(ids);
        let until = Instant::now() + STATUSES_WITHIN;
        let (mut asked, mut mounts) = (0, 0);
        for container in listed.containers {
            let Some(mut container) = read_container(container, &ready, &layers) else {
                inventory.left_out += 1;
                continue;
            };
            if inventory.containers.len() == CONTAINERS_MAX {
                inventory.left_out += 1;
                continue;
            }
            let has_ended = container.state == ContainerState::Exited;
            let mut status = self.statuses().get(&container.id).cloned();
            status = status.filter(|status| status.has_ended || !has_ended);
            if status.is_none() && asked < STATUSES_MAX && Instant::now() < until {
                asked += 1;
                status = self.status_of(&container.id, has_ended).await?;
            }
            let images = status.as_ref().map_or(0, |status| status.mounted.len());
            match status.filter(|_| mounts + images <= MOUNTS_MAX) {
                Some(status) => {
                    mounts += images;
                    container.finished_unix_ns = status.finished_unix_ns.filter(|_| has_ended);
                    self.statuses().insert(container.id.clone(), status);
                }
                None => inventory.mounts_unread += 1,
            }
            inventory.containers.push(container);
        }
        let statuses = self.statuses();
        let mounted = statuses.values().flat_map(|status| &status.mounted);
        let mounted: BTreeSet<&str> = mounted.map(|image| bare(image)).collect();
        let images: Vec<RuntimeImage> = listed_images.into_iter().map(with_all_names).collect();
        // A name in another form than the list has tells nothing.
        let is_listed = |name: &&str| images.iter().any(|image| image.is_named(name));
        let sandbox_image = sandbox_image.as_deref().filter(is_listed);
        let used = inventory.containers.iter().flat_map(|one| &one.images);
        let used: BTreeSet<&str> = used.map(|image| bare(image)).collect();
        for image in images {
            match bounded(image, sandbox_image, &mounted, &used) {
                Some(image) if inventory.images.len() < IMAGES_MAX => inventory.images.push(image),
                _ => inventory.images_left_out += 1,
            }
        }
        inventory.unix_ns = unix_ns();
        Ok(inventory)
    }

    fn statuses(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Status>> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn list_images(&self) -> Result<Vec<messages::Image>, CallError> {
        let mut client = self.images();
        let images = client.list_images(ListImagesRequest::default());
        Ok(call("ListImages", LIST_WITHIN, images).await?.images)
    }

    /// What containers have written, by id. Nothing where the runtime does not say: then it is not known.
    async fn layers(&self) -> BTreeMap<String, LayerUse> {
        let mut client = self.containers();
        let stats = client.list_container_stats(ListContainerStatsRequest::default());
        let Ok(stats) = call("ListContainerStats", LIST_WITHIN, stats).await else {
            return BTreeMap::new();
        };
        let layers = stats.stats.into_iter().filter_map(|stats| {
            let layer = stats.writable_layer?;
            let used = LayerUse {
                bytes: layer.used_bytes.map(|bytes| bytes.value),
                inodes: layer.inodes_used.map(|inodes| inodes.value),
            };
            Some((stats.attributes?.id, used))
        });
        layers.collect()
    }

    /// The image of sandboxes, which no container names. containerd before 1.7 does not pin it, and has its name in its
    /// configuration. Without an answer, what it was before.
    ///
    /// # Errors
    /// There was no answer yet: the image would seem unused.
    async fn sandbox_image(&self) -> Result<Option<String>, CallError> {
        let said = self.said_sandbox_image().await;
        let mut known = self
            .sandbox_image
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match (said, &*known) {
            (Ok(image), _) => {
                *known = Some(image.clone());
                Ok(image)
            }
            (Err(_), Some(image)) => Ok(image.clone()),
            (Err(error), None) => Err(error),
        }
    }

    /// `None`: the runtime has none, or its configuration is of another form.
    async fn said_sandbox_image(&self) -> Result<Option<String>, CallError> {
        const CALL: &str = "Status";
        let request = StatusRequest { verbose: true };
        let mut client = self.containers();
        let status = match call(CALL, LIST_WITHIN, client.status(request)).await {
            Err(error) if error.is(Code::Unimplemented) => return Ok(None),
            status => status?,
        };
        let Some(config) = status.info.get("config") else {
            return Ok(None);
        };
        if config.len() > CONFIG_BYTES_MAX {
            return Err(CallError::Nonsense {
                call: CALL,
                why: format!("a configuration of {} bytes", config.len()),
            });
        }
        let config: Option<serde_json::Value> = serde_json::from_str(config).ok();
        let image = config
            .as_ref()
            .and_then(|config| config.get("sandboxImage")?.as_str());
        Ok(image.map(str::to_owned))
    }

    /// Where it keeps images and layers. Nothing where it does not say. It is asked again after a call that failed.
    pub async fn directories(&self) -> RuntimeDirectories {
        if let Some(known) = self.directories.get() {
            return known.clone();
        }
        let Ok(all) = self.file_systems().await else {
            return RuntimeDirectories::default();
        };
        // Of several the kubelet takes the first, too.
        let first = |of: &str| {
            let mut all = all.iter().filter(|one| one.of == of);
            let directory = all.next().map(|one| one.directory.clone());
            directory.filter(|directory| directory.starts_with('/') && is_short(directory))
        };
        let directories = RuntimeDirectories {
            images: first(IMAGES),
            containers: first(CONTAINERS),
        };
        self.directories.get_or_init(|| directories).clone()
    }

    /// `None`: the runtime has no answer for this one, or not in time.
    async fn status_of(&self, id: &str, has_ended: bool) -> Result<Option<Status>, CallError> {
        match self.status(id, STATUS_WITHIN).await {
            Ok(status) => {
                let finished = u64::try_from(status.finished_at).ok();
                let mounts = status.mounts.into_iter();
                let mounted = mounts.filter_map(|mount| Some(mount.image?.image));
                Ok(Some(Status {
                    has_ended,
                    finished_unix_ns: finished.filter(|ns| *ns > 0),
                    mounted: mounted.collect(),
                }))
            }
            // It has gone since.
            Err(error) if error.is(Code::NotFound) => Ok(Some(Status::default())),
            Err(
                CallError::Refused { .. } | CallError::Nonsense { .. } | CallError::Late { .. },
            ) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn status(
        &self,
        id: &str,
        within: Duration,
    ) -> Result<messages::ContainerStatus, CallError> {
        const CALL: &str = "ContainerStatus";
        let request = ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: false,
        };
        let mut client = self.containers();
        let answer = call(CALL, within, client.container_status(request)).await?;
        answer.status.ok_or_else(|| CallError::Nonsense {
            call: CALL,
            why: "an answer without a status".to_owned(),
        })
    }

    /// Removes something. What is gone already is no error.
    ///
    /// # Errors
    /// [`CallError`]; also when a container has not ended: the runtime would end it.
    pub async fn remove(&self, removal: &Removal) -> Result<(), CallError> {
        let removed = match removal {
            Removal::Container(id) => self.remove_container(id).await,
            Removal::Image(id) => {
                let image = ImageSpec {
                    image: id.clone(),
                    ..ImageSpec::default()
                };
                let request = RemoveImageRequest { image: Some(image) };
                let mut client = self.images();
                let removed = client.remove_image(request);
                call("RemoveImage", REMOVE_WITHIN, removed)
                    .await
                    .map(|_| ())
            }
        };
        match removed {
            Err(error) if error.is(Code::NotFound) => Ok(()),
            removed => removed,
        }
    }

    async fn remove_container(&self, id: &str) -> Result<(), CallError> {
        const CALL: &str = "RemoveContainer";
        let status = self.status(id, LIST_WITHIN).await?;
        if state(status.state) != ContainerState::Exited {
            return Err(CallError::Nonsense {
                call: CALL,
                why: "the container has not ended, and is left alone".to_owned(),
            });
        }
        let request = RemoveContainerRequest {
            container_id: id.to_owned(),
        };
        let mut client = self.containers();
        call(CALL, REMOVE_WITHIN, client.remove_container(request)).await?;
        Ok(())
    }

    /// The containers that run: of each its pod's UID, its name and its id.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn running(&self) -> Result<Vec<[String; 3]>, CallError> {
        let state = messages::ContainerStateValue {
            state: messages::ContainerState::ContainerRunning.into(),
        };
        let request = ListContainersRequest {
            filter: Some(messages::ContainerFilter {
                state: Some(state),
                ..messages::ContainerFilter::default()
            }),
        };
        let mut client = self.containers();
        let listed = call(
            "ListContainers",
            LIST_WITHIN,
            client.list_containers(request),
        )
        .await?;
        let known = listed.containers.into_iter().filter_map(|mut container| {
            let pod_uid = container.labels.remove(POD_UID)?;
            let known = [pod_uid, container.metadata?.name, container.id];
            let is_sound = known.iter().all(|text| !text.is_empty() && is_short(text));
            is_sound.then_some(known)
        });
        Ok(known.take(CONTAINERS_MAX).collect())
    }

    /// What happens to containers from now on. The answer goes on until the runtime ends.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn events(&self) -> Result<Streaming<ContainerEventResponse>, CallError> {
        // An event has all containers of a pod, with what who made them has written.
        let mut client = self.containers();
        let events = client.get_container_events(GetEventsRequest {});
        call("GetContainerEvents", LIST_WITHIN, events).await
    }

    /// Its file systems.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn file_systems(&self) -> Result<Vec<FileSystem>, CallError> {
        let mut client = self.images();
        let answer = client.image_fs_info(ImageFsInfoRequest {});
        let answer = call("ImageFsInfo", LIST_WITHIN, answer).await?;
        let read = |of: &'static str, usage: Vec<FilesystemUsage>| {
            usage.into_iter().map(move |usage| FileSystem {
                of,
                directory: usage.fs_id.map(|id| id.mountpoint).unwrap_or_default(),
                used_bytes: usage.used_bytes.map(|bytes| bytes.value),
                used_inodes: usage.inodes_used.map(|inodes| inodes.value),
            })
        };
        Ok(read(IMAGES, answer.image_filesystems)
            .chain(read(CONTAINERS, answer.container_filesystems))
            .collect())
    }
}

async fn version(service: &Versioned) -> Result<messages::VersionResponse, CallError> {
    let mut client = RuntimeServiceClient::new(service.clone());
    call(
        "Version",
        LIST_WITHIN,
        client.version(VersionRequest::default()),
    )
    .await
}

fn unix_ns() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn state(state: i32) -> ContainerState {
    match messages::ContainerState::try_from(state) {
        Ok(messages::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(messages::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(messages::ContainerState::ContainerExited) => ContainerState::Exited,
        Ok(messages::ContainerState::ContainerUnknown) | Err(_) => ContainerState::Unknown,
    }
}

/// `None`: it has no id, or a text that is too long.
fn read_container(
    container: messages::Container,
    ready: &BTreeSet<String>,
    layers: &BTreeMap<String, LayerUse>,
) -> Option<RuntimeContainer> {
    let label = |name: &str| container.labels.get(name).cloned().unwrap_or_default();
    let images = [
        container.image_id.clone(),
        container.image_ref.clone(),
        container.image.clone().unwrap_or_default().image,
        container
            .image
            .clone()
            .unwrap_or_default()
            .user_specified_image,
    ];
    let read = RuntimeContainer {
        name: container.metadata.clone().unwrap_or_default().name,
        pod: label("io.kubernetes.pod.name"),
        namespace: label("io.kubernetes.pod.namespace"),
        pod_uid: label(POD_UID),
        is_sandbox_ready: ready.contains(&*container.pod_sandbox_id),
        state: state(container.state),
        created_unix_ns: u64::try_from(container.created_at).unwrap_or(0),
        finished_unix_ns: None,
        images: images
            .into_iter()
            .filter(|image| !image.is_empty())
            .collect(),
        writable_layer: layers.get(&container.id).copied(),
        sandbox: container.pod_sandbox_id,
        id: container.id,
    };
    let texts = [
        &read.id,
        &read.name,
        &read.pod,
        &read.namespace,
        &read.pod_uid,
        &read.sandbox,
    ];
    let is_sound = !read.id.is_empty()
        && !read.images.is_empty()
        && texts
            .into_iter()
            .chain(&read.images)
            .all(|text| is_short(text));
    is_sound.then_some(read)
}

fn with_all_names(image: messages::Image) -> RuntimeImage {
    RuntimeImage {
        id: image.id,
        names: [image.repo_tags, image.repo_digests].concat(),
        bytes: image.size,
        is_pinned: image.pinned,
        is_mounted: false,
    }
}

/// An image as the agent gets it; `None`: its id is none. Who may start pods decides which names an image has, and how
/// many: of too many, or too long ones, the first are kept, and it is not removed while a container uses it by any.
///
/// `mounted`: what containers have as volumes, `used`: what they name their images; both without the names of digests.
/// They are in `inventory` too: without those that are left out there, no image is removed.
fn bounded(
    mut image: RuntimeImage,
    sandbox_image: Option<&str>,
    mounted: &BTreeSet<&str>,
    used: &BTreeSet<&str>,
) -> Option<RuntimeImage> {
    let is_in = |texts: &BTreeSet<&str>| {
        let mut all = image.names.iter().chain([&image.id]);
        all.any(|text| texts.contains(bare(text)))
    };
    let is_used = is_in(used);
    image.is_mounted = is_in(mounted);
    image.is_pinned |= match sandbox_image {
        Some(name) => image.is_named(name),
        None => image.names.iter().any(|name| is_pause(name)),
    };
    let names = image.names.len();
    image.names.retain(|name| is_short(name));
    image.names.truncate(NAMES_MAX);
    image.is_pinned |= is_used && image.names.len() < names;
    (!image.id.is_empty() && is_short(&image.id)).then_some(image)
}

/// Where it is not known which image the sandboxes have, it is one of this name, wherever it comes from. Anybody can
/// give an image that name.
fn is_pause(name: &str) -> bool {
    let repository = name.rsplit('/').next().unwrap_or(name);
    let end = repository.find([':', '@']).unwrap_or(repository.len());
    repository[..end] == *"pause"
}

fn is_short(text: &str) -> bool {
    text.len() <= TEXT_BYTES_MAX
}

#[cfg(test)]
mod tests;
