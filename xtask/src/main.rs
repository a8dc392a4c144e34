//! The project's own commands. `cargo xtask --help` lists them.
#![forbid(unsafe_code)]

mod apt;
mod architecture;
mod bench;
mod busybox;
mod clippy;
mod conformance;
mod demo;
mod deny;
mod deploy;
mod ebpf;
mod fuzz;
mod fuzz_parsers;
mod guest;
mod image;
mod interrupt;
mod kernel;
mod kubernetes;
mod lock;
mod miri;
mod package;
mod paths;
mod process;
mod program;
mod progress;
mod release;
mod remap;
mod schedulable_time;
mod setup;
mod simulate;
mod stress;
mod test;
mod vm;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  cargo xtask setup                                   fetch and build all that the commands need
  cargo xtask build-ebpf                              the BPF object, with instructions per program
  cargo xtask vm --kernel 6.1                         a shell in a guest
  cargo xtask vm --topology numa2 --cmd 'plimsoll check'
  cargo xtask vm --arch arm64 --cmd 'plimsoll check'  the same on 64-bit Arm, cross-compiled and emulated
  cargo xtask demo                                    pods, a leak, an eviction: live (--without: with the agent off)
  cargo xtask bench reaction --peers earlyoom,plimsoll
  cargo xtask bench signals --kernel 7.2              what each signal costs, and how soon it is seen
  cargo xtask test                                    each behaviour once, and on three kernels what depends on the kernel
  cargo xtask test --all                              every test on every machine
  cargo xtask test --cluster                          beside containerd and a kubelet, on a node of their own
  cargo xtask conformance tests/vectors/quantity.jsonl
  cargo xtask fuzz --seconds 600                      random histories against the decision engine
  cargo xtask fuzz-parsers --seconds 60 mounts btf    foreign bytes against what reads them, guided by coverage
  cargo xtask deploy-check                            what deploy/ has, by Kubernetes' own tools
  cargo xtask deny                                    licences, names, sources and advisories of dependencies
  cargo xtask miri                                    shared memory and decoding, interpreted
  cargo xtask image                                   the container image for amd64 and arm64, an OCI layout
  cargo xtask package                                 a Debian package
  cargo xtask release --verify                        archive, bill of materials, checksums; built twice and compared
  cargo xtask kubernetes up                           etcd and kube-apiserver on loopback (test, node, down; --binaries DIR)
  cargo xtask simulate --seed 7 --hours 24            the whole agent against a model of the machine
  cargo xtask stress --seconds 5                      memory stressors of stress-ng as pods, 5 s of guest time each

Exit status: 0 success, 1 failure, 2 wrong usage. `vm` ends with the guest command's status, 124 when
its time was up, 125 when the guest ended without one.

Environment: PLIMSOLL_CACHE (kernels and Debian packages; default ~/.cache/plimsoll), PLIMSOLL_NIGHTLY (toolchain for BPF).";

