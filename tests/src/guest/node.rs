//! One scene: a manifests directory, its pods' processes, and a place for the agent's state; cleared away on drop.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use plimsoll::kernel::PinOwner;
use serde::de::DeserializeOwned;

use super::agent::{Agent, Options};
use super::cgroup;
use super::clock::{now_ns, wait_until};
use super::memory;
use super::pod::Pod;
use super::process::{Guard, program};

static SCENES: AtomicU32 = AtomicU32::new(0);

/// A scene. Its directory is on the guest's tmpfs, its pods below `kubepods` at the root of every hierarchy.
#[derive(Debug)]
pub struct Node {
    /// The scene's directory.
    pub directory: PathBuf,
    /// Where volumes are; `None` leaves it to the agent's default.
    pub kubelet_dir: Option<PathBuf>,
    /// Whether `exec` has the agent's state directory: it then starts pods as the agent has placed them.
    pub pods_on_its_state: bool,
}

/// A running container process.
#[derive(Debug)]
pub struct Running {
    /// The process: `plimsoll exec` becomes the command, the pid stays.
    pub process: Guard,
    /// The hog's event log.
    pub log: PathBuf,
}

impl Node {
    /// An empty scene on a calm node: no `kubepods` tree, caches dropped.
    ///
    /// # Errors
    /// What an earlier scene left cannot be cleared away.
    pub fn new() -> anyhow::Result<Self> {
        let directory = PathBuf::from(format!(
            "/tmp/scene-{}",
            SCENES.fetch_add(1, Ordering::Relaxed)
        ));
        for part in ["manifests", "state", "log"] {
            fs::create_dir_all(directory.join(part))
                .with_context(|| format!("creating {}/{part}", directory.display()))?;
        }
        let node = Self {
            directory,
            kubelet_dir: None,
            pods_on_its_state: false,
        };
        node.clear()?;
        // A scene that was killed may have left some, under the same name.
        node.pins().remove()?;
        calm_down()?;
        Ok(node)
    }

    /// What its agents pin.
    #[must_use]
    pub fn pins(&self) -> PinOwner {
        PinOwner::of(&self.directory.join("state"))
    }

    /// With the volumes of pods there.
    #[must_use]
    pub fn with_kubelet_dir(mut self, directory: &Path) -> Self {
        self.kubelet_dir = Some(directory.to_owned());
        self
    }

    /// With pods that are started as the agent has placed them.
    #[must_use]
    pub fn with_pods_on_its_state(mut self) -> Self {
        self.pods_on_its_state = true;
        self
    }

    /// The manifests directory.
    #[must_use]
    pub fn manifests(&self) -> PathBuf {
        self.directory.join("manifests")
    }

    /// The manifest file of a pod.
    #[must_use]
    pub fn manifest(&self, pod: &Pod) -> PathBuf {
        self.manifests().join(format!("{}.yaml", pod.name))
    }

    /// Writes a pod's manifest, under another name first: a reader never sees half of it.
    ///
    /// # Errors
    /// As `write(2)`, `rename(2)`.
    pub fn write(&self, pod: &Pod) -> anyhow::Result<()> {
        self.write_manifest(&format!("{}.yaml", pod.name), &pod.manifest())
    }

    /// Writes a file into the manifests directory at once.
    ///
    /// # Errors
    /// As `write(2)`, `rename(2)`.
    pub fn write_manifest(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let new = self.directory.join("new-manifest");
        fs::write(&new, text)?;
        fs::rename(&new, self.manifests().join(name)).context("writing a manifest")
    }

    /// Writes the node's configuration file, which pods that are started from now on take. Returns where it is, for the
    /// agent.
    ///
    /// # Errors
    /// As `write(2)`.
    pub fn configure(&self, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.configuration();
        fs::write(&path, text)?;
        Ok(path)
    }

    pub(super) fn configuration(&self) -> PathBuf {
        self.directory.join("kubelet.yaml")
    }

    /// Starts `command` as the container of a pod whose manifest has been written.
    ///
    /// # Errors
    /// `plimsoll exec` cannot be started.
    pub fn exec(&self, pod: &Pod, command: &[&str]) -> anyhow::Result<Running> {
        let output = self.directory.join("log").join(format!("{}.out", pod.name));
        let file = File::create(&output)?;
        let mut exec = Command::new(program("plimsoll"));
        exec.arg("exec");
        if self.configuration().exists() {
            exec.arg("--config").arg(self.configuration());
        }
        if let Some(directory) = &self.kubelet_dir {
            exec.arg("--kubelet-dir").arg(directory);
        }
        if self.pods_on_its_state {
            exec.arg("--state-dir").arg(self.directory.join("state"));
        }
        let child = exec
            .arg("-f")
            .arg(self.manifest(pod))
            .args(["-c", "main", "--"])
            .args(command)
            .stdin(Stdio::null())
            .stderr(file.try_clone()?)
            .stdout(file)
            .spawn()
            .context("starting plimsoll exec")?;
        Ok(Running {
            process: Guard(child),
            log: self.log(pod),
        })
    }

