//! One `plimsoll-runtime` at a time: started when there is a question, killed when it does not answer, started again
//! later.

use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::time::{Duration, Instant};

use plimsoll_core::protocol::framing::LENGTH_BYTES;
use plimsoll_core::protocol::runtime_link::{
    CONTAINERS_MAX, FRAMING, FromRuntime, IMAGES_MAX, Inventory, PROTOCOL, Removal,
    RuntimeDirectories, ToRuntime,
};

use super::RuntimeSettings;
pub(super) use crate::host::child_program::ChildProgram as Connection;
use crate::host::panics;

/// Of one list, all frames together, bytes: what is read is locked in memory.
const LIST_BYTES_MAX: usize = 8 << 20;
/// After a failure it is not started again before this, and twice that after each further one.
const AGAIN_FIRST: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(60);

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// It says that it cannot be done.
    Refused(String),
    /// The runtime has not answered it in time, and may still do it.
    Late(String),
    /// Nothing sound came in time.
    Lost(String),
}

impl From<Failure> for String {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(why) | Failure::Late(why) | Failure::Lost(why) => why,
        }
    }
}

type Start = Box<dyn FnMut() -> io::Result<Connection> + Send>;

/// The container runtime, by way of `plimsoll-runtime`.
pub(super) struct Runtime {
    start: Start,
    connection: Option<Connection>,
    number: u64,
    /// Not before this, after failures; and how long after the next one.
    not_before: Option<Instant>,
    again: Duration,
    why: String,
}

impl Runtime {
    pub(super) fn new(settings: RuntimeSettings) -> Self {
        Self::started_by(Box::new(move || started(&settings)))
    }

    pub(super) fn started_by(start: Start) -> Self {
        Self {
            start,
            connection: None,
            number: 0,
            not_before: None,
            again: AGAIN_FIRST,
            why: String::new(),
        }
    }

    /// All that the runtime has.
    pub(super) fn list(&mut self, until: Instant) -> Result<Inventory, String> {
        let number = self.next_number();
        let question = ToRuntime::List { number };
        Ok(self.ask(&question, number, until)?.unwrap_or_default())
    }

    /// Where the runtime keeps what it has.
    pub(super) fn directories(&mut self, until: Instant) -> Result<RuntimeDirectories, String> {
        let number = self.next_number();
        let question = ToRuntime::Directories { number };
        let answer = self.ask(&question, number, until)?;
        Ok(answer.unwrap_or_default().directories)
    }

    /// Removes something.
    pub(super) fn remove(&mut self, removal: &Removal, until: Instant) -> Result<(), Failure> {
        let number = self.next_number();
        let removal = removal.clone();
        let question = ToRuntime::Remove { number, removal };
        self.ask(&question, number, until).map(|_| ())
    }

    /// After the first failure since an answer: waits until it may be started again. Whether that is before `until`.
    /// After further failures nothing waits.
    pub(super) fn restarts_by(&self, until: Instant) -> bool {
        let is_first = self.again == AGAIN_FIRST * 2;
        let at = self.not_before.filter(|at| is_first && *at < until);
        if let Some(at) = at {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
        }
        at.is_some()
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn ask(
        &mut self,
        question: &ToRuntime,
        number: u64,
        until: Instant,
    ) -> Result<Option<Inventory>, Failure> {
        let answered = self.exchange(question, number, until);
        match &answered {
            Err(Failure::Lost(why)) => {
                // It may be anywhere in an answer.
                self.connection = None;
                if self
                    .not_before
                    .is_none_or(|not_before| not_before <= Instant::now())
                {
                    self.not_before = Some(Instant::now() + self.again);
                    self.again = (self.again * 2).min(AGAIN_MAX);
                    self.why.clone_from(why);
                }
            }
            Ok(_) | Err(Failure::Refused(_) | Failure::Late(_)) => {
                (self.not_before, self.again) = (None, AGAIN_FIRST)
            }
        }
        answered
    }

    fn exchange(
        &mut self,
        question: &ToRuntime,
        number: u64,
        until: Instant,
    ) -> Result<Option<Inventory>, Failure> {
        if self
            .not_before
            .is_some_and(|not_before| Instant::now() < not_before)
        {
            return Err(Failure::Lost(self.why.clone()));
        }
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => {
                let started = (self.start)().map_err(|error| Failure::Lost(error.to_string()))?;
                let connection = self.connection.insert(started);
                connection.greet(until)?;
                connection
            }
        };
        connection.send(question, until)?;
        connection.answer(number, until)
    }
}

fn started(settings: &RuntimeSettings) -> io::Result<Connection> {
    let arguments = ["serve", "--runtime-endpoint"].map(OsStr::new);
    let socket = [settings.socket.as_os_str()];
    Connection::start(&settings.program, arguments.into_iter().chain(socket))
}

