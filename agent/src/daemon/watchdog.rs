//! Sees from another thread whether the loop still turns.
//!
//! **Problem.** A loop that waits for a slow file, a lock or a device protects nothing, and cannot say so.
//! **Approach.** The loop writes down when a turn begins and ends and which part of it runs ([`Heartbeat`], three words
//! in memory). A thread reads that each second, and every three seconds while the loop comes and goes as it should. It
//! names a turn that takes long, once, with the part and with what the kernel says the loop waits for; and so a rest
//! between turns that is longer than the loop ever means to wait: its thread is frozen, traced, or never gets a CPU.
//! What does not end ends the process: its supervisor starts another, and what the last line in the kernel holds stays.
//! As long as the loop turns, the thread tells the supervisor that the agent is alive.
//!
//! Time counts as the thread sees it pass, look by look: of a process that was stopped as a whole (SIGSTOP, a frozen
//! cgroup) the loop has not hung.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::host::HostRoot;
use crate::host::clock::now_ns;
use crate::host::sd_notify::{Message, Supervisor};
use crate::host::worker::{End, WorkerThread};

/// Between two reads of the heartbeat.
const PERIOD: Duration = Duration::from_secs(1);
/// The same after a read that found the loop in a rest that is new: nothing can be too long before the next read, and
/// how long it is by then is known.
const CALM_PERIOD: Duration = Duration::from_secs(3);
/// And while the agent is not ready, which its supervisor waits for.
const UNTIL_READY: Duration = Duration::from_millis(50);
/// A turn that takes longer is named, and so is a rest that is so much longer than the longest.
pub const LONG_TURN_NS: u64 = 5_000_000_000;
/// A turn that takes longer never ends. Half of what a supervisor usually waits before it kills.
pub const HUNG_TURN_NS: u64 = 60_000_000_000;
/// The longest that the loop rests: pods are rescanned at least so often ([`super::wake`]).
const REST_MAX_NS: u64 = 5_000_000_000;
/// What one look counts at most: the longest period between two, and a second for a busy machine.
const LOOK_MAX_NS: u64 = 4_000_000_000;
/// The exit status of an agent whose loop hangs.
pub const EXIT_HUNG: u8 = 70;
const STACK_BYTES: usize = 128 << 10;
/// How long a message may take.
const SAY_WITHIN: Duration = Duration::from_secs(1);
/// What the loop does between turns.
const RESTING: &str = "kept from its turns";

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
    /// The agent does what it is there for.
    is_ready: AtomicBool,
    /// When the newest turn began.
    began_ns: AtomicU64,
    /// When the newest one that is over ended: before the other means that a turn runs.
    ended_ns: AtomicU64,
    part: AtomicU8,
}

impl Heartbeat {
    /// The agent is ready.
    pub(super) fn ready(&self) {
        self.is_ready.store(true, Ordering::Release);
    }

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
        self.ended_ns.store(now_ns, Ordering::Relaxed);
        now_ns.saturating_sub(self.began_ns.load(Ordering::Relaxed))
    }

    /// What the loop is at.
    fn beat(&self) -> Beat {
        let began_ns = self.began_ns.load(Ordering::Relaxed);
        let ended_ns = self.ended_ns.load(Ordering::Relaxed);
        let part = Part::of(self.part.load(Ordering::Relaxed));
        Beat {
            since_ns: began_ns.max(ended_ns),
            part: (began_ns > ended_ns).then_some(part),
        }
    }
}

/// A turn, or a rest between two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Beat {
    since_ns: u64,
    /// `None` for a rest.
    part: Option<Part>,
}

impl Beat {
    fn is_same(&self, other: &Self) -> bool {
        self.since_ns == other.since_ns && self.part.is_some() == other.part.is_some()
    }

    fn doing(&self) -> &'static str {
        self.part.map_or(RESTING, Part::name)
    }
}

