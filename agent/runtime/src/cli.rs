//! The command line.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use plimsoll_core::policy::disk::unused::{ImageBook, unused_images};
use plimsoll_core::protocol::runtime_link::{NRI_SOCKET, RUNTIME_SOCKETS};
use plimsoll_core::shown::line;
use serde_json::json;
use tokio::net::UnixStream;

use crate::cri::Runtime;
use crate::{frames, limits, nri, pod_resources, serve, show};

const AFTER_HELP: &str = "\
Examples:
  plimsoll-runtime list images                      what is on the node, and what may be removed
  plimsoll-runtime list containers --output json
  plimsoll-runtime list devices                     CPUs, memory and devices that the kubelet has given to containers
  plimsoll run --kubernetes --runtime-endpoint /run/containerd/containerd.sock
                                                    the agent starts it by itself

Exit status: 0 done, or the agent has ended; 1 the runtime or the kubelet does not answer; 2 wrong usage.";

/// Asks the container runtime and the kubelet of a node on behalf of plimsoll-agent
#[derive(Debug, Parser)]
#[command(name = "plimsoll-runtime", version, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what the runtime has, or what the kubelet has given
    List {
        /// What to list
        #[arg(value_enum)]
        what: What,
        /// Socket of the container runtime [default: that of containerd, CRI-O, k3s or cri-dockerd]
        #[arg(long, value_name = "PATH", value_parser = endpoint)]
        runtime_endpoint: Option<PathBuf>,
        /// Socket on which the kubelet lists what it has given (for devices)
        #[arg(long, value_name = "PATH", default_value = pod_resources::SOCKET, value_parser = endpoint)]
        pod_resources: PathBuf,
        /// Output format
        #[arg(short, long, value_enum, default_value = "text")]
        output: Output,
    },
    /// Report what the kubelet has assigned to containers; plimsoll-agent starts it, with a socket as standard input
    Resources {
        /// Socket on which the kubelet lists what it has given
        #[arg(long, value_name = "PATH", default_value = pod_resources::SOCKET, value_parser = endpoint)]
        pod_resources: PathBuf,
    },
    /// Answer the agent's questions about images and containers; plimsoll-agent starts it, with a socket as standard
    /// input
    Serve {
        /// Socket of the container runtime
        #[arg(long, value_name = "PATH", value_parser = endpoint)]
        runtime_endpoint: PathBuf,
    },
    /// NRI plugin: apply the agent's decisions when the runtime creates a container; plimsoll-agent starts it, with a
    /// socket as standard input
    Nri {
        /// Socket on which the runtime takes plugins (NRI)
        #[arg(long, value_name = "PATH", default_value = NRI_SOCKET, value_parser = endpoint)]
        nri_socket: PathBuf,
        /// Socket of the container runtime, which tells of containers that start and end
        #[arg(long, value_name = "PATH", value_parser = endpoint)]
        runtime_endpoint: Option<PathBuf>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Containers of pods
    Containers,
    /// Images, and whether they may be removed
    Images,
    /// File systems of the runtime, and what it has there
    Filesystems,
    /// CPUs, memory and devices that the kubelet has given to containers
    Devices,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// A socket, as the kubelet's option has it (`unix:///run/…`) or as a path.
fn endpoint(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text.strip_prefix("unix://").unwrap_or(text));
    match path.is_absolute() {
        true => Ok(path.to_owned()),
        false => {
            Err("an absolute path is needed, such as /run/containerd/containerd.sock".to_owned())
        }
    }
}

/// Reads the arguments, runs, prints the error.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| {
            let ended = runtime.block_on(run(cli.command));
            runtime.shutdown_background();
            ended
        });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plimsoll-runtime: {}", line(&error));
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<(), String> {
    match command {
        Command::Serve { runtime_endpoint } => {
            let agent = agent("--runtime-endpoint")?;
            let served = serve::run(&runtime_endpoint, agent).await;
            served.map_err(|error| error.to_string())
        }
        Command::Resources { pod_resources } => {
            let agent = agent("--node-resource-topology")?;
            let served = serve::resources::run(&pod_resources, agent).await;
            served.map_err(|error| error.to_string())
        }
        Command::Nri {
            nri_socket,
            runtime_endpoint,
        } => {
            let agent = agent("--runtime-endpoint")?;
            let served = nri::run(&nri_socket, runtime_endpoint.as_deref(), agent).await;
            served.map_err(|error| error.to_string())
        }
        Command::List {
            what: What::Devices,
            pod_resources,
            output,
            ..
        } => {
            let resources = pod_resources::list(&pod_resources).await;
            let resources = resources.map_err(|error| error.to_string())?;
            print(output, &json!(resources), || show::resources(&resources))
        }
        Command::List {
            what,
            runtime_endpoint,
            output,
            ..
        } => {
            let socket = runtime_endpoint.map_or_else(found, Ok)?;
            list(what, &socket, output).await
        }
    }
}

