//! The `plimsoll-runtime` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    plimsoll_runtime::cli::main()
}