/// What a look at the heartbeat says.
#[derive(Debug, PartialEq, Eq)]
enum Health {
    /// The turn is young, or the rest no longer than it may be.
    Turns,
    /// It takes so long; `is_new`: this has not been said of it.
    Long { ns: u64, is_new: bool },
    /// It does not end.
    Hangs { ns: u64 },
}

/// What the watchdog has seen so far.
#[derive(Debug, Default)]
struct Seen {
    beat: Beat,
    /// For how long it has been the same.
    for_ns: u64,
    looked_ns: u64,
    is_named: bool,
    /// The last look saw it for the first time.
    is_new: bool,
}

impl Seen {
    /// How long until the next look.
    fn period(&self) -> Duration {
        match self.beat.part {
            None if self.is_new => CALM_PERIOD,
            _ => PERIOD,
        }
    }

    fn look(&mut self, beat: Beat, now_ns: u64) -> Health {
        let passed_ns = now_ns.saturating_sub(self.looked_ns).min(LOOK_MAX_NS);
        self.looked_ns = now_ns;
        self.is_new = !beat.is_same(&self.beat);
        if self.is_new {
            // It began after the last look: of that time, too, no more counts than has passed.
            self.for_ns = now_ns.saturating_sub(beat.since_ns).min(passed_ns);
            self.is_named = false;
        } else {
            self.for_ns = self.for_ns.saturating_add(passed_ns);
        }
        self.beat = beat;
        let ns = self.for_ns;
        let rest_ns = if beat.part.is_none() { REST_MAX_NS } else { 0 };
        match ns.saturating_sub(rest_ns) {
            beyond_ns if beyond_ns >= HUNG_TURN_NS => Health::Hangs { ns },
            beyond_ns if beyond_ns >= LONG_TURN_NS => Health::Long {
                ns,
                is_new: !std::mem::replace(&mut self.is_named, true),
            },
            _ => Health::Turns,
        }
    }
}

/// The thread.
#[derive(Debug)]
pub(super) struct Watchdog {
    thread: WorkerThread<Infallible>,
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
        // What comes before the first turn counts as a rest.
        heartbeat.end(now_ns());
        let watch = Watch {
            host: host.clone(),
            loop_thread: rustix::thread::gettid(),
            heartbeat,
            supervisor,
        };
        let work = move |_jobs, end| watch.run(&end);
        let thread = WorkerThread::start("watchdog", STACK_BYTES, 0, work)?;
        Ok(Self { thread })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.thread.end_by(Instant::now() + PERIOD);
    }
}

struct Watch {
    host: HostRoot,
    loop_thread: Pid,
    heartbeat: Arc<Heartbeat>,
    supervisor: Option<Supervisor>,
}

impl Watch {
    fn run(&self, end: &End) {
        let wanted = self.supervisor.as_ref().and_then(|it| it.watchdog);
        let period_max = wanted.map_or(Duration::MAX, |wanted| wanted / 4);
        let (mut seen, mut is_ready) = (Seen::default(), false);
        while !end.is_asked() {
            self.look(&mut seen, &mut is_ready);
            let period = if is_ready {
                seen.period().min(period_max)
            } else {
                UNTIL_READY
            };
            std::thread::park_timeout(period);
        }
        self.tell(Message::Stopping);
    }

    /// `is_ready`: the supervisor knows that the agent is. Before that it expects no sign of life.
    fn look(&self, seen: &mut Seen, is_ready: &mut bool) {
        if !*is_ready && self.heartbeat.is_ready.load(Ordering::Acquire) {
            *is_ready = true;
            self.tell(Message::Ready);
        }
        let beat = self.heartbeat.beat();
        let health = seen.look(beat, now_ns());
        if *is_ready && !matches!(health, Health::Hangs { .. }) {
            self.tell(Message::Alive);
        }
        match health {
            Health::Turns | Health::Long { is_new: false, .. } => {}
            Health::Long { ns, is_new: true } => say(self.describe(ns, beat)),
            Health::Hangs { ns } => {
                let what = self.describe(ns, beat);
                say(format!(
                    "{what}; the agent ends with status {EXIT_HUNG}, so that its supervisor starts another"
                ));
                std::process::exit(EXIT_HUNG.into());
            }
        }
    }

