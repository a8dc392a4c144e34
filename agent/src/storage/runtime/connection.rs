//! One `plimsoll-runtime` at a time: started when there is a question, killed when it does not answer, started again
//! later.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::time::Instant;

use plimsoll_core::protocol::backoff::Backoff;
use plimsoll_core::protocol::runtime_link::{
    CONTAINERS_MAX, FRAMING, FromRuntime, IMAGES_MAX, Inventory, PROTOCOL, Removal,
    RuntimeDirectories, ToRuntime,
};

use super::RuntimeSettings;
pub(super) use crate::host::child_program::ChildProgram as Connection;
use crate::host::runtime_program::{Lost, RESTARTS, left, parsed, same_protocol};

/// Of one list, all frames together, bytes: what is read is locked in memory.
const LIST_BYTES_MAX: usize = 8 << 20;

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

impl From<Lost> for Failure {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost.to_string())
    }
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
    /// Not before this, after failures.
    not_before: Option<Instant>,
    restarts: Backoff,
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
            restarts: RESTARTS,
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
        let is_first = self.restarts.failures() == 1;
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
                    self.not_before = Some(Instant::now() + self.restarts.failed());
                    self.why.clone_from(why);
                }
            }
            Ok(_) | Err(Failure::Refused(_) | Failure::Late(_)) => {
                self.not_before = None;
                self.restarts.reset();
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

impl Connection {
    fn greet(&mut self, until: Instant) -> Result<(), Lost> {
        match self.read(until, &mut 0)? {
            FromRuntime::Hello { protocol } => same_protocol(protocol, PROTOCOL),
            _ => Err(Lost::Nonsense),
        }
    }

    fn send(&mut self, question: &ToRuntime, until: Instant) -> Result<(), Failure> {
        let json =
            serde_json::to_vec(question).map_err(|error| Failure::Lost(error.to_string()))?;
        // A name in it came from the runtime, in a frame of the same bound.
        let frame = FRAMING.frame(&json);
        let frame = frame.map_err(|error| Failure::Refused(error.to_string()))?;
        let wait = left(until)?;
        let written = self.stream.set_write_timeout(Some(wait));
        let written = written.and_then(|()| self.stream.write_all(&frame));
        written.map_err(|error| Lost::from(error).into())
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
                _ => return Err(Lost::Nonsense.into()),
            }
        }
    }

    /// The next frame; `bytes` of this answer have come.
    fn read(&mut self, until: Instant, bytes: &mut usize) -> Result<FromRuntime, Lost> {
        let frame = self.read_frame(&FRAMING, until)?;
        *bytes = bytes.saturating_add(frame.len());
        if *bytes > LIST_BYTES_MAX {
            return Err(Lost::LongAnswer {
                bytes: *bytes,
                bytes_max: LIST_BYTES_MAX,
            });
        }
        parsed(&FRAMING, &frame)
    }
}
