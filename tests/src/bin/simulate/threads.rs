//! Threads in virtual time.
//!
//! Each thread has its own time, as if it had a CPU of its own. An operation costs time; the thread that is furthest
//! behind runs next, and what the machine does comes in between. So the same seed gives the same run, and a thread that
//! is held up holds up those that wait for it.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::kernel;
use crate::world::{self, World, world};

/// What a thread does.
#[derive(Debug)]
pub(crate) enum State {
    /// It has the baton.
    Running,
    /// It would run.
    Ready,
    /// `futex(2)`.
    Futex(usize),
    /// Any of these descriptors.
    Poll(Vec<libc::pollfd>),
    Sleep,
    /// The end of that thread.
    Join(usize),
    Ended,
    /// Killed: it never goes on.
    Killed,
}

pub(crate) struct Thread {
    pub(crate) state: State,
    pub(crate) local_ns: u64,
    /// Of what it waits for.
    pub(crate) deadline_ns: Option<u64>,
    /// What it waited for came, and not the deadline.
    pub(crate) is_woken: bool,
    pub(crate) baton: Arc<AtomicU32>,
    pub(crate) incarnation: u32,
    /// The loop itself.
    pub(crate) is_loop: bool,
    pub(crate) handle: Option<libc::pthread_t>,
}

impl Thread {
    pub(crate) fn new(now_ns: u64, incarnation: u32, is_loop: bool) -> Self {
        Self {
            state: State::Ready,
            local_ns: now_ns,
            deadline_ns: None,
            is_woken: false,
            baton: Arc::default(),
            incarnation,
            is_loop,
            handle: None,
        }
    }

    /// When it goes on, as far as time alone decides.
    fn at_ns(&self) -> Option<u64> {
        match self.state {
            State::Ready => Some(self.local_ns),
            State::Futex(_) | State::Poll(_) | State::Sleep => {
                self.deadline_ns.map(|at_ns| at_ns.max(self.local_ns))
            }
            State::Running | State::Join(_) | State::Ended | State::Killed => None,
        }
    }
}

/// The running thread has used this much time.
pub(crate) fn advance(cost_ns: u64) {
    let world = world();
    let me = world.current;
    world.threads[me].local_ns += cost_ns;
    world.now_ns = world.threads[me].local_ns;
    if world.poked {
        world.poked = false;
        world.look_at_descriptors();
    }
    let now_ns = world.now_ns;
    if world.next_thread().is_some_and(|(at_ns, _)| at_ns < now_ns)
        || world.machine.next_ns() < now_ns
    {
        world.threads[me].state = State::Ready;
        switch();
    }
}

/// Waits. Returns whether it was woken, and not by the deadline.
pub(crate) fn wait(state: State, deadline_ns: Option<u64>) -> bool {
    let world = world();
    let began_ns = world.now_ns;
    let is_futex = matches!(state, State::Futex(_) | State::Join(_) | State::Sleep);
    let thread = &mut world.threads[world.current];
    thread.state = state;
    thread.deadline_ns = deadline_ns;
    thread.is_woken = false;
    switch();
    let world = self::world();
    if is_futex && world.threads[world.current].is_loop {
        let waited_ns = world.now_ns - began_ns;
        world.checks.spent("wait", waited_ns);
    }
    world.threads[world.current].is_woken
}

/// Hands the baton to the next thread, and waits for it.
pub(crate) fn switch() {
    let me = world::id();
    let next = world().choose();
    if next == me {
        return;
    }
    let (mine, theirs) = {
        let threads = &world().threads;
        (
            Arc::clone(&threads[me].baton),
            Arc::clone(&threads[next].baton),
        )
    };
    let is_ended = matches!(world().threads[me].state, State::Ended);
    kernel::wake(&theirs);
    if !is_ended {
        kernel::wait_for(&mine);
    }
}

impl World {
    fn next_thread(&self) -> Option<(u64, usize)> {
        let threads = self.threads.iter().enumerate();
        threads
            .filter_map(|(id, thread)| Some((thread.at_ns()?, id)))
            .min()
    }

    /// Those that wait for a descriptor which is ready by now.
    fn look_at_descriptors(&mut self) {
        for thread in &mut self.threads {
            let State::Poll(fds) = &mut thread.state else {
                continue;
            };
            let arguments = [fds.as_mut_ptr() as usize, fds.len(), 0, 0, 0, 0];
            // SAFETY: the list lives for the call, which does not wait.
            if unsafe { kernel::raw(libc::SYS_poll, arguments) } > 0 {
                thread.state = State::Ready;
                thread.is_woken = true;
                thread.local_ns = thread.local_ns.max(self.now_ns);
            }
        }
    }

    /// Lets the machine go on until a thread has its turn.
    fn choose(&mut self) -> usize {
        loop {
            self.look_at_descriptors();
            let next = self.next_thread();
            let event_ns = self.machine.next_ns();
            match next {
                Some((at_ns, id)) if at_ns < event_ns => {
                    let thread = &mut self.threads[id];
                    thread.state = State::Running;
                    thread.local_ns = at_ns.max(thread.local_ns);
                    self.now_ns = thread.local_ns;
                    self.current = id;
                    return id;
                }
                _ if event_ns < u64::MAX => {
                    self.now_ns = self.now_ns.max(event_ns);
                    crate::machine::step(self);
                }
                _ => self.give_up("every thread waits for ever"),
            }
        }
    }

    /// Ends a run that cannot go on.
    pub(crate) fn give_up(&mut self, why: &str) -> ! {
        self.checks.broken("stuck", why.to_owned(), self.now_ns);
        crate::run::report_and_exit(self)
    }

    /// `futex(2)`: wakes so many.
    pub(crate) fn wake_futex(&mut self, address: usize, count: usize) -> usize {
        let now_ns = self.now_ns;
        let waiting = self.threads.iter_mut().filter(
            |thread| matches!(thread.state, State::Futex(waits_for) if waits_for == address),
        );
        let mut woken = 0;
        for thread in waiting.take(count) {
            thread.state = State::Ready;
            thread.is_woken = true;
            thread.local_ns = thread.local_ns.max(now_ns);
            woken += 1;
        }
        woken
    }

    /// A thread has ended.
    pub(crate) fn ended(&mut self, id: usize) {
        self.threads[id].state = State::Ended;
        let now_ns = self.now_ns;
        for thread in &mut self.threads {
            if matches!(thread.state, State::Join(waits_for) if waits_for == id) {
                thread.state = State::Ready;
                thread.is_woken = true;
                thread.local_ns = thread.local_ns.max(now_ns);
            }
        }
    }
}
