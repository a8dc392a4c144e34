//! Paths for cgroup ids: records carry ids, people read paths.
//!
//! **Problem.** An id is unique only within a hierarchy, and on cgroup v1 the hierarchy that accounts memory is not
//! that of CPU time. **Approach.** All hierarchies are walked once; those that are made later tell their path, and
//! their hierarchy, themselves. Who asks says whose ids they are.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use super::HostRoot;
use super::cgroup::{CgroupMounts, Controller, Hierarchy, Version};
use super::file::{FileError, read_text};

/// Cgroups whose paths are kept, of each hierarchy.
const CGROUPS_MAX: usize = 65_536;

/// Whose ids they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// Of the hierarchy that accounts memory: samples, and records about memory.
    Memory,
    /// Of the hierarchy of CPU time: records about throttling and waits for a CPU.
    Cpu,
    /// Of the hierarchy with this number, as records of cgroups that come and go have it: 0 for v2.
    Hierarchy(u32),
}

/// The paths of all cgroups.
#[derive(Clone, Debug, Default)]
pub struct CgroupPaths {
    /// By the hierarchy's number and the id.
    paths: BTreeMap<(u32, u64), String>,
    memory: u32,
    cpu: u32,
}

impl CgroupPaths {
    /// Reads the directories that are there now.
    ///
    /// # Errors
    /// `/proc/self/cgroup` cannot be read.
    pub fn read(host: &HostRoot, mounts: &CgroupMounts) -> Result<Self, FileError> {
        let numbers = read_text(host.procfs("self/cgroup"))?;
        let mut found = Self {
            paths: BTreeMap::new(),
            memory: hierarchy_number(&numbers, Controller::Memory),
            cpu: hierarchy_number(&numbers, Controller::Cpu),
        };
        for hierarchy in mounts.hierarchies() {
            let number = match (hierarchy.version, hierarchy.controllers.first()) {
                (Version::V1, Some(controller)) => hierarchy_number(&numbers, *controller),
                _ => 0,
            };
            found.walk(number, hierarchy);
        }
        Ok(found)
    }

    /// A directory may vanish at any moment.
    fn walk(&mut self, number: u32, hierarchy: &Hierarchy) {
        let mut count = 0;
        let mut open = vec![(hierarchy.mount.clone(), String::new())];
        while let Some((directory, path)) = open.pop() {
            if count == CGROUPS_MAX {
                return;
            }
            if let Ok(metadata) = directory.metadata() {
                let shown = if path.is_empty() { "/" } else { &path };
                self.paths
                    .insert((number, metadata.ino()), shown.to_owned());
                count += 1;
            }
            let Ok(entries) = std::fs::read_dir(&directory) else {
                continue;
            };
            let directories = entries
                .flatten()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            for entry in directories {
                let name = entry.file_name();
                open.push((entry.path(), format!("{path}/{}", name.to_string_lossy())));
            }
        }
    }

    /// A cgroup was made just now. Returns whether there is room for it.
    pub fn made(&mut self, hierarchy_number: u32, id: u64, path: &[u8]) -> bool {
        let of_one = (hierarchy_number, 0)..=(hierarchy_number, u64::MAX);
        // Counting all each time would be slow; the first bound is seldom met.
        let has_room =
            self.paths.len() < CGROUPS_MAX || self.paths.range(of_one).count() < CGROUPS_MAX;
        if has_room {
            let path = String::from_utf8_lossy(path).into_owned();
            self.paths.insert((hierarchy_number, id), path);
        }
        has_room
    }

    /// A cgroup is gone.
    pub fn removed(&mut self, hierarchy_number: u32, id: u64) {
        self.paths.remove(&(hierarchy_number, id));
    }

    /// The path of a cgroup from the root of its hierarchy, if it is known.
    pub fn of(&self, ids: Ids, id: u64) -> Option<&str> {
        self.paths.get(&(self.number(ids), id)).map(String::as_str)
    }

    /// All cgroups of one hierarchy, by id.
    pub fn all(&self, ids: Ids) -> impl Iterator<Item = (u64, &str)> {
        let number = self.number(ids);
        let of_one = self.paths.range((number, 0)..=(number, u64::MAX));
        of_one.map(|((_, id), path)| (*id, path.as_str()))
    }

    /// The number of a hierarchy as records have it.
    pub fn number(&self, ids: Ids) -> u32 {
        match ids {
            Ids::Memory => self.memory,
            Ids::Cpu => self.cpu,
            Ids::Hierarchy(number) => number,
        }
    }

    /// Cgroups that need not be on any machine, by hierarchy and ID: for tests.
    #[must_use]
    pub fn known(memory: u32, cpu: u32, paths: &[(u32, u64, &str)]) -> Self {
        let paths = paths
            .iter()
            .map(|(number, id, path)| ((*number, *id), (*path).to_owned()));
        Self {
            paths: paths.collect(),
            memory,
            cpu,
        }
    }
}

/// The number of a controller's hierarchy in the text of `/proc/self/cgroup`, as records have it: 0 if it is the
/// unified one.
pub fn hierarchy_number(proc_cgroup: &str, controller: Controller) -> u32 {
    let of_line = |line: &str| {
        let (number, rest) = line.split_once(':')?;
        let (names, _) = rest.split_once(':')?;
        let has = names.split(',').any(|name| name == controller.name());
        number.parse().ok().filter(|_| has)
    };
    proc_cgroup.lines().find_map(of_line).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "9:name=systemd:/\n4:memory:/x\n2:cpuacct,cpu:/\n0::/\n";

    #[test]
    fn numbers_are_those_of_proc() {
        assert_eq!(hierarchy_number(HYBRID, Controller::Memory), 4);
        assert_eq!(hierarchy_number(HYBRID, Controller::Cpu), 2);
        assert_eq!(hierarchy_number("0::/\n", Controller::Memory), 0);
    }

    #[test]
    fn an_id_is_looked_up_in_its_own_hierarchy() {
        let mut paths = CgroupPaths::known(4, 2, &[(4, 7, "/memory"), (2, 7, "/cpu")]);
        assert_eq!(paths.of(Ids::Memory, 7), Some("/memory"));
        assert_eq!(paths.of(Ids::Cpu, 7), Some("/cpu"));
        assert_eq!(paths.of(Ids::Hierarchy(0), 7), None);
        assert!(paths.made(0, 7, b"/unified"));
        assert_eq!(paths.of(Ids::Hierarchy(0), 7), Some("/unified"));
        paths.removed(4, 7);
        assert_eq!(paths.of(Ids::Memory, 7), None);
        assert_eq!(paths.all(Ids::Cpu).collect::<Vec<_>>(), [(7, "/cpu")]);
    }

    #[test]
    fn the_directories_of_every_hierarchy_are_read() {
        let (_dir, host) = super::super::cgroup::tests::fake_host(&[
            ("cgroup", "/sys/fs/cgroup/cpu", "cpu"),
            ("cgroup", "/sys/fs/cgroup/memory", "memory"),
        ]);
        std::fs::write(host.path("/proc/self/cgroup"), HYBRID).unwrap();
        let made = host.path("/sys/fs/cgroup/memory/kubepods/poda");
        std::fs::create_dir_all(&made).unwrap();
        let paths = CgroupPaths::read(&host, &host.cgroup_mounts().unwrap()).unwrap();
        let id = made.metadata().unwrap().ino();
        assert_eq!(paths.of(Ids::Memory, id), Some("/kubepods/poda"));
        assert_eq!(paths.of(Ids::Cpu, id), None);
        assert_eq!(paths.all(Ids::Memory).count(), 3);
    }
}
