//! Log lines of the programs, where the object has any: one that `cargo xtask build-ebpf --log` made.
//!
//! They come through a ring of their own and become lines of this process's log, at the level that the program gave
//! them. The object inside this program has none, and then nothing here is ever called.
//!
//! `plimsoll events --object FILE` reads them. `plimsoll run` does not: it loads only the object inside its program,
//! because an agent that evicts must not run programs that format text at each charge. To see what the programs do on a
//! node with a running agent, run `plimsoll events --object FILE` beside it; it has maps and counts of its own.

use aya::Ebpf;
use aya_log::EbpfLogger;
use tracing::{debug, error, info, trace, warn};

/// Hands lines on to `tracing`.
struct Lines;

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        // The subscriber says which are shown.
        true
    }

    fn log(&self, line: &log::Record<'_>) {
        let (program, said) = (line.target(), line.args());
        match line.level() {
            log::Level::Error => error!(program, "{said}"),
            log::Level::Warn => warn!(program, "{said}"),
            log::Level::Info => info!(program, "{said}"),
            log::Level::Debug => debug!(program, "{said}"),
            log::Level::Trace => trace!(program, "{said}"),
        }
    }

    fn flush(&self) {}
}

/// The ring of lines.
pub(super) struct ProgramLog(EbpfLogger<Lines>);

impl ProgramLog {
    /// `None` where the programs log nothing.
    pub(super) fn of(ebpf: &mut Ebpf) -> Option<Self> {
        // Its only other error is a map of another type under that name, which no object has.
        EbpfLogger::init_with_logger(ebpf, Lines).ok().map(Self)
    }

    /// Says what the programs have said since.
    pub(super) fn flush(&mut self) {
        self.0.flush();
    }
}
