//! What a panic ends: the process, or only the work of a thread that answers strangers.
//!
//! **Problem.** What clients send is hostile, and a mistake in the code that answers them must not end the agent, which would leave the node
//! unwatched. A mistake anywhere else must end it: a thread that is silently gone is worse than a restart.
//! **Approach.** Panics unwind (`panic = "unwind"`), and the hook ends the process (`abort`) unless the thread has said that it contains its panics. An
//! event loop catches those of its tasks, so that one client is lost and the others are served.

use std::cell::Cell;

thread_local! {
    static CONTAINS: Cell<bool> = const { Cell::new(false) };
}

/// From now on a panic ends the process, after its message, but for threads that called [`contain`].
pub fn abort_unless_contained() {
    let message = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        message(info);
        if !CONTAINS.get() {
            std::process::abort();
        }
    }));
}

/// This thread lives on after a panic of a part of its work, or ends by itself with an error.
pub fn contain() {
    CONTAINS.set(true);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    const INSIDE: &str = "PLIMSOLL_TEST_PANICS";

    #[test]
    fn only_what_is_contained_does_not_end_the_process() {
        if std::env::var_os(INSIDE).is_some() {
            abort_unless_contained();
            let contained = std::thread::spawn(|| {
                contain();
                panic!("of a client");
            });
            assert!(contained.join().is_err());
            println!("still here");
            let other = std::thread::spawn(|| panic!("of the agent"));
            other.join().ok();
            println!("too far");
            return;
        }
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg("host::panics::tests::only_what_is_contained_does_not_end_the_process")
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(
            said.contains("still here") && !said.contains("too far"),
            "{said}"
        );
        assert_eq!(child.status.signal(), Some(libc::SIGABRT), "{said}");
    }
}
