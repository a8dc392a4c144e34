//! A listener with a thread of its own: what the control socket and HTTP have in common.
//!
//! **Problem.** Anybody may connect, as often and as slowly as they like, and the agent's loop must not notice.
//! **Approach.** A thread of ordinary priority runs an event loop of its own that accepts for ever. Clients wait until
//! their request has arrived, in so many places, and the newest comer finds one: the oldest that has sent nothing gives
//! way. For the answer there are other places, some of which only probes have. What became of each client is counted.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::host::panics;
use crate::host::worker::WorkerThread;

/// All of it is locked in memory with the agent. The deepest that runs on it is the JSON reader, at its own limit of
/// nesting.
const STACK_BYTES: usize = 512 << 10;
/// After an `accept` that failed, for instance because all descriptors are in use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a serving thread runs. Where the kernel gives no thread it is dropped by the agent's start, which runs inside
/// an event loop itself: tokio panics when a runtime that may have to wait is dropped there.
struct EventLoop(Option<tokio::runtime::Runtime>);

impl EventLoop {
    fn new() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        Ok(Self(Some(runtime)))
    }

    fn run(&self, serving: impl Future<Output = ()>) {
        if let Some(runtime) = &self.0 {
            runtime.block_on(serving);
        }
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A thread that serves. Dropping it ends the thread, and cuts off the clients that are being served.
#[derive(Debug)]
pub(crate) struct ListenerThread {
    // Dropped first: the thread ends when this is gone, and the field after it waits for that.
    _stop: oneshot::Sender<()>,
    _thread: WorkerThread<Infallible>,
}

impl ListenerThread {
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
        let event_loop = EventLoop::new()?;
        let (stop, stopped) = oneshot::channel();
        // Its jobs are its clients, who come by themselves.
        let thread = WorkerThread::start(name, STACK_BYTES, 0, move |_jobs, _| {
            // A client's task that panics ends alone: the runtime catches it. Anything else here ends the listener, not
            // the agent.
            let served = panics::guard(|| {
                event_loop.run(async {
                    tokio::select! {
                        biased;
                        _ = stopped => {}
                        ended = serve() => if let Err(error) = ended {
                            tracing::error!(%error, "{name} is no longer served");
                        }
                    }
                });
            });
            if let Err(error) = served {
                tracing::error!(%error, "{name} is no longer served");
            }
        })?;
        Ok(Self {
            _stop: stop,
            _thread: thread,
        })
    }
}

