//! What the tests of `plimsoll-cluster` share: a real API server, the agent's end of the socket, the program itself.
#![allow(
    dead_code,
    reason = "each program of tests takes what it needs of this"
)]

pub(crate) mod agent;
pub(crate) mod program;
pub(crate) mod server;
pub(crate) mod tls;

#[path = "../../../tests/notes/mod.rs"]
pub(crate) mod notes;

use std::io::Write as _;
use std::sync::LazyLock;
use std::time::Duration;

use tokio::runtime::Runtime;

/// One for all tests of a program: the connection to a shared server lives in it.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// Runs a test.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    RUNTIME.block_on(test)
}

/// Waits for progress, which always comes or the test is wrong: what waits for half an hour says what it waited for. It
/// looks seldom after a while: on a node with one slow CPU looking is work. Each few minutes it says so where the
/// harness does not keep it: a stage of tests that says nothing for long is ended.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let mut pause = Duration::from_millis(20);
    for at in 1..=6_000 {
        if let Some(found) = look().await {
            return found;
        }
        if at % 1_000 == 0 {
            let _closed = writeln!(std::io::stderr(), "still waits for: {what}");
        }
        tokio::time::sleep(pause).await;
        pause = pause.mul_f32(1.1).min(Duration::from_millis(300));
    }
    panic!("nothing comes of waiting for: {what}");
}
