//! Sees from another thread whether the loop still turns.
//!
//! **Problem.** A loop that waits for a slow file, a lock or a device protects nothing, and cannot say so. **Approach.** The loop writes down when a turn
//! begins and which part of it runs ([`Heartbeat`], three words in memory). A thread reads that each second. It names a turn that takes long, once, with the
//! part and with what the kernel says the loop waits for. A turn that does not end ends the process: its supervisor starts another, and what the last line
//! in the kernel holds stays. As long as the loop turns, the thread tells the supervisor that the agent is alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::host::HostRoot;
use crate::host::clock::now_ns;
use crate::host::supervisor::{Message, Supervisor};
use crate::host::worker::WorkerThread;

/// Between two reads of the heartbeat.
const PERIOD: Duration = Duration::from_secs(1);
/// A turn that takes longer is named.
pub const LONG_TURN_NS: u64 = 5_000_000_000;
/// A turn that takes longer never ends. Half of what a supervisor usually waits before it kills.
pub const HUNG_TURN_NS: u64 = 60_000_000_000;
/// The exit status of an agent whose loop hangs.
pub const EXIT_HUNG: u8 = 70;
const STACK_BYTES: usize = 128 << 10;
/// How long a message may take.
const SAY_WITHIN: Duration = Duration::from_secs(1);
/// Not within a turn.
const WAITING: u64 = 0;

/// The parts of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Part {
    Attend,
    Message,
    Lifecycle,
    FollowUp,
    OomScores,
    Rescan,
}

impl Part {
    const ALL: [Self; 6] = [
        Self::Attend,
        Self::Message,
        Self::Lifecycle,
        Self::FollowUp,
        Self::OomScores,
        Self::Rescan,
    ];

    fn of(number: u8) -> Self {
        let part = Self::ALL.get(usize::from(number));
        part.copied().unwrap_or(Self::Attend)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Attend => "taking a sample and acting upon it",
            Self::Message => "taking in what a source reports",
            Self::Lifecycle => "taking in cgroups and processes that came or went",
            Self::FollowUp => "following up",
            Self::OomScores => "setting OOM scores",
            Self::Rescan => "rescanning pods",
        }
    }
}

/// Where the loop is. Written by the loop, read by the watchdog.
#[derive(Debug, Default)]
pub(super) struct Heartbeat {
    /// When the turn began; [`WAITING`] outside of one.
    began_ns: AtomicU64,
    part: AtomicU8,
}

impl Heartbeat {
    /// A turn begins.
    pub(super) fn begin(&self, now_ns: u64) {
        self.began_ns.store(now_ns, Ordering::Relaxed);
    }

    /// This part of it begins. Returns the part before it.
    pub(super) fn enter(&self, part: Part) -> Part {
        Part::of(self.part.swap(part as u8, Ordering::Relaxed))
    }

    /// It is over. Returns how long it took, in nanoseconds.
    pub(super) fn end(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.began_ns.swap(WAITING, Ordering::Relaxed))
    }

    /// The turn that the loop is in: when it began, and the part.
    fn turn(&self) -> Option<(u64, Part)> {
        let began_ns = self.began_ns.load(Ordering::Relaxed);
        let part = Part::of(self.part.load(Ordering::Relaxed));
        (began_ns != WAITING).then_some((began_ns, part))
    }
}

/// What a look at the heartbeat says.
#[derive(Debug, PartialEq, Eq)]
enum Health {
    /// The loop waits, or its turn is young.
    Turns,
    /// The turn takes long; `is_new`: this has not been said of it.
    Long { ns: u64, part: Part, is_new: bool },
    /// The turn does not end.
    Hangs { ns: u64, part: Part },
}

fn health(turn: Option<(u64, Part)>, named_ns: Option<u64>, now_ns: u64) -> Health {
    let Some((began_ns, part)) = turn else {
        return Health::Turns;
    };
    match now_ns.saturating_sub(began_ns) {
        ns if ns >= HUNG_TURN_NS => Health::Hangs { ns, part },
        ns if ns >= LONG_TURN_NS => Health::Long {
            ns,
            part,
            is_new: named_ns != Some(began_ns),
        },
        _ => Health::Turns,
    }
}

/// The thread.
#[derive(Debug)]
pub(super) struct Watchdog {
    is_over: Arc<AtomicBool>,
    thread: WorkerThread<()>,
}

impl Watchdog {
    /// Watches the loop, which runs on the calling thread.
    ///
    /// # Errors
    /// When the kernel gives no thread.
    pub(super) fn start(host: &HostRoot, heartbeat: Arc<Heartbeat>) -> std::io::Result<Self> {
        let supervisor = Supervisor::from_environment().unwrap_or_else(|error| {
            tracing::warn!("NOTIFY_SOCKET: the supervisor cannot be told anything: {error}");
            None
        });
        let is_over = Arc::new(AtomicBool::new(false));
        let watch = Watch {
            host: host.clone(),
            loop_thread: rustix::thread::gettid(),
            heartbeat,
            supervisor,
            is_over: Arc::clone(&is_over),
        };
        let thread = WorkerThread::start("watchdog", STACK_BYTES, 1, move |_jobs| watch.run())?;
        Ok(Self { is_over, thread })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.end_by(Instant::now() + PERIOD);
    }
}

