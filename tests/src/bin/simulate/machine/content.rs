//! What the files of the model say, made when they are read.

use super::*;

impl Machine {
    /// `/proc/PID/…`: whether the model makes this file, and whether it is there. `None`: it is a file like any other.
    pub(crate) fn makes(&self, path: &str) -> Option<bool> {
        if matches!(
            path,
            "/proc/meminfo"
                | "/proc/stat"
                | "/proc/vmstat"
                | "/proc/self/cgroup"
                | "/proc/self/stat"
        ) {
            return Some(true);
        }
        let rest = path.strip_prefix("/proc/")?;
        if let Some(file) = rest.strip_prefix("pressure/") {
            return Some(["memory", "cpu", "io"].contains(&file));
        }
        let (pid, file) = rest.split_once('/').unwrap_or((rest, ""));
        let pid: i32 = pid.parse().ok()?;
        if pid == AGENT_PID {
            return matches!(file, "cgroup" | "stat" | "oom_score_adj").then_some(true);
        }
        let files = ["stat", "cgroup", "oom_score_adj", "comm", "status"];
        Some(self.processes.contains_key(&pid) && (file.is_empty() || files.contains(&file)))
    }

    /// What a file of the model says; `None` for one that is like any other.
    pub(crate) fn content(&self, fd: &Fd, now_ns: u64) -> Option<Result<Vec<u8>, i32>> {
        let text = match &fd.kind {
            Kind::Control { cgroup } => {
                let file = fd.path.rsplit('/').next().unwrap_or_default();
                return Some(
                    self.control_text(*cgroup, file, now_ns)
                        .map(String::into_bytes),
                );
            }
            Kind::Made => self.made(&fd.path, now_ns),
            Kind::PsiTrigger => Some(pressure().into_bytes()),
            Kind::Plain | Kind::Pidfd { .. } | Kind::Map(_) | Kind::BpfObject => return None,
        };
        Some(text.ok_or(libc::ESRCH))
    }

    fn made(&self, path: &str, now_ns: u64) -> Option<Vec<u8>> {
        match path {
            "/proc/meminfo" => return Some(self.meminfo(now_ns).into_bytes()),
            "/proc/stat" => return Some(b"cpu  100 0 100 1000 0 0 0 0 0 0\ncpu0 100 0 100 1000 0 0 0 0 0 0\nctxt 1\nbtime 1700000000\n".to_vec()),
            "/proc/vmstat" => return Some(b"nr_free_pages 1000\n".to_vec()),
            _ => {}
        }
        let rest = path.strip_prefix("/proc/")?;
        if rest.starts_with("pressure/") {
            return Some(pressure().into_bytes());
        }
        let (pid, file) = rest.split_once('/')?;
        let pid = if pid == "self" {
            AGENT_PID
        } else {
            pid.parse().ok()?
        };
        let process = self.processes.get(&pid)?;
        let text = match file {
            "stat" => {
                let mut text = format!("{pid} (").into_bytes();
                text.extend(&process.comm);
                let rest = format!(
                    ") S 1 {pid} {pid} 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 {} 0 0\n",
                    process.started
                );
                text.extend(rest.into_bytes());
                return Some(text);
            }
            "comm" => {
                let mut text = process.comm.clone();
                text.push(b'\n');
                return Some(text);
            }
            "cgroup" => {
                let lines = self.hierarchies.iter().zip(&process.cgroups);
                lines
                    .map(|(it, cgroup)| it.line(&self.cgroups[*cgroup].name))
                    .collect()
            }
            "oom_score_adj" => format!("{}\n", process.oom_score_adj),
            "status" => "Name:\tapp\n".to_owned(),
            _ => return None,
        };
        Some(text.into_bytes())
    }

