//! `plimsoll place`: where pods would run on a described machine, from files. No agent, no root, no cgroup.
//!
//! Manifests are read, defaulted and validated as `plimsoll run` does it, the configuration is a KubeletConfiguration,
//! and the pods are placed one after the other by the code that places them on a node
//! ([`plimsoll_core::placement::node`]). This module only asks and shows.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap::builder::PossibleValuesParser;
use plimsoll_core::explain;
use plimsoll_core::placement::assignments::Assignments;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::machine::Machine;
use plimsoll_core::placement::node::{
    CpuManagerPolicy, NodePlacement, PlacementError, PlacementSettings,
};

use crate::commands::exit_status::{self, CommandError};
use crate::host::HostRoot;
use crate::host::output::{Drawing, OutputArgs, StdoutError, Style, json, print};
use crate::host::shown::page;
use crate::host::topology::{TopologyReadError, read_machine};
use crate::input::config::{Config, ConfigError, ConfigFile, EvictionFlags};
use crate::input::devices::{self, DevicesError};
use crate::input::error::InputError;
use crate::input::machine::{self, MachineFileError};
use crate::input::manifests::{gather, stdin_once};
use crate::show::topology::holders::Holders;

/// Show which CPUs and NUMA nodes pods would get, on this or a described machine
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll place -f pods.yaml                                   on this machine, with CPU 0 reserved
  plimsoll place -f pods.yaml --machine machine.json --config kubelet.yaml
  plimsoll place -f pods.yaml --machine machine.json --topology-manager-policy single-numa-node --why
  plimsoll place -f pods.yaml --machine machine.json --output svg > placed.svg
  plimsoll topology --output json > machine.json                a description to start from

devices.json: {\"vendor.example/nic\": {\"devices\": [{\"id\": \"nic0\", \"numaNodes\": \"0\"}]}}, or the allocatable resources of the kubelet's PodResources API:
{\"devices\": [{\"resource_name\": \"vendor.example/nic\", \"device_ids\": [\"nic0\"], \"topology\": {\"nodes\": [{\"ID\": 0}]}}]}

Pods are placed in the order of the files. Without --config, cpuManagerPolicy is static and topologyManagerPolicy is \
best-effort.")]
pub struct PlaceArgs {
    /// Pod manifests: a file, a directory, or - for standard input; may be repeated
    #[arg(short, long = "file", value_name = "PATH", required = true)]
    pub files: Vec<PathBuf>,
    /// Machine description, as from `plimsoll topology --output json` [default: this machine]
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Configuration file: a KubeletConfiguration, YAML or JSON
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Override cpuManagerPolicy
    #[arg(long, value_name = "POLICY", value_parser = PossibleValuesParser::new(["none", "static"]))]
    pub cpu_manager_policy: Option<String>,
    /// Override topologyManagerPolicy
    #[arg(long, value_name = "POLICY", value_parser = PossibleValuesParser::new(["none", "best-effort", "restricted", "single-numa-node"]))]
    pub topology_manager_policy: Option<String>,
    /// Override topologyManagerScope
    #[arg(long, value_name = "SCOPE", value_parser = PossibleValuesParser::new(["container", "pod"]))]
    pub topology_manager_scope: Option<String>,
    /// CPUs reserved for the system, e.g. 0-1,4 [default: reservedSystemCPUs of the file, or the lowest CPU]
    #[arg(long, value_name = "CPUS")]
    pub reserved_cpus: Option<CpuSet>,
    /// Devices, a file as below
    #[arg(long, value_name = "FILE")]
    pub devices: Option<PathBuf>,
    /// Also show the hints of each provider, and why other NUMA nodes were rejected
    #[arg(long)]
    pub why: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs<Drawing>,
}

/// Why nothing is placed.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The files.
    #[error(transparent)]
    Input(#[from] InputError),
    /// This machine.
    #[error("{0}\nUse --machine FILE for a described machine.")]
    Host(TopologyReadError),
    /// The devices.
    #[error(transparent)]
    Devices(#[from] DevicesError),
    /// The described machine.
    #[error(transparent)]
    Machine(#[from] MachineFileError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The settings, on this machine.
    #[error(transparent)]
    Settings(#[from] PlacementError),
    /// Standard output.
    #[error(transparent)]
    Output(#[from] StdoutError),
}

impl CommandError for PlaceError {
    fn exit_status(&self) -> u8 {
        match self {
            Self::Input(error) => error.exit_status(),
            _ => exit_status::FAILED,
        }
    }
}

/// `plimsoll place`.
///
/// # Errors
/// [`PlaceError`].
pub fn run(args: &PlaceArgs) -> Result<ExitCode, PlaceError> {
    stdin_once(args.files.iter().chain(&args.machine))?;
    let machine = match &args.machine {
        None => read_machine(&HostRoot::live()).map_err(PlaceError::Host)?,
        Some(path) => machine::read(path, io::stdin().lock())?,
    };
    let (manifests, errors) = gather(&args.files, io::stdin().lock());
    if !errors.is_empty() {
        return Err(InputError::invalid("no placement", &errors).into());
    }
    let settings = settings(args, &machine)?;
    let (mut placement, _) = NodePlacement::start(settings, machine, &Assignments::default())?;
    let mut refused = false;
    for manifest in &manifests {
        // The reason stays with the pod, and is shown there.
        refused |= placement.admit(&manifest.pod).is_err();
    }
    let explained = explain::placement(&placement, manifests.iter().map(|manifest| &*manifest.pod));
    let text = match args.output.format {
        Drawing::Json => json(&explained)?,
        Drawing::Text => page(&crate::show::place::overview(
            &explained,
            args.why,
            Style::of(&io::stdout()),
        )),
        Drawing::Svg => {
            crate::show::topology::svg::draw(placement.machine(), Some(&Holders::of(&explained)))
        }
    };
    print(text)?;
    Ok(if refused {
        ExitCode::from(exit_status::REFUSED)
    } else {
        ExitCode::SUCCESS
    })
}

/// The file's settings, with those of the command line in their place.
fn settings(args: &PlaceArgs, machine: &Machine) -> Result<PlacementSettings, PlaceError> {
    let mut settings = match &args.config {
        Some(path) => Config::new(ConfigFile::read(path)?, &EvictionFlags::default())?.placement,
        None => PlacementSettings {
            cpu_manager_policy: CpuManagerPolicy::Static,
            topology_manager_policy: "best-effort".into(),
            ..PlacementSettings::default()
        },
    };
    match args.cpu_manager_policy.as_deref() {
        Some("static") => settings.cpu_manager_policy = CpuManagerPolicy::Static,
        Some(_) => settings.cpu_manager_policy = CpuManagerPolicy::None,
        None => {}
    }
    if let Some(policy) = &args.topology_manager_policy {
        settings.topology_manager_policy.clone_from(policy);
    }
    if let Some(scope) = &args.topology_manager_scope {
        settings.topology_manager_scope.clone_from(scope);
    }
    let nothing_reserved =
        settings.reserved_cpu_count == 0 && settings.reserved_system_cpus.is_empty();
    let lowest = machine
        .online()
        .first()
        .filter(|_| args.config.is_none() && nothing_reserved);
    if let Some(reserved) = args.reserved_cpus.or(lowest.map(CpuSet::of)) {
        settings.reserved_system_cpus = reserved;
        settings.reserved_cpu_count = reserved.len();
    }
    if let Some(file) = &args.devices {
        settings.devices = devices::read(file)?;
    }
    Ok(settings)
}
