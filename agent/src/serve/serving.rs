//! A listener with a thread of its own: what the control socket and HTTP have in common.
//!
//! **Problem.** Anybody may connect, as often and as slowly as they like, and the agent's loop must not notice. **Approach.** A thread of
//! ordinary priority runs an event loop of its own that accepts for ever and gives each client a place, of which there are so many. Who finds none
//! is sent away at once. What became of each is counted.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::host::panics;
use crate::host::worker::WorkerThread;

/// All of it is locked in memory with the agent. The deepest that runs on it is the JSON reader, at its own limit of nesting.
const STACK_BYTES: usize = 512 << 10;
/// After an `accept` that failed, for instance because all descriptors are in use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A thread that serves. Dropping it ends the thread, and cuts off the clients that are being served.
#[derive(Debug)]
pub(crate) struct ServingThread {
    // Dropped first: the thread ends when this is gone, and the field after it waits for that.
    _stop: oneshot::Sender<()>,
    _thread: WorkerThread<Infallible>,
}

impl ServingThread {
    /// Runs what `serve` makes, in an event loop on a thread called `name`.
    ///
    /// # Errors
    /// The kernel has no thread or no descriptors left.
    pub(crate) fn start<F>(
        name: &'static str,
        serve: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = io::Result<()>>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let (stop, stopped) = oneshot::channel();
        // Its jobs are its clients, who come by themselves.
        let thread = WorkerThread::start(name, STACK_BYTES, 0, move |_jobs| {
            // A client's task that panics is that client's loss: the event loop catches it.
            panics::contain();
            let serving = AssertUnwindSafe(|| {
                runtime.block_on(async {
                    tokio::select! {
                        biased;
                        _ = stopped => {}
                        ended = serve() => if let Err(error) = ended {
                            tracing::error!(%error, "{name} is no longer served");
                        }
                    }
                });
            });
            if catch_unwind(serving).is_err() {
                tracing::error!(
                    "{name} is no longer served: a mistake in plimsoll; please report the message above"
                );
            }
            runtime.shutdown_background();
        })?;
        Ok(Self {
            _stop: stop,
            _thread: thread,
        })
    }
}

/// Hands each client that `accept` gives to `attend`, for ever.
pub(crate) async fn accept_for_ever<S>(
    accept: impl AsyncFn() -> io::Result<S>,
    mut attend: impl FnMut(S),
) -> ! {
    loop {
        match accept().await {
            Ok(stream) => attend(stream),
            Err(error) => {
                tracing::debug!(%error, "accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Places for clients, and what has become of those who came.
#[derive(Debug)]
pub struct Clients {
    places: Arc<Semaphore>,
    answered: AtomicU64,
    sent_away: AtomicU64,
    lost: AtomicU64,
}

/// How many clients met which end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientFigures {
    /// Got their answer, or a refusal with a reason.
    pub answered: u64,
    /// Were sent away, being too many.
    pub sent_away: u64,
    /// Were too slow, went away, sent nothing that could be answered, or met a mistake in the code that answers.
    pub lost: u64,
}

impl Clients {
    pub(crate) fn new(at_one_time: usize) -> Arc<Self> {
        Arc::new(Self {
            places: Arc::new(Semaphore::new(at_one_time)),
            answered: AtomicU64::new(0),
            sent_away: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        })
    }

    /// So far.
    pub fn figures(&self) -> ClientFigures {
        ClientFigures {
            answered: self.answered.load(Ordering::Relaxed),
            sent_away: self.sent_away.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }

    /// A place for one more. `None`: it is to be sent away, and has been counted so.
    pub(crate) fn place(self: &Arc<Self>) -> Option<ClientSlot> {
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(permit) => Some(ClientSlot {
                clients: Arc::clone(self),
                is_served: false,
                _permit: permit,
            }),
            Err(_) => {
                self.sent_away.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

/// The place of a client that is being served.
pub(crate) struct ClientSlot {
    clients: Arc<Clients>,
    is_served: bool,
    _permit: OwnedSemaphorePermit,
}

impl ClientSlot {
    /// It has been served, or not.
    pub(crate) fn leave(mut self, served: Result<(), impl fmt::Debug>) {
        match served {
            Ok(()) => self.is_served = true,
            Err(error) => tracing::debug!(?error, "a client is lost"),
        }
    }
}

impl Drop for ClientSlot {
    /// Also when the task that serves the client panics.
    fn drop(&mut self) {
        let counted = match self.is_served {
            true => &self.clients.answered,
            false => &self.clients.lost,
        };
        counted.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_its_client_has_left() {
        let clients = Clients::new(1);
        let first = clients.place().expect("the first place");
        assert!(clients.place().is_none());
        first.leave(Ok::<(), io::Error>(()));
        let second = clients.place().expect("it was given back");
        second.leave(Err("cut off"));
        let figures = ClientFigures {
            answered: 1,
            sent_away: 1,
            lost: 1,
        };
        assert_eq!(clients.figures(), figures);
    }

    /// As a request that meets a mistake in what answers it.
    #[test]
    fn a_panic_costs_one_client_and_its_place_is_free_again() {
        let clients = Clients::new(1);
        let (served, results) = std::sync::mpsc::channel();
        let shared = Arc::clone(&clients);
        let thread = ServingThread::start("panics", move || async move {
            for client in 0..3 {
                let place = shared.place().expect("the place of the one before");
                let task = tokio::spawn(async move {
                    assert!(client != 1, "a mistake");
                    place.leave(Ok::<(), io::Error>(()));
                });
                served.send(task.await.is_ok()).expect("somebody listens");
            }
            std::future::pending::<io::Result<()>>().await
        });
        let thread = thread.expect("a thread");
        let seen: Vec<bool> = results.iter().take(3).collect();
        assert_eq!(seen, [true, false, true]);
        drop(thread);
        let figures = clients.figures();
        assert_eq!((figures.answered, figures.lost), (2, 1));
    }

    #[test]
    fn an_accept_that_fails_is_not_the_end() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        let exhausted = tokio::sync::Notify::new();
        let results = std::cell::RefCell::new(vec![Ok(2), Err(io::ErrorKind::Other.into()), Ok(1)]);
        let mut seen = Vec::new();
        let accept = async || {
            let next = results.borrow_mut().pop();
            match next {
                Some(result) => result,
                None => {
                    exhausted.notify_one();
                    std::future::pending().await
                }
            }
        };
        runtime.block_on(async {
            tokio::select! {
                never = accept_for_ever(accept, |client| seen.push(client)) => never,
                () = exhausted.notified() => {}
            }
        });
        assert_eq!(seen, [1, 2]);
    }
}