    /// Writes a pod's manifest and starts a hog as its container; returns when the hog says that it is ready.
    ///
    /// # Errors
    /// The hog did not come up within 30 s; the message has what it printed.
    pub fn hog(&self, pod: &Pod, arguments: &str) -> anyhow::Result<Running> {
        self.write(pod)?;
        let hog = program("hog");
        let hog = hog.to_string_lossy();
        let log = self.log(pod);
        let log_text = log.to_string_lossy();
        let mut command = vec![&*hog, "--log", &*log_text];
        command.extend(arguments.split_whitespace());
        let running = self.exec(pod, &command)?;
        let says_ready = !arguments.starts_with("spin") && !arguments.starts_with("faults");
        let ready = !says_ready
            || super::process::wait_log(&log, "ready", Duration::from_secs(60)).is_some();
        ensure!(
            ready,
            "pod {} did not write `ready` to {} within 60 s of the guest's time: {}",
            pod.name,
            log.display(),
            self.condition(pod, &running)
        );
        Ok(running)
    }

    /// Runs a hog as the container of a pod to its end, and reads the JSON line that it prints.
    ///
    /// # Errors
    /// It fails, or says something else.
    pub fn hog_says<T: DeserializeOwned>(
        &self,
        pod: &Pod,
        arguments: &[String],
    ) -> anyhow::Result<T> {
        let output = Command::new(program("plimsoll"))
            .arg("exec")
            .arg("-f")
            .arg(self.manifest(pod))
            .args(["-c", "main", "--"])
            .arg(program("hog"))
            .args(arguments)
            .stderr(Stdio::inherit())
            .output()
            .context("starting plimsoll exec")?;
        ensure!(
            output.status.success(),
            "hog {} ended with {}",
            arguments.join(" "),
            output.status
        );
        serde_json::from_slice(&output.stdout).context("the hog's line")
    }

    /// What a pod's process is doing, what its cgroup holds and what it printed.
    fn condition(&self, pod: &Pod, running: &Running) -> String {
        let pid = running.process.pid();
        let line = |path: String| fs::read_to_string(path).unwrap_or_default();
        let status = line(format!("/proc/{pid}/status"));
        let state = status
            .lines()
            .find_map(|line| line.strip_prefix("State:"))
            .map_or("gone", str::trim);
        let name = line(format!("/proc/{pid}/comm"));
        let waits_in = line(format!("/proc/{pid}/wchan"));
        let used = fs::read_to_string(self.cgroup_file(pod, "memory.current"));
        format!(
            "process {pid} ({}) is {state}, in the kernel at `{waits_in}`, its cgroup holds {} bytes, it printed: {:?}",
            name.trim(),
            used.as_deref().map_or("?", str::trim),
            self.output(pod)
        )
    }

    /// The event log of a pod's hog.
    #[must_use]
    pub fn log(&self, pod: &Pod) -> PathBuf {
        self.directory.join("log").join(format!("{}.log", pod.name))
    }

    /// What a pod's process printed.
    #[must_use]
    pub fn output(&self, pod: &Pod) -> String {
        let path = self.directory.join("log").join(format!("{}.out", pod.name));
        fs::read_to_string(path).unwrap_or_default()
    }

    /// A file of a pod's memory cgroup.
    #[must_use]
    pub fn cgroup_file(&self, pod: &Pod, file: &str) -> PathBuf {
        cgroup::memory_root().join(pod.cgroup()).join(file)
    }

    /// Starts the agent on this scene and waits until it says that it has started.
    ///
    /// # Errors
    /// It ended or said nothing within 30 s; the message has its standard error.
    pub fn agent(&self, options: &Options) -> anyhow::Result<Agent> {
        let (command, errors) = self.agent_command(options)?;
        Agent::spawn(command, errors, self.directory.join("state/control.sock"))
    }

    /// The command line that [`Self::agent`] uses, with standard error in the returned file.
    ///
    /// # Errors
    /// That file cannot be created.
    pub fn agent_command(&self, options: &Options) -> anyhow::Result<(Command, PathBuf)> {
        let errors = self.directory.join(format!("log/agent-{}.err", now_ns()));
        let mut command = Command::new(program("plimsoll"));
        command
            .arg("run")
            .arg("--manifests")
            .arg(self.manifests())
            .arg("--state-dir")
            .arg(self.directory.join("state"));
        if let Some(directory) = &self.kubelet_dir {
            command.arg("--kubelet-dir").arg(directory);
        }
        command.args(["--output", "json"]).args(&options.flags);
        if let Some(journal) = &options.journal {
            command.arg("--journal").arg(journal);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&errors)?);
        Ok((command, errors))
    }

    /// Kills all pods and removes their cgroups.
    ///
    /// # Errors
    /// Something stayed.
    pub fn clear(&self) -> anyhow::Result<()> {
        for hierarchy in cgroup::hierarchies() {
            let kubepods = hierarchy.join("kubepods");
            ensure!(
                cgroup::remove(&kubepods),
                "{} cannot be removed",
                kubepods.display()
            );
        }
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("clearing {}: {error:#}", self.directory.display());
        }
        if let Err(error) = self.pins().remove() {
            eprintln!("{error}");
        }
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            eprintln!("removing {}: {error}", self.directory.display());
        }
    }
}

/// Drops caches and waits until free memory has stopped changing (5 s at most).
///
/// # Errors
/// `/proc` cannot be read or written.
pub fn calm_down() -> anyhow::Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "3").context("dropping caches")?;
    let mut last = memory::read()?.free_bytes;
    wait_until(Duration::from_secs(5), Duration::from_millis(100), || {
        let now = memory::read().map_or(last, |info| info.free_bytes);
        let calm = now.abs_diff(last) < memory::mib(1);
        last = now;
        calm
    });
    Ok(())
}