/// The agent, which has started this with an option: from now on it is bounded as a part of it.
fn agent(option: &str) -> Result<UnixStream, String> {
    if let Err(error) = limits::take() {
        eprintln!("plimsoll-runtime: its memory is not bounded: {error}");
    }
    frames::agent().map_err(|error| {
        format!("standard input is not the agent's socket ({error}); `plimsoll run {option}` starts this")
    })
}

fn found() -> Result<PathBuf, String> {
    let mut sockets = RUNTIME_SOCKETS.iter().map(PathBuf::from);
    sockets.find(|socket| socket.exists()).ok_or_else(|| {
        let sockets = RUNTIME_SOCKETS.join(", ");
        format!(
            "no container runtime was found at {sockets}; name its socket with --runtime-endpoint"
        )
    })
}

async fn list(what: What, socket: &Path, output: Output) -> Result<(), String> {
    let text = |error: crate::connection::CallError| error.to_string();
    let runtime = Runtime::open(socket).await.map_err(text)?;
    if what == What::Filesystems {
        let all = runtime.file_systems().await.map_err(text)?;
        let document = json!({"runtime": runtime.version(), "filesystems": all});
        return print(output, &document, || show::file_systems(&all));
    }
    let inventory = runtime.inventory().await.map_err(text)?;
    if inventory.left_out > 0 {
        eprintln!(
            "plimsoll-runtime: {} containers could not be read and are not shown; plimsoll removes nothing while there are any",
            inventory.left_out
        );
    }
    if inventory.mounts_unread > 0 {
        eprintln!(
            "plimsoll-runtime: of {} containers it is not known which images they have as volumes; plimsoll removes no image while there are any",
            inventory.mounts_unread
        );
    }
    if inventory.images_left_out > 0 {
        eprintln!(
            "plimsoll-runtime: {} images could not be read; they are not shown, and not removed",
            inventory.images_left_out
        );
    }
    if what == What::Containers {
        let document = json!({"runtime": runtime.version(), "containers": inventory.containers, "leftOut": inventory.left_out});
        return print(output, &document, || {
            show::containers(&inventory.containers)
        });
    }
    let mut book = ImageBook::default();
    book.observe(&inventory, 0);
    let unused = unused_images(&inventory, &book, 0);
    let all: Vec<_> = inventory
        .images
        .iter()
        .map(|image| {
            let is_unused = unused.iter().any(|unused| unused.id == image.id);
            let used = match (image.is_pinned, is_unused) {
                (true, _) => "pinned",
                (false, true) => "unused",
                (false, false) => "in use",
            };
            (image, used)
        })
        .collect();
    let images: Vec<_> = all
        .iter()
        .map(|(image, used)| json!({"id": image.id, "names": image.names, "bytes": image.bytes, "use": used}))
        .collect();
    let document = json!({"runtime": runtime.version(), "images": images, "leftOut": inventory.images_left_out});
    print(output, &document, || show::images(&all))
}

fn print(
    output: Output,
    document: &serde_json::Value,
    text: impl FnOnce() -> String,
) -> Result<(), String> {
    let text = match output {
        Output::Text => text(),
        Output::Json => format!("{document}\n"),
    };
    match io::stdout().write_all(text.as_bytes()) {
        // The reader has closed the pipe: it has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| format!("cannot write to standard output: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_arguments_are_well_formed() {
        Cli::command().debug_assert();
        assert_eq!(
            endpoint("unix:///run/x.sock").unwrap(),
            Path::new("/run/x.sock")
        );
        assert!(endpoint("tcp://1.2.3.4").is_err());
    }
}