    fn meminfo(&self, now_ns: u64) -> String {
        let free = self.free(now_ns);
        let inactive = self.available(now_ns) - free;
        let anon = self.pods_bytes(now_ns).saturating_sub(inactive) + SYSTEM_BYTES;
        let mut text = String::new();
        for (name, bytes) in [
            ("MemTotal:", self.total_bytes),
            ("MemFree:", free),
            ("MemAvailable:", free + inactive),
            ("Buffers:", 0),
            ("Cached:", inactive),
            ("SwapCached:", 0),
            ("Active(anon):", anon),
            ("Inactive(anon):", 0),
            ("Active(file):", 0),
            ("Inactive(file):", inactive),
            ("Unevictable:", 0),
            ("SwapTotal:", 0),
            ("SwapFree:", 0),
            ("AnonPages:", anon),
            ("Shmem:", 0),
            ("KReclaimable:", 0),
            ("SReclaimable:", 0),
        ] {
            writeln!(text, "{name} {} kB", bytes >> 10).ok();
        }
        text
    }

    fn bytes_of(&self, index: usize, now_ns: u64) -> (u64, u64) {
        if let Some(pod) = self.cgroups[index].pod {
            // The pod's own cgroup and its first container have all of it.
            let depth = self.cgroups[index].name.matches('/').count();
            return if depth <= 3 {
                (self.used(pod, now_ns), self.inactive_bytes(pod, now_ns))
            } else {
                (0, 0)
            };
        }
        let path = &self.cgroups[index].name;
        let below =
            (0..self.pods.len()).filter(|pod| self.pods[*pod].path.starts_with(path.as_str()));
        below.fold((0, 0), |(used, inactive), pod| {
            (
                used + self.used(pod, now_ns),
                inactive + self.inactive_bytes(pod, now_ns),
            )
        })
    }

    fn control_text(&self, index: usize, file: &str, now_ns: u64) -> Result<String, i32> {
        let cgroup = &self.cgroups[index];
        if !cgroup.is_there {
            return Err(libc::ENODEV);
        }
        let (used, inactive) = self.bytes_of(index, now_ns);
        Ok(match file {
            "cgroup.procs" | "cgroup.threads" | "tasks" => {
                if cgroup.is_threaded && file == "cgroup.procs" {
                    return Err(libc::EOPNOTSUPP);
                }
                cgroup.processes.iter().fold(String::new(), |mut text, pid| {
                    writeln!(text, "{pid}").ok();
                    text
                })
            }
            "cgroup.events" => format!("populated {}\nfrozen 0\n", u8::from(self.is_populated(index))),
            "memory.usage_in_bytes" if cgroup.name.is_empty() => format!("{}\n", self.used_bytes(now_ns)),
            "memory.current" | "memory.usage_in_bytes" => format!("{used}\n"),
            "memory.stat" if self.hierarchies[cgroup.hierarchy].is_v1 => format!(
                "cache {inactive}\nrss {0}\nmapped_file 0\ninactive_file {inactive}\nactive_file 0\ntotal_cache {inactive}\ntotal_rss {0}\ntotal_inactive_anon 0\ntotal_active_anon {0}\ntotal_inactive_file {inactive}\ntotal_active_file 0\ntotal_unevictable 0\n",
                used - inactive
            ),
            "memory.oom_control" => format!("oom_kill_disable 0\nunder_oom 0\noom_kill {}\n", cgroup.oom_kills),
            "memory.stat" => format!(
                "anon {}\nfile {inactive}\nkernel 0\nshmem 0\ninactive_anon 0\nactive_anon {}\ninactive_file {inactive}\nactive_file 0\nunevictable 0\n",
                used - inactive,
                used - inactive
            ),
            "memory.events" => format!("low 0\nhigh 0\nmax 0\noom {0}\noom_kill {0}\noom_group_kill 0\n", cgroup.oom_kills),
            "memory.pressure" | "cpu.pressure" | "io.pressure" => pressure(),
            "cpu.stat" if self.hierarchies[cgroup.hierarchy].is_v1 => "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n".to_owned(),
            "cpu.stat" => "usage_usec 1000\nuser_usec 500\nsystem_usec 500\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\nnr_bursts 0\nburst_usec 0\n".to_owned(),
            "pids.current" => {
                let below = self.below(&cgroup.path);
                let count: usize = below.iter().map(|index| self.cgroups[*index].processes.len()).sum();
                format!("{count}\n")
            }
            _ => cgroup.values.get(file).map_or_else(String::new, |value| format!("{value}\n")),
        })
    }
}

fn pressure() -> String {
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n".to_owned()
}
