//! A container runtime of the tests' own making: answers as they say, also as no runtime should.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixListener;

use crate::interface::cri;

/// What it does about a call.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// Answers soundly.
    Sound(Vec<u8>),
    /// Answers with an error: a gRPC code.
    Refuses(i32),
    /// Never answers.
    Hangs,
    /// Answers with bytes that are no message.
    Nonsense,
    /// Closes the connection in the middle of an answer.
    CutOff,
    /// Answers with so many bytes.
    Huge(usize),
}

/// A sound answer.
pub(crate) fn sound(message: &impl Message) -> Answer {
    Answer::Sound(message.encode_to_vec())
}

/// A stand-in that listens as long as it lives.
pub(crate) struct StandIn {
    _folder: tempfile::TempDir,
    socket: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl StandIn {
    /// `answers`: what it does about a call, by its path (`/runtime.v1.RuntimeService/Version`) and the request's
    /// bytes.
    pub(crate) fn start(answers: impl Fn(&str, &[u8]) -> Answer + Send + Sync + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("runtime.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let answers = Arc::new(answers);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answers = Arc::clone(&answers);
                let service = service_fn(move |request: Request<Incoming>| {
                    let answers = Arc::clone(&answers);
                    async move {
                        let path = request.uri().path().to_owned();
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        // Without the five bytes before each message.
                        respond(answers(&path, &body[5..])).await
                    }
                });
                tokio::spawn(
                    hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self {
            _folder: folder,
            socket,
            task,
        }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

async fn respond(answer: Answer) -> Result<Response<BoxBody<Bytes, Infallible>>, std::io::Error> {
    let (status, message) = match answer {
        Answer::Sound(message) => (0, message),
        Answer::Refuses(code) => (code, Vec::new()),
        Answer::Hangs => std::future::pending().await,
        Answer::Nonsense => (0, vec![0xff; 64]),
        Answer::CutOff => return Err(std::io::Error::other("cut off")),
        Answer::Huge(bytes) => (0, vec![0; bytes]),
    };
    let mut frame = vec![0];
    frame.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    frame.extend(message);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(status));
    let body = if status == 0 { frame } else { Vec::new() };
    let body = Full::new(Bytes::from(body)).with_trailers(std::future::ready(Some(Ok(trailers))));
    let response = Response::builder().header("content-type", "application/grpc");
    Ok(response.body(body.boxed()).unwrap())
}

/// A small node: a pod that runs, one container of it dead; an image in use, one unused, and the sandboxes'.
pub(crate) fn node(path: &str) -> Answer {
    let call = path.rsplit('/').next().unwrap();
    match call {
        "Version" => sound(&cri::VersionResponse {
            runtime_name: "stand-in".to_owned(),
            runtime_version: "1.0".to_owned(),
            ..Default::default()
        }),
        "ListPodSandbox" => sound(&cri::ListPodSandboxResponse {
            items: vec![cri::PodSandbox {
                id: "s".to_owned(),
                ..Default::default()
            }],
        }),
        "ListContainers" => sound(&cri::ListContainersResponse {
            containers: vec![container("1", 1), container("2", 2)],
        }),
        "ContainerStatus" => sound(&cri::ContainerStatusResponse {
            status: Some(cri::ContainerStatus {
                state: 2,
                finished_at: 7_000_000_000,
                ..Default::default()
            }),
            ..Default::default()
        }),
        "ListContainerStats" => sound(&cri::ListContainerStatsResponse {
            stats: vec![cri::ContainerStats {
                attributes: Some(cri::ContainerAttributes {
                    id: "1".to_owned(),
                    ..Default::default()
                }),
                writable_layer: Some(cri::FilesystemUsage {
                    used_bytes: Some(cri::UInt64Value { value: 4096 }),
                    ..Default::default()
                }),
                ..Default::default()
            }],
        }),
        "ListImages" => sound(&cri::ListImagesResponse {
            images: vec![
                image("a", "app:1"),
                image("b", "old:1"),
                image("c", "sandbox:1"),
            ],
        }),
        "Status" => sound(&cri::StatusResponse {
            info: [(
                "config".to_owned(),
                r#"{"sandboxImage":"sandbox:1"}"#.to_owned(),
            )]
            .into(),
            ..Default::default()
        }),
        "RemoveImage" => sound(&cri::RemoveImageResponse {}),
        "RemoveContainer" => sound(&cri::RemoveContainerResponse {}),
        _ => Answer::Refuses(12),
    }
}

pub(crate) fn container(id: &str, state: i32) -> cri::Container {
    let label = |name: &str, value: &str| (format!("io.kubernetes.pod.{name}"), value.to_owned());
    cri::Container {
        id: id.to_owned(),
        pod_sandbox_id: "s".to_owned(),
        metadata: Some(cri::ContainerMetadata {
            name: "app".to_owned(),
            attempt: 0,
        }),
        image: Some(cri::ImageSpec {
            image: "app:1".to_owned(),
            ..Default::default()
        }),
        state,
        created_at: 5_000_000_000,
        labels: [
            label("name", "web"),
            label("namespace", "default"),
            label("uid", "u"),
        ]
        .into(),
        ..Default::default()
    }
}

pub(crate) fn image(id: &str, tag: &str) -> cri::Image {
    cri::Image {
        id: format!("sha256:{id}"),
        repo_tags: vec![tag.to_owned()],
        size: 1 << 20,
        ..Default::default()
    }
}