    fn tell(&self, message: Message) {
        let sent = self.supervisor.as_ref().map(|it| it.tell(message));
        if let Some(Err(error)) = sent {
            tracing::debug!(%error, "the supervisor was not told");
        }
    }

    /// What the loop has been doing for so long, and what it waits for.
    fn describe(&self, ns: u64, beat: Beat) -> String {
        let thread = self.loop_thread.as_raw_nonzero();
        let read = |file: &str| {
            let path = self.host.procfs(format!("self/task/{thread}/{file}"));
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.split('\n')
                .map(str::trim)
                .collect::<Vec<_>>()
                .join(" ")
        };
        let (seconds, what) = (ns / 1_000_000_000, beat.doing());
        let (wchan, stack) = (read("wchan"), read("stack"));
        format!(
            "the loop has been {what} for {seconds} s and protects no pod meanwhile; it waits in {wchan}; kernel stack: {stack}"
        )
    }
}

/// Writes an error, and waits for that no longer than [`SAY_WITHIN`]: the loop may hang in a write to standard error,
/// with its lock.
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
    /// Something is said long before.
    const SECONDS_MAX: u64 = 600;

    /// Looks each second, as long as it `Turns`; then what is said, and after how many seconds.
    fn first_word(seen: &mut Seen, heartbeat: &Heartbeat, from_s: u64) -> (u64, Health) {
        (0..SECONDS_MAX)
            .map(|seconds| {
                let now_ns = (from_s + seconds) * SECOND_NS;
                (seconds, seen.look(heartbeat.beat(), now_ns))
            })
            .find(|(_, health)| *health != Health::Turns)
            .unwrap()
    }

    fn after_naming(seen: &mut Seen, heartbeat: &Heartbeat, from_s: u64) -> u64 {
        (from_s..from_s + SECONDS_MAX)
            .find(
                |now_s| match seen.look(heartbeat.beat(), now_s * SECOND_NS) {
                    Health::Long { is_new, .. } => {
                        assert!(!is_new, "named twice");
                        false
                    }
                    health => matches!(health, Health::Hangs { .. }),
                },
            )
            .unwrap()
    }

    #[test]
    fn a_turn_is_named_once_and_then_ends_the_process() {
        let (heartbeat, mut seen) = (Heartbeat::default(), Seen::default());
        heartbeat.begin(1000 * SECOND_NS);
        heartbeat.enter(Part::Rescan);
        let named = first_word(&mut seen, &heartbeat, 1000);
        let ns = LONG_TURN_NS;
        assert_eq!(named, (5, Health::Long { ns, is_new: true }));
        assert_eq!(heartbeat.beat().doing(), "rescanning pods");
        assert_eq!(after_naming(&mut seen, &heartbeat, 1006), 1060);
        assert_eq!(heartbeat.end(1061 * SECOND_NS), 61 * SECOND_NS);
        assert_eq!(seen.look(heartbeat.beat(), 1061 * SECOND_NS), Health::Turns);
    }

    /// A thread that is frozen in its wait begins no turn.
    #[test]
    fn a_rest_that_is_too_long_is_named_and_ends_the_process() {
        let (heartbeat, mut seen) = (Heartbeat::default(), Seen::default());
        heartbeat.begin(999 * SECOND_NS);
        heartbeat.end(1000 * SECOND_NS);
        let (seconds, named) = first_word(&mut seen, &heartbeat, 1000);
        let ns = REST_MAX_NS + LONG_TURN_NS;
        assert_eq!((seconds, named), (10, Health::Long { ns, is_new: true }));
        assert_eq!(after_naming(&mut seen, &heartbeat, 1011), 1065);
        // A rest after a rest is another one.
        heartbeat.begin(1066 * SECOND_NS);
        heartbeat.end(1066 * SECOND_NS);
        assert_eq!(seen.look(heartbeat.beat(), 1066 * SECOND_NS), Health::Turns);
    }

    /// As the thread looks.
    fn named_after_ns(seen: &mut Seen, heartbeat: &Heartbeat, mut now_ns: u64) -> u64 {
        let begun_ns = heartbeat.beat().since_ns;
        for _ in 0..SECONDS_MAX {
            if seen.look(heartbeat.beat(), now_ns) != Health::Turns {
                return now_ns - begun_ns;
            }
            now_ns += u64::try_from(seen.period().as_nanos()).unwrap();
        }
        panic!("never named");
    }

    #[test]
    fn it_looks_seldom_while_the_loop_comes_and_goes_and_misses_nothing() {
        // A turn, or a rest, that begins so long after a look.
        for after_ms in [0, 1, 500, 999, 1500, 2999] {
            for rests in [false, true] {
                let (heartbeat, mut seen) = (Heartbeat::default(), Seen::default());
                let look_ns = 1000 * SECOND_NS;
                heartbeat.begin(look_ns - 2);
                heartbeat.end(look_ns - 1);
                assert_eq!(seen.look(heartbeat.beat(), look_ns), Health::Turns);
                assert_eq!(seen.period(), CALM_PERIOD);
                let begun_ns = look_ns + after_ms * 1_000_000;
                heartbeat.begin(begun_ns);
                if rests {
                    heartbeat.end(begun_ns);
                }
                let next_ns = look_ns + 3 * SECOND_NS;
                let named_ns = named_after_ns(&mut seen, &heartbeat, next_ns);
                let bound_ns = LONG_TURN_NS + if rests { REST_MAX_NS } else { 0 };
                let late_ns = named_ns - bound_ns;
                assert!(late_ns <= SECOND_NS, "{after_ms} {rests}: {late_ns}");
                assert_eq!(seen.period(), PERIOD);
            }
        }
    }

    #[test]
    fn a_process_that_was_stopped_has_not_hung() {
        let (heartbeat, mut seen) = (Heartbeat::default(), Seen::default());
        heartbeat.begin(1000 * SECOND_NS);
        assert_eq!(seen.look(heartbeat.beat(), 1000 * SECOND_NS), Health::Turns);
        // SIGSTOP in the middle of the turn, SIGCONT an hour later.
        let health = seen.look(heartbeat.beat(), 4600 * SECOND_NS);
        assert_eq!(health, Health::Turns);
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
        };
        let beat = Beat {
            since_ns: 0,
            part: Some(Part::OomScores),
        };
        let text = watch.describe(6 * SECOND_NS, beat);
        assert!(
            text.starts_with("the loop has been setting OOM scores for 6 s"),
            "{text}"
        );
        assert!(!text.contains('\n'), "{text}");
    }

    #[test]
    fn the_supervisor_hears_that_it_is_ready_when_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let received = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        received.set_nonblocking(true).unwrap();
        let heartbeat = Arc::new(Heartbeat::default());
        let watch = Watch {
            host: HostRoot::live(),
            loop_thread: rustix::thread::gettid(),
            heartbeat: Arc::clone(&heartbeat),
            supervisor: Some(Supervisor::at(&path.into(), None).unwrap()),
        };
        let (mut seen, mut is_ready) = (Seen::default(), false);
        let mut heard_after = || {
            heartbeat.end(now_ns());
            watch.look(&mut seen, &mut is_ready);
            let mut buffer = [0; 64];
            let hear = || {
                let length = received.recv(&mut buffer).ok()?;
                Some(buffer[..length].to_vec())
            };
            std::iter::from_fn(hear).collect::<Vec<_>>().join(&b' ')
        };
        assert_eq!(heard_after(), b"");
        assert_eq!(heard_after(), b"");
        heartbeat.ready();
        assert_eq!(heard_after(), b"READY=1 WATCHDOG=1");
        assert_eq!(heard_after(), b"WATCHDOG=1");
    }
}