/// The project's own commands
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Put everything in place that the other commands need (they also do it themselves)
    Setup {
        /// Look for newer kernels, too
        #[arg(long)]
        refresh: bool,
    },
    /// Build the BPF object for all kernels and print each program's instructions
    BuildEbpf {
        /// Make one whose programs write log lines instead, for `plimsoll events --object`; the one in use stays as it
        /// is
        #[arg(long)]
        log: bool,
    },
    /// Run a command or a shell in a guest
    Vm(Box<vm::VmArgs>),
    /// Watch the agent at work on a real kernel; exit status 1 when anything went wrong
    Demo(demo::DemoArgs),
    /// Measure, in guests whose time counts instructions
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Run all tests and print one summary line
    Test {
        /// Leave out the guests
        #[arg(long)]
        quick: bool,
        /// Every test on every machine that it fits: three kernels, cgroup v1 and v2, NUMA, lockdown, no PSI; a minute
        /// of each fuzz target, Miri, dependencies; hours
        #[arg(long, conflicts_with = "quick")]
        all: bool,
        /// Run only the tests on a node with containerd and a kubelet (1.20.2, built from Debian's source the first
        /// time), in a machine of their own; no root, no emulator
        #[arg(long, conflicts_with_all = ["quick", "all"])]
        cluster: bool,
    },
    /// Check golden vector files (names: see tests/vectors); exit status 3 for a file that it does not know
    Conformance {
        /// Vector files, JSON lines
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Ask cargo-deny whether licences, names and sources of dependencies are what deny.toml allows, and for
    /// advisories; builds it first, which takes minutes
    Deny,
    /// Whether Kustomize and Helm build the same objects from deploy/, and alerts are raised as tested
    DeployCheck,
    /// Interpret what reads memory that the kernel writes too, for accesses that Rust does not allow; minutes
    Miri,
    /// Make what is handed out: programs, BPF objects, bill of materials, checksums, one archive; with --verify twice,
    /// and compared
    Release(release::ReleaseArgs),
    /// Make the container image of deploy/, as an OCI layout
    Image(image::ImageArgs),
    /// Make a Debian package for one machine without a cluster
    Package(package::PackageArgs),
    /// A real API server on loopback, without a VM: for the tests of plimsoll-cluster, and for trying things
    #[command(subcommand)]
    Kubernetes(kubernetes::KubernetesCommand),
    /// The whole agent against a model of the machine, in virtual time (arguments: cargo xtask simulate -- --help)
    Simulate {
        /// For the program, such as --seed 7
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Every memory stressor of stress-ng as a pod, beside pods that mean no harm; exit status 1 when the kernel killed
    /// or an innocent pod died
    Stress(stress::StressArgs),
    /// Random and hostile histories against the decision engine (arguments: cargo xtask fuzz -- --help)
    Fuzz {
        /// For the program, such as --seconds 600
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Foreign bytes, guided by coverage, against everything that reads them; exit status 1 with a find
    FuzzParsers {
        /// How long for each target; 0 only builds
        #[arg(long, value_name = "N", default_value_t = 60)]
        seconds: u32,
        /// Then put the smallest inputs that reach everything that was reached into tests/fuzz/seeds
        #[arg(long)]
        keep: bool,
        /// Targets, the folders of tests/fuzz/seeds [default: all]
        #[arg(value_name = "TARGET")]
        targets: Vec<String>,
    },
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let result = interrupt::install().and_then(|()| run(command));
    interrupt::finish();
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            progress::say("error", format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<u8> {
    match command {
        Command::Setup { refresh } => setup::all(refresh)?,
        Command::BuildEbpf { log: true } => println!(
            "PLIMSOLL_LOG=debug plimsoll events --object {}",
            ebpf::build_with_log()?.display()
        ),
        Command::BuildEbpf { log: false } => print!("{}", ebpf::table(&ebpf::build()?)),
        Command::Vm(args) => return vm::run(*args),
        Command::Demo(args) => return demo::run(&args),
        Command::Bench(command) => return bench::run(&command),
        Command::Test { cluster: true, .. } => return test::run_cluster(),
        Command::Test { quick, all, .. } => return test::run(quick, all),
        Command::Conformance { files } => return conformance::run(&files),
        Command::Deny => return deny::run(),
        Command::DeployCheck => deploy::check(&deploy::Tools::get()?)?,
        Command::Miri => miri::run()?,
        Command::Release(args) => return release::run(&args),
        Command::Image(args) => image::run(&args)?,
        Command::Package(args) => package::run(&args)?,
        Command::Kubernetes(command) => return kubernetes::run(&command),
        Command::Simulate { arguments } => return simulate::run(&arguments),
        Command::Stress(args) => return stress::run(&args),
        Command::Fuzz { arguments } => return fuzz::run(&arguments),
        Command::FuzzParsers {
            seconds,
            keep,
            targets,
        } => return fuzz_parsers::run(seconds, keep, &targets),
    }
    Ok(0)
}
