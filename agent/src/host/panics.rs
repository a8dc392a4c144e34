//! Where a panic ends: with one request, on threads that read what strangers write, and with the agent everywhere else.
//!
//! **Problem.** Listeners, parsers and walkers read text from clients, files and pods. A mistake in one of them that
//! panics must not end the agent: it would leave pods held at `memory.high` and pinned programs, and whoever found the
//! input could repeat it. A panic of the loop must end it at once: it has half-made changes, and a supervisor starts
//! another, which undoes them from the ledgers. **Approach.** The release unwinds. [`install`] sets a hook that ends
//! the process, as `panic = "abort"` would, unless the thread is inside a [`guard`]; there the panic is printed and
//! counted, and the guarded call returns [`Panicked`]. The hook decides before anything unwinds.

use std::cell::Cell;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use super::shown::line;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Panics that ended only what they happened in.
static CAUGHT: AtomicU64 = AtomicU64::new(0);

/// What was guarded has panicked. It has been printed and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a mistake in plimsoll ended this request; please report the panic in its log")]
pub struct Panicked;

/// How many panics ended only the request in which they happened, since the start.
pub fn caught() -> u64 {
    CAUGHT.load(Ordering::Relaxed)
}

/// Runs `work`, whose panic ends only `work`. What it changes outside must be dropped or made anew when it has
/// panicked.
///
/// # Errors
/// [`Panicked`].
pub fn guard<R>(work: impl FnOnce() -> R) -> Result<R, Panicked> {
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(outer);
    result.map_err(|_| Panicked)
}

/// From now on a panic outside of [`guard`] ends the process.
pub fn install() {
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("?").to_owned();
        let guarded = GUARDED.get();
        let fate = if guarded {
            "ends this request alone"
        } else {
            "ends the agent"
        };
        let text = format!("plimsoll: thread {name}: {info}; {fate}; please report it");
        // Standard error may be closed, and this must not panic.
        writeln!(std::io::stderr(), "{}", line(&text)).ok();
        if guarded {
            CAUGHT.fetch_add(1, Ordering::Relaxed);
        } else {
            std::process::abort();
        }
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn what_panics_in_a_guard_is_an_error_and_the_thread_goes_on() {
        assert_eq!(guard(|| 1), Ok(1));
        assert_eq!(guard(|| -> u8 { panic!("on purpose") }), Err(Panicked));
        assert_eq!(
            guard(|| guard(|| -> u8 { panic!("on purpose") })),
            Ok(Err(Panicked))
        );
        assert!(!GUARDED.get());
    }

    /// The status of this test program, run for one of the cases below.
    fn run(case: &str) -> std::process::ExitStatus {
        let case = format!("host::panics::tests::{case}");
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &case, "--ignored", "--nocapture"])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap()
    }

    #[test]
    fn a_panic_elsewhere_ends_the_process() {
        assert!(run("panics_in_a_guard").success());
        assert_eq!(
            run("panics_on_another_thread").signal(),
            Some(libc::SIGABRT)
        );
    }

    #[test]
    #[ignore = "a case of a_panic_elsewhere_ends_the_process"]
    fn panics_in_a_guard() {
        install();
        assert_eq!(guard(|| -> u8 { panic!("on purpose") }), Err(Panicked));
        assert_eq!(caught(), 1);
    }

    #[test]
    #[ignore = "a case of a_panic_elsewhere_ends_the_process"]
    fn panics_on_another_thread() {
        install();
        std::thread::spawn(|| panic!("on purpose")).join().ok();
    }
}
