//! The connection to the API server: kube-rs has transport, credentials and their renewal; what comes back is bounded
//! here.
//!
//! kube's own `watcher` and `Api` are not used: they hold each list in memory three times over before it is parsed, one
//! object that cannot be parsed refuses the whole list, and a list after 410 asks for any version, so that an API
//! server that lags behind makes pods come and go.

pub mod discovery;
pub mod split;
mod token;
pub mod watch;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Limited};
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use self::token::TokenFile;
use crate::call::{Answer, Call, Refusal};
use crate::metrics::Metrics;

/// By which audit logs and metrics of the API server know whose a call is. kube-rs sends none.
const USER_AGENT: &str = concat!(env!("CARGO_PKG_NAME"), "/", env!("CARGO_PKG_VERSION"));
/// How long a call may take, connection included.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of an answer.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Failures in a row after which configuration and certificates are read again.
const FAILURES_MAX: u32 = 3;
/// They are not read more often than this.
const RENEW_EVERY: Duration = Duration::from_secs(10);

/// Where address and credentials come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// The service account of the pod that this runs in.
    InCluster,
    /// A file.
    Kubeconfig(PathBuf),
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Not in a pod, or its token is not mounted.
    #[error("no configuration of a pod: {0}; give --kubeconfig PATH outside of a cluster")]
    InCluster(#[from] kube::config::InClusterError),
    /// The file.
    #[error("cannot use the kubeconfig {path:?}: {error}; check the file and what it names")]
    Kubeconfig {
        /// Which one.
        path: PathBuf,
        /// Why.
        error: KubeconfigError,
    },
    /// The file is no kubeconfig. The parser's own words show lines of it, and a token or a key can be in them.
    #[error(
        "cannot read the kubeconfig {path:?}: line {line} is no YAML, or not what a kubeconfig has there; `kubectl config view --kubeconfig FILE` has to read it as well"
    )]
    NoKubeconfig {
        /// Which one.
        path: PathBuf,
        /// Where; 0: not known.
        line: u64,
    },
    /// The file with its token.
    #[error("cannot take the token in {path:?}: {why}; check the file")]
    Token {
        /// Which one.
        path: PathBuf,
        /// Why.
        why: std::io::Error,
    },
    /// Its certificates, keys or address.
    #[error("cannot make a client of the configuration: {0}; check its address and certificates")]
    Client(#[from] kube::Error),
}

/// A client, and the token that it is to send with each request where that is in a file.
async fn client(source: &Source) -> Result<(Client, Option<TokenFile>), ApiError> {
    let mut config = match source {
        Source::InCluster => Config::incluster()?,
        Source::Kubeconfig(path) => {
            let wrong = |error| {
                let path = path.clone();
                match error {
                    KubeconfigError::Parse(error) => {
                        let line = error.location().map_or(0, |location| location.line());
                        ApiError::NoKubeconfig { path, line }
                    }
                    error => ApiError::Kubeconfig { path, error },
                }
            };
            let file = Kubeconfig::read_from(path).map_err(wrong)?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(wrong)?
        }
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // What is tried again, and when, is decided in `report`; a 429 of a budget is an answer.
    config.default_retry = false;
    let user = &mut config.auth_info;
    let is_alone = user.token.is_none() && user.exec.is_none();
    let path = user.token_file.take_if(|_| is_alone).map(PathBuf::from);
    let token = path.map(|path| {
        let wrong = |why| ApiError::Token {
            path: path.clone(),
            why,
        };
        TokenFile::new(path.clone()).map_err(wrong)
    });
    let token = token.transpose()?;
    Ok((ClientBuilder::try_from(config)?.build(), token))
}

/// The API server.
#[derive(Clone)]
pub struct Api {
    shared: Arc<Shared>,
}

struct Shared {
    source: Source,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

struct State {
    client: Client,
    token: Option<TokenFile>,
    failures: u32,
    renewed: Instant,
}

impl Api {
    /// Reads the configuration; connects with the first call.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn new(source: Source, metrics: Arc<Metrics>) -> Result<Self, ApiError> {
        let (client, token) = client(&source).await?;
        let state = State {
            client,
            token,
            failures: 0,
            renewed: Instant::now(),
        };
        Ok(Self {
            shared: Arc::new(Shared {
                source,
                metrics,
                state: Mutex::new(state),
            }),
        })
    }

    fn state<T>(&self, read: impl FnOnce(&mut State) -> T) -> T {
        read(
            &mut self
                .shared
                .state
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// Certificates of a kubeconfig are read when the client is made; the kubelet, for one, replaces its own.
    async fn renew_after_failures(&self) {
        let is_due = self.state(|state| {
            let is_due = state.failures >= FAILURES_MAX && state.renewed.elapsed() >= RENEW_EVERY;
            if is_due {
                state.renewed = Instant::now();
            }
            is_due
        });
        if is_due && let Ok((client, token)) = client(&self.shared.source).await {
            self.state(|state| {
                state.client = client;
                state.token = token;
            });
        }
    }

    /// Sends a request and waits for the head of the answer.
    async fn send(
        &self,
        call: &Call,
        verb: &'static str,
        patience: Duration,
    ) -> Result<Response<Body>, String> {
        self.renew_after_failures().await;
        let mut request = Request::builder().method(call.verb.name()).uri(&call.path);
        request = request.header(http::header::ACCEPT, "application/json");
        request = request.header(http::header::USER_AGENT, USER_AGENT);
        if !call.body.is_empty() {
            request = request.header(http::header::CONTENT_TYPE, call.content.mime());
        }
        let (client, token) = self.state(|state| {
            let token = state.token.as_mut().map(TokenFile::header);
            (state.client.clone(), token)
        });
        if let Some(token) = token {
            request = request.header(http::header::AUTHORIZATION, token);
        }
        let request = request.body(Body::from(call.body.clone()));
        let request = request.map_err(|error| format!("{}: {error}", call.path))?;
        let answer = tokio::time::timeout(patience, client.send(request)).await;
        let answer = match answer {
            Ok(answer) => answer.map_err(|error| chain(&error)),
            Err(_) => Err(format!("no answer within {} s", patience.as_secs())),
        };
        let code = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
        self.shared.metrics.called(verb, call.resource, code);
        self.state(|state| {
            let failed = code == 0 || code == 401;
            state.failures = if failed {
                state.failures.saturating_add(1)
            } else {
                0
            };
        });
        answer
    }

    /// One call, whole.
    pub async fn call(&self, call: &Call) -> Answer {
        match self.send(call, call.verb.name(), CALL_TIMEOUT).await {
            Ok(response) => whole(response).await,
            Err(why) => Answer::Lost(why),
        }
    }

    /// What is counted.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }
}

/// Reads the rest of an answer.
async fn whole(response: Response<Body>) -> Answer {
    let code = response.status();
    let retry_after_s = response.headers().get(http::header::RETRY_AFTER);
    let retry_after_s = retry_after_s.and_then(|value| value.to_str().ok()?.parse().ok());
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect();
    let body: Bytes = match tokio::time::timeout(CALL_TIMEOUT, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) => return Answer::Lost(format!("the answer broke off: {error}")),
        Err(_) => return Answer::Lost("the answer did not end".to_owned()),
    };
    if code.is_success() {
        Answer::Done(body.to_vec())
    } else {
        Answer::Refused(Refusal::read(code.as_u16(), retry_after_s, &body))
    }
}

/// An error with its causes: kube's own text often says only that there was one.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = next.source();
    }
    text
}