/// Hands each client that `accept` gives to `serve`, for ever.
pub(crate) async fn accept_for_ever<S>(
    accept: impl AsyncFn() -> io::Result<S>,
    mut serve: impl FnMut(S),
) -> ! {
    loop {
        match accept().await {
            Ok(stream) => serve(stream),
            Err(error) => {
                tracing::debug!(%error, "accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// How many clients may be in which state at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientLimits {
    /// Their request has not arrived. One more takes the place of the one that has waited longest, of the peer that has
    /// most.
    pub(crate) waiting: usize,
    /// They are answered.
    pub(crate) served: usize,
    /// As many of these may be one peer's.
    pub(crate) of_one_peer: usize,
    /// They ask how the agent is. No other client takes these places.
    pub(crate) probes: usize,
}

/// Clients that are there, and what has become of those who came. `P`: what tells peers apart.
#[derive(Debug)]
pub(crate) struct Clients<P> {
    limits: ClientLimits,
    present: Mutex<Present<P>>,
    answered: AtomicU64,
    sent_away: AtomicU64,
    lost: AtomicU64,
}

#[derive(Debug)]
struct Present<P> {
    next_number: u64,
    /// The one that came first is first. At most as many as there are places.
    clients: Vec<Client<P>>,
}

#[derive(Debug)]
struct Client<P> {
    number: u64,
    peer: P,
    state: State,
    // Dropped when it is to go.
    _stay: oneshot::Sender<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Served,
    Probe,
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

impl<P: Copy + Eq> Clients<P> {
    pub(crate) fn new(limits: ClientLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            present: Mutex::new(Present {
                next_number: 0,
                clients: Vec::with_capacity(limits.waiting + limits.served + limits.probes),
            }),
            answered: AtomicU64::new(0),
            sent_away: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        })
    }

    /// So far.
    pub(crate) fn figures(&self) -> ClientFigures {
        ClientFigures {
            answered: self.answered.load(Ordering::Relaxed),
            sent_away: self.sent_away.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }

    /// One more that waits to send its request. Where there are too many, another gives way: a prober that sends at
    /// once is answered, however many others hold their connections and send nothing.
    pub(crate) fn enter(self: &Arc<Self>, peer: P) -> ClientSlot<P> {
        let (stay, gone) = oneshot::channel();
        let mut present = self.present();
        let waits = |it: &&Client<P>| it.state == State::Waiting;
        if present.clients.iter().filter(waits).count() >= self.limits.waiting {
            // The newcomer is one of its peer's.
            let of = |of: P| {
                let clients = present.clients.iter().filter(waits);
                clients.filter(|it| it.peer == of).count() + usize::from(of == peer)
            };
            // Of equal counts the first, so the one that came first goes.
            let most = present.clients.iter().filter(waits).map(|it| of(it.peer));
            let most = most.max().unwrap_or(0);
            let goes = present
                .clients
                .iter()
                .position(|it| waits(&it) && of(it.peer) == most);
            if let Some(goes) = goes {
                present.clients.remove(goes);
                self.sent_away.fetch_add(1, Ordering::Relaxed);
            }
        }
        present.next_number += 1;
        let number = present.next_number;
        present.clients.push(Client {
            number,
            peer,
            state: State::Waiting,
            _stay: stay,
        });
        ClientSlot {
            clients: Arc::clone(self),
            number,
            gone: Some(gone),
        }
    }

    fn present(&self) -> MutexGuard<'_, Present<P>> {
        // No step between lock and unlock leaves the list half changed.
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a client. Dropped, it is free.
pub(crate) struct ClientSlot<P: Copy + Eq> {
    clients: Arc<Clients<P>>,
    number: u64,
    gone: Option<oneshot::Receiver<()>>,
}

impl<P: Copy + Eq> ClientSlot<P> {
    /// Resolves when this client has to give way to another.
    pub(crate) fn gives_way(&mut self) -> impl Future<Output = ()> + use<P> {
        let gone = self.gone.take();
        async move {
            match gone {
                Some(gone) => drop(gone.await),
                None => std::future::pending().await,
            }
        }
    }

    /// Its request has arrived: whether there is room for the answer. If not, it is sent away, and has been counted so.
    pub(crate) fn is_served(&self, is_probe: bool) -> bool {
        let ClientLimits {
            served,
            of_one_peer,
            probes,
            ..
        } = self.clients.limits;
        let mut present = self.clients.present();
        let Some(index) = present
            .clients
            .iter()
            .position(|it| it.number == self.number)
        else {
            return false;
        };
        let peer = present.clients[index].peer;
        let (state, of_peer_max, max) = match is_probe {
            true => (State::Probe, probes, probes),
            false => (State::Served, of_one_peer, served),
        };
        let here = || present.clients.iter().filter(|it| it.state == state);
        if here().count() < max && here().filter(|it| it.peer == peer).count() < of_peer_max {
            present.clients[index].state = state;
            return true;
        }
        present.clients.remove(index);
        self.clients.sent_away.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// It has been served, or not. Who was sent away has been counted already.
    pub(crate) fn leave(self, served: Result<(), impl fmt::Debug>) {
        if !self.remove() {
            return;
        }
        let counted = match served {
            Ok(()) => &self.clients.answered,
            Err(error) => {
                tracing::debug!(?error, "a client is lost");
                &self.clients.lost
            }
        };
        counted.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it was still there.
    fn remove(&self) -> bool {
        let mut present = self.clients.present();
        let index = present
            .clients
            .iter()
            .position(|it| it.number == self.number);
        index.map(|index| present.clients.remove(index)).is_some()
    }
}

impl<P: Copy + Eq> Drop for ClientSlot<P> {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients() -> Arc<Clients<u8>> {
        Clients::new(ClientLimits {
            waiting: 3,
            served: 2,
            of_one_peer: 1,
            probes: 1,
        })
    }

    fn present(clients: &Clients<u8>) -> Vec<(u64, State)> {
        let present = clients.present();
        let clients = present.clients.iter();
        clients.map(|it| (it.number, it.state)).collect()
    }

    /// As where the kernel gives no thread while the agent starts. Found by `cargo xtask simulate --faults`.
    #[test]
    fn what_no_thread_runs_is_dropped_inside_another_event_loop() {
        let (outer, inner) = (EventLoop::new().unwrap(), EventLoop::new().unwrap());
        outer.run(async { drop(inner) });
    }

    #[test]
    fn a_place_is_free_again_when_its_client_has_left() {
        let clients = clients();
        let first = clients.enter(1);
        assert!(first.is_served(false));
        let second = clients.enter(1);
        assert!(!second.is_served(false), "one peer has one place");
        second.leave(Ok::<(), io::Error>(()));
        first.leave(Ok::<(), io::Error>(()));
        let third = clients.enter(1);
        assert!(third.is_served(false), "it was given back");
        third.leave(Err("cut off"));
        let figures = ClientFigures {
            answered: 1,
            sent_away: 1,
            lost: 1,
        };
        assert_eq!(clients.figures(), figures);
        assert_eq!(present(&clients), []);
    }

    #[test]
    fn probes_have_places_that_no_other_takes() {
        let clients = clients();
        let slots: Vec<_> = (1..=3).map(|peer| clients.enter(peer)).collect();
        assert_eq!(slots.iter().filter(|slot| slot.is_served(false)).count(), 2);
        assert!(clients.enter(1).is_served(true));
        let probe = clients.enter(1);
        assert!(probe.is_served(true), "the one before has gone");
        assert!(!clients.enter(2).is_served(true));
    }

    #[test]
    fn the_oldest_of_the_peer_that_has_most_gives_way() {
        let clients = clients();
        let slots: Vec<_> = [1, 2, 2].map(|peer| clients.enter(peer)).into();
        let newest = clients.enter(3);
        let waits = |number| (number, State::Waiting);
        assert_eq!(present(&clients), [waits(1), waits(3), waits(4)]);
        let newer = clients.enter(3);
        assert_eq!(present(&clients), [waits(1), waits(3), waits(5)]);
        assert_eq!(clients.figures().sent_away, 2);
        // They were counted when they gave way.
        for slot in slots.into_iter().chain([newest, newer]) {
            slot.leave(Err("cut off"));
        }
        assert_eq!(
            (clients.figures().lost, clients.figures().sent_away),
            (3, 2)
        );
    }

    #[test]
    fn a_client_that_makes_its_task_panic_ends_alone() {
        let clients = clients();
        let (done, answered) = std::sync::mpsc::channel();
        let theirs = Arc::clone(&clients);
        let thread = ListenerThread::start("panics", move || async move {
            let (first, second) = (theirs.enter(1), theirs.enter(2));
            let panics = tokio::spawn(async move {
                let _held = first;
                panic!("on purpose");
            });
            let ended = panics.await;
            done.send(ended.is_err_and(|error| error.is_panic())).ok();
            second.leave(Ok::<(), io::Error>(()));
            std::future::pending().await
        });
        assert_eq!(answered.recv(), Ok(true), "the thread still runs");
        drop(thread.expect("a thread"));
        assert_eq!(present(&clients), [], "its place is free");
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
