//! Random histories against the engine, for as long as one likes.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use tests::fuzz::{Tally, run};

/// Feeds random and hostile histories to the decision engine and checks its rules after each event
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  cargo xtask fuzz --seconds 600
  cargo xtask fuzz --seed 1234 --cases 1        one history again

Exit status: 0 every rule held; 1 one was broken (the message says which, and the seed).")]
struct Args {
    /// Stop after this time
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Stop after so many histories
    #[arg(long)]
    cases: Option<u64>,
    /// The first history; the next ones count up from it
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let begin = Instant::now();
    let limit = Duration::from_secs(args.seconds);
    let mut said = Duration::ZERO;
    let mut tally = Tally::default();
    let mut seed = args.seed;
    while begin.elapsed() < limit && args.cases.is_none_or(|cases| tally.cases < cases) {
        if let Err(broken) = run(seed, &mut tally) {
            eprintln!("fuzz: {broken}");
            return ExitCode::FAILURE;
        }
        seed = seed.wrapping_add(1);
        if begin.elapsed() - said >= Duration::from_secs(10) {
            said = begin.elapsed();
            eprintln!("{:>6} s  {}", said.as_secs(), line(&tally));
        }
    }
    println!(
        "{} in {} s, every rule held",
        line(&tally),
        begin.elapsed().as_secs()
    );
    ExitCode::SUCCESS
}

fn line(tally: &Tally) -> String {
    let Tally {
        cases,
        events,
        mutated,
        decisions,
        evictions,
    } = tally;
    format!(
        "{cases} histories, {events} events ({mutated} with odd figures), {decisions} decisions, {evictions} evictions"
    )
}