fn lost(error: &io::Error) -> Failure {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
    Failure::Lost(match error.kind() {
        WouldBlock | TimedOut => {
            "plimsoll-runtime has not answered in time, and was ended".to_owned()
        }
        UnexpectedEof | BrokenPipe | ConnectionReset => {
            "plimsoll-runtime has ended; its last line in the log of the agent says why".to_owned()
        }
        _ => format!("plimsoll-runtime: {error}"),
    })
}

impl Connection {
    fn greet(&mut self, until: Instant) -> Result<(), Failure> {
        match self.read(until, &mut 0)? {
            FromRuntime::Hello { protocol } if protocol == PROTOCOL => Ok(()),
            FromRuntime::Hello { protocol } => Err(Failure::Lost(format!(
                "plimsoll-runtime speaks protocol {protocol}, and this agent {PROTOCOL}; install programs of one release"
            ))),
            _ => Err(nonsense()),
        }
    }

    fn send(&mut self, question: &ToRuntime, until: Instant) -> Result<(), Failure> {
        let json =
            serde_json::to_vec(question).map_err(|error| Failure::Lost(error.to_string()))?;
        // A name in it came from the runtime, in a frame of the same bound.
        let frame = FRAMING.frame(&json);
        let frame = frame.map_err(|error| Failure::Refused(error.to_string()))?;
        let wait = left(until).map_err(|error| lost(&error))?;
        self.stream
            .set_write_timeout(Some(wait))
            .and_then(|()| self.stream.write_all(&frame))
            .map_err(|error| lost(&error))
    }

    /// The list, for a question of that kind.
    fn answer(&mut self, number: u64, until: Instant) -> Result<Option<Inventory>, Failure> {
        let mut inventory = Inventory::default();
        let mut bytes = 0;
        loop {
            match self.read(until, &mut bytes)? {
                FromRuntime::Container { container }
                    if inventory.containers.len() < CONTAINERS_MAX =>
                {
                    inventory.containers.push(*container);
                }
                FromRuntime::Image { image } if inventory.images.len() < IMAGES_MAX => {
                    inventory.images.push(*image);
                }
                FromRuntime::Listed {
                    number: of,
                    unix_ns,
                    left_out,
                    images_left_out,
                    mounts_unread,
                    directories,
                } if of == number => {
                    return Ok(Some(Inventory {
                        unix_ns,
                        left_out,
                        images_left_out,
                        mounts_unread,
                        directories,
                        ..inventory
                    }));
                }
                FromRuntime::Removed { number: of } if of == number => return Ok(None),
                FromRuntime::Failed {
                    number: of,
                    why,
                    is_late,
                } if of == number => {
                    return Err(match is_late {
                        true => Failure::Late(why),
                        false => Failure::Refused(why),
                    });
                }
                _ => return Err(nonsense()),
            }
        }
    }

    fn read(&mut self, until: Instant, bytes: &mut usize) -> Result<FromRuntime, Failure> {
        let mut length = [0; LENGTH_BYTES];
        self.fill(&mut length, until)?;
        let announced = |what: String| Failure::Lost(format!("plimsoll-runtime announced {what}"));
        let length = FRAMING.announced(length);
        let length = length.map_err(|error| announced(error.to_string()))?;
        *bytes = bytes.saturating_add(length);
        if *bytes > LIST_BYTES_MAX {
            let what = format!("{bytes} bytes in one answer, and {LIST_BYTES_MAX} are the most");
            return Err(announced(what));
        }
        let mut frame = vec![0; length];
        self.fill(&mut frame, until)?;
        let body = FRAMING.body(&frame).map_err(|_| nonsense())?;
        panics::guard(|| serde_json::from_slice(body))
            .map_err(|panicked| Failure::Lost(panicked.to_string()))?
            .map_err(|_| nonsense())
    }

    /// Reads so much, by then.
    fn fill(&mut self, mut buffer: &mut [u8], until: Instant) -> Result<(), Failure> {
        while !buffer.is_empty() {
            let read = left(until)
                .and_then(|wait| self.stream.set_read_timeout(Some(wait)))
                .and_then(|()| self.stream.read(buffer));
            match read {
                Ok(0) => return Err(lost(&io::ErrorKind::UnexpectedEof.into())),
                Ok(read) => buffer = &mut std::mem::take(&mut buffer)[read..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(&error)),
            }
        }
        Ok(())
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

fn nonsense() -> Failure {
    Failure::Lost(
        "plimsoll-runtime sent what is no answer, and was ended; install programs of one release"
            .to_owned(),
    )
}
