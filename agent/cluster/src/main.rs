//! The `plimsoll-cluster` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    plimsoll_cluster::cli::main()
}