struct Watch {
    host: HostRoot,
    loop_thread: Pid,
    heartbeat: Arc<Heartbeat>,
    supervisor: Option<Supervisor>,
    is_over: Arc<AtomicBool>,
}

impl Watch {
    fn run(&self) {
        self.tell(Message::Ready);
        let wanted = self.supervisor.as_ref().and_then(|it| it.watchdog);
        let period = wanted.map_or(PERIOD, |wanted| PERIOD.min(wanted / 2));
        let mut named_ns = None;
        while !self.is_over.load(Ordering::SeqCst) {
            let turn = self.heartbeat.turn();
            match health(turn, named_ns, now_ns()) {
                Health::Turns => self.tell(Message::Alive),
                Health::Long { ns, part, is_new } => {
                    self.tell(Message::Alive);
                    named_ns = turn.map(|(began_ns, _)| began_ns);
                    if is_new {
                        say(self.describe(ns, part));
                    }
                }
                Health::Hangs { ns, part } => {
                    let what = self.describe(ns, part);
                    say(format!(
                        "{what}; the agent ends with status {EXIT_HUNG}, so that its supervisor starts another"
                    ));
                    std::process::exit(EXIT_HUNG.into());
                }
            }
            std::thread::park_timeout(period);
        }
        self.tell(Message::Stopping);
    }

    fn tell(&self, message: Message) {
        let told = self.supervisor.as_ref().map(|it| it.tell(message));
        if let Some(Err(error)) = told {
            tracing::debug!(%error, "the supervisor was not told");
        }
    }

    /// What the loop has been doing for so long, and what it waits for.
    fn describe(&self, ns: u64, part: Part) -> String {
        let thread = self.loop_thread.as_raw_nonzero();
        let read = |file: &str| {
            let path = self.host.procfs(format!("self/task/{thread}/{file}"));
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.split('\n')
                .map(str::trim)
                .collect::<Vec<_>>()
                .join(" ")
        };
        let (seconds, what) = (ns / 1_000_000_000, part.name());
        let (wchan, stack) = (read("wchan"), read("stack"));
        format!(
            "the loop has been {what} for {seconds} s and protects no pod meanwhile; it waits in {wchan}; kernel stack: {stack}"
        )
    }
}

/// Writes an error, and waits for that no longer than [`SAY_WITHIN`]: the loop may hang in a write to standard error, with its lock.
fn say(text: String) {
    let said = std::thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || tracing::error!("{text}"));
    let began = Instant::now();
    while said.as_ref().is_ok_and(|said| !said.is_finished()) && began.elapsed() < SAY_WITHIN {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn a_turn_is_named_once_and_then_ends_the_process() {
        let heartbeat = Heartbeat::default();
        let at = |seconds| 7 + seconds * SECOND_NS;
        assert_eq!(health(heartbeat.turn(), None, at(900)), Health::Turns);
        heartbeat.begin(at(0));
        heartbeat.enter(Part::Rescan);
        let part = Part::Rescan;
        assert_eq!(health(heartbeat.turn(), None, at(4)), Health::Turns);
        let long = |is_new| Health::Long {
            ns: 5 * SECOND_NS,
            part,
            is_new,
        };
        assert_eq!(health(heartbeat.turn(), None, at(5)), long(true));
        assert_eq!(health(heartbeat.turn(), Some(at(0)), at(5)), long(false));
        let ns = HUNG_TURN_NS;
        assert_eq!(
            health(heartbeat.turn(), Some(at(0)), at(60)),
            Health::Hangs { ns, part }
        );
        assert_eq!(heartbeat.end(at(61)), 61 * SECOND_NS);
        assert_eq!(health(heartbeat.turn(), None, at(900)), Health::Turns);
    }

    #[test]
    fn parts_have_their_numbers() {
        for (number, part) in Part::ALL.into_iter().enumerate() {
            assert_eq!(part as usize, number);
        }
    }

    #[test]
    fn what_the_loop_waits_for_is_said() {
        let watch = Watch {
            host: HostRoot::live(),
            loop_thread: rustix::thread::gettid(),
            heartbeat: Arc::default(),
            supervisor: None,
            is_over: Arc::default(),
        };
        let text = watch.describe(6 * SECOND_NS, Part::OomScores);
        assert!(
            text.starts_with("the loop has been setting OOM scores for 6 s"),
            "{text}"
        );
        assert!(!text.contains('\n'), "{text}");
    }
}
