//! The `plimsoll` command: reads the arguments and prints the error, nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    plimsoll::commands::cli::main()
}
