//! What reads one file and may fail: the other end of [`Reader`](super::Reader).

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Reason, Symbolized, Symbolizer};
use rustix::process::{
    Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit,
};

use super::{NO_NAME, READ, TOO_LARGE, UNREADABLE};
use crate::names::demangle::name_of;

/// What starts the program as a child; nobody types it.
pub const ARGUMENT: &str = "names-of-standard-input";

/// Larger files are left without names: their symbols alone may be more than the machine has to spare.
const FILE_BYTES_MAX: u64 = 512 << 20;
/// Memory of its own at most, bytes: the file is only mapped, and each of its symbols takes 8. With more than some 11
/// million a file has no names.
const DATA_BYTES_MAX: u64 = 96 << 20;
/// CPU time at most, seconds: where nobody is left to kill it.
const CPU_SECONDS_MAX: u64 = 20;
/// The first that the kernel kills when memory runs out, before any pod and the session.
const OOM_SCORE_ADJ: &str = "1000";
/// Where the file is. It is opened anew: what was given is only a place.
const FILE: &str = "/proc/self/fd/0";
/// Offsets that are looked up at one time.
const AT_ONCE: usize = 64;

/// Whether this process is a child, by its arguments.
#[must_use]
pub fn asked_for() -> bool {
    std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == ARGUMENT)
}

/// Reads the file at standard input, and answers on the socket at standard output.
#[must_use]
pub fn run() -> ExitCode {
    let served = bound().and_then(|()| serve());
    // Whoever asked is gone, or sees that there is no answer.
    served.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

/// Bounds what it can take, and ends with the session.
fn bound() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // Refused where nothing is mounted to write to; the other bounds hold.
    std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ).ok();
    for (resource, most) in [
        (Resource::Data, DATA_BYTES_MAX),
        (Resource::Cpu, CPU_SECONDS_MAX),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
    ] {
        let hard = getrlimit(resource).maximum;
        let most = Some(hard.map_or(most, |hard| hard.min(most)));
        setrlimit(
            resource,
            Rlimit {
                current: most,
                maximum: most,
            },
        )?;
    }
    Ok(())
}

fn serve() -> io::Result<()> {
    let stream = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
    let mut question = BufReader::new(&stream);
    let mut number = || -> io::Result<u64> {
        let mut bytes = [0; 8];
        question.read_exact(&mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    };
    let count = number()?;
    let offsets = (0..count)
        .map(|_| number())
        .collect::<io::Result<Vec<u64>>>()?;
    let mut answer = BufWriter::new(&stream);
    if std::fs::metadata(FILE)?.len() > FILE_BYTES_MAX {
        answer.write_all(&[TOO_LARGE])?;
        return answer.flush();
    }
    let source = Source::Elf(Elf::new(FILE));
    let symbolizer = Symbolizer::new();
    let mut is_first = true;
    for offsets in offsets.chunks(AT_ONCE) {
        // What is wrong with the file is an error of each of its offsets.
        let is_wrong =
            |symbol: &Symbolized<'_>| matches!(symbol, Symbolized::Unknown(Reason::IgnoredError));
        let symbols = symbolizer
            .symbolize(&source, Input::FileOffset(offsets))
            .ok()
            .filter(|symbols| !is_first || !symbols.iter().all(is_wrong));
        if is_first {
            let status = if symbols.is_some() { READ } else { UNREADABLE };
            answer.write_all(&[status])?;
            is_first = false;
        }
        let Some(symbols) = symbols else {
            break;
        };
        for symbol in symbols {
            let Symbolized::Sym(symbol) = symbol else {
                answer.write_all(&NO_NAME.to_ne_bytes())?;
                continue;
            };
            let name = name_of(&symbol.name);
            // No longer than NAME_BYTES_MAX.
            answer.write_all(&(name.len() as u16).to_ne_bytes())?;
            answer.write_all(name.as_bytes())?;
        }
    }
    answer.flush()
}
