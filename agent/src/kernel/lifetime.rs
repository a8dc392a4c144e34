//! How the programs get into the kernel and out of it: loaded by this process, pinned, taken over from the agent
//! before, taken away.

use std::collections::BTreeSet;
use std::time::Duration;

use aya::Ebpf;
use aya::maps::Map;
use aya::programs::links::FdLink;

use super::charges::Charges;
use super::consumed::Consumed;
use super::error::map_error;
use super::followed::Followed;
use super::identity::identity;
use super::last_line::LastLineMaps;
use super::loader::{self, Machine};
use super::log::ProgramLog;
use super::manifest::Manifest;
use super::ring::Ring;
use super::totals::Totals;
use super::{
    Account, Bpf, BpfError, BpfOptions, HookReport, PinError, PinOwner, PinSet, Pinning,
    is_attached,
};

use crate::host::shown::Show as _;
use crate::host::syscall::give_memory_back;

/// How often, and how long apart, rings are read for the last records of programs that were just detached.
const SETTLE_ROUNDS: usize = 20;
const SETTLE_PAUSE: Duration = Duration::from_millis(2);

/// What becomes of pinned programs when their agent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtEnd {
    /// They go with it.
    Detach,
    /// They stay for the next one. Those that are not pinned go all the same.
    Keep,
}

/// What keeps the programs attached.
pub(super) enum Attachment {
    /// This process.
    Process {
        ebpf: Ebpf,
        _links: Vec<(&'static str, FdLink)>,
    },
    /// Pins, until they are removed.
    Pins(PinSet),
    /// Nothing any more.
    Nothing,
}

pub(super) fn take_map(ebpf: &mut Ebpf, name: &'static str) -> Result<Map, BpfError> {
    ebpf.take_map(name).ok_or_else(|| BpfError::Object {
        reason: format!("it has no map {name}"),
    })
}

/// Removes sets that cannot be used: another version's, other options', half a set.
fn remove_others(sets: &[PinSet], used: Option<&PinSet>, said: &mut impl FnMut(String)) {
    for set in sets.iter().filter(|set| Some(*set) != used) {
        let path = set.path().shown();
        match set.remove() {
            Ok(()) => said(format!(
                "BPF programs of an earlier agent were removed: {path}"
            )),
            Err(error) => said(format!("BPF programs of an earlier agent stay: {error}")),
        }
    }
}

impl Bpf {
    /// Loads the object and attaches every hook of `options` that this host allows.
    ///
    /// # Errors
    /// Only when nothing at all can work: policy, capabilities, no BTF, an object that the kernel cannot take, or no
    /// hook attached. Everything less is in [`Bpf::hooks`].
    pub fn load(object: &[u8], options: &BpfOptions) -> Result<Bpf, BpfError> {
        let machine = Machine::probe()?;
        let loaded = loader::load(object, options, &machine)?;
        // Reading the kernel's types took tens of megabytes, which the allocator keeps.
        give_memory_back();
        let mut ebpf = loaded.ebpf;
        let mut bpf = Self::of_maps(&machine, loaded.hooks, &mut |name| {
            take_map(&mut ebpf, name)
        })?;
        bpf.log = ProgramLog::of(&mut ebpf);
        bpf.attachment = Attachment::Process {
            ebpf,
            _links: loaded.links,
        };
        Ok(bpf)
    }

    /// As [`Bpf::load`], but takes over what an agent before left pinned if it is what would be loaded, and else pins
    /// what it loads. Every other set of this owner is removed; `said` gets a line for each. That pins cannot be made
    /// is no error: the programs then end with this process, and [`Pinning`] says why.
    ///
    /// The rings have one reader: while another agent uses the owner's sets they stay as they are, and the programs of
    /// this one end with it.
    ///
    /// # Errors
    /// As [`Bpf::load`].
    pub fn load_pinned(
        object: &[u8],
        options: &BpfOptions,
        owner: &PinOwner,
        mut said: impl FnMut(String),
    ) -> Result<(Bpf, Pinning), BpfError> {
        let machine = Machine::probe()?;
        let set = owner.set(&identity(
            object,
            options,
            machine.hierarchies,
            machine.cpus,
        ));
        let prepared = owner
            .prepare()
            .and_then(|lock| owner.sets().map(|sets| (lock, sets)));
        let (lock, sets) = match prepared {
            Ok(prepared) => prepared,
            Err(error @ PinError::InUse { .. }) => {
                return Ok((Self::load(object, options)?, Pinning::Not(error)));
            }
            Err(error) => {
                // What an earlier version has pinned there would go on running beside what is loaded now.
                remove_others(&owner.sets().unwrap_or_default(), None, &mut said);
                return Ok((Self::load(object, options)?, Pinning::Not(error)));
            }
        };
        if set.exists() {
            match Self::take_over(&set, options, &machine) {
                Ok(mut bpf) => {
                    bpf.pin_lock = Some(lock);
                    remove_others(&sets, Some(&set), &mut said);
                    let path = set.path().to_owned();
                    return Ok((bpf, Pinning::TakenOver { path }));
                }
                Err(error) => said(format!(
                    "the BPF programs that an agent left cannot be taken over and are replaced: {error}"
                )),
            }
        }
        remove_others(&sets, None, &mut said);
        let loaded = loader::load(object, options, &machine)?;
        // Reading the kernel's types took tens of megabytes, which the allocator keeps.
        give_memory_back();
        let mut ebpf = loaded.ebpf;
        let mut pinned = set.begin();
        let mut bpf = Self::of_maps(&machine, loaded.hooks, &mut |name| {
            let map = take_map(&mut ebpf, name)?;
            if pinned.is_ok() {
                pinned = set.pin_map(name, &map);
            }
            Ok(map)
        })?;
        // While it is being pinned, each link has two holders: this process and its pin.
        let mut links = Vec::with_capacity(loaded.links.len());
        let mut unpinned = loaded.links.into_iter();
        let pin_all = || -> Result<Attachment, PinError> {
            pinned?;
            for (name, link) in unpinned.by_ref() {
                if let Some(program) = ebpf.program_mut(name) {
                    links.push((name, set.pin_program(name, program, link)?));
                }
            }
            bpf.store_manifest(&set)?;
            set.complete()?;
            Ok(Attachment::Pins(set.clone()))
        };
        match pin_all() {
            Ok(attachment) => {
                bpf.attachment = attachment;
                bpf.pin_lock = Some(lock);
                let path = set.path().to_owned();
                Ok((bpf, Pinning::Made { path }))
            }
            Err(error) => {
                // What was pinned already is lost with its pin, so all is loaded again; this happens once in the life
                // of a misconfigured host.
                drop((bpf, links, unpinned, ebpf));
                if let Err(error) = set.remove() {
                    said(error.to_string());
                }
                Ok((Self::load(object, options)?, Pinning::Not(error)))
            }
        }
    }

    fn store_manifest(&mut self, set: &PinSet) -> Result<(), PinError> {
        Manifest::new(&self.hooks)
            .store(&mut self.manifest)
            .ok_or_else(|| PinError::Torn {
                path: set.path().to_owned(),
                what: "the list of hooks cannot be written".to_owned(),
            })
    }

    /// Makes this from pins alone.
    fn take_over(set: &PinSet, options: &BpfOptions, machine: &Machine) -> Result<Bpf, PinError> {
        set.check_complete()?;
        let torn = |error: BpfError| PinError::Torn {
            path: set.path().to_owned(),
            what: error.to_string(),
        };
        let manifest = set
            .map("MANIFEST")?
            .try_into()
            .ok()
            .as_ref()
            .and_then(Manifest::of_map)
            .ok_or_else(|| PinError::Torn {
                path: set.path().to_owned(),
                what: "its list of hooks cannot be read".to_owned(),
            })?;
        let hooks = set.hooks(&manifest, options.without)?;
        let mut missing = None;
        let bpf = Self::of_maps(machine, hooks, &mut |name| {
            set.map(name).map_err(|error| {
                let reason = error.to_string();
                missing = Some(error);
                BpfError::Map { map: name, reason }
            })
        });
        let mut bpf = match (bpf, missing) {
            (_, Some(error)) => return Err(error),
            (bpf, None) => bpf.map_err(torn)?,
        };
        bpf.attachment = Attachment::Pins(set.clone());
        Ok(bpf)
    }

    fn of_maps(
        machine: &Machine,
        hooks: Vec<HookReport>,
        // Not generic: it is large.
        take: &mut dyn FnMut(&'static str) -> Result<Map, BpfError>,
    ) -> Result<Bpf, BpfError> {
        macro_rules! map {
            ($name:literal) => {
                take($name)?.try_into().map_err(map_error($name))?
            };
        }
        Ok(Bpf {
            attachment: Attachment::Nothing,
            pin_lock: None,
            log: None,
            consumed: Consumed::map(take("CONSUMED")?, machine.cpus)?,
            manifest: map!("MANIFEST"),
            critical: Ring::new(map!("CRITICAL")),
            lifecycle: Ring::new(map!("LIFECYCLE")),
            pressure: Ring::new(map!("PRESSURE")),
            counts: map!("COUNTS"),
            charges: Charges::new(map!("CHARGES"), is_attached(&hooks, "charges_count"))?,
            totals: Totals {
                throttle: map!("THROTTLE"),
                memory: map!("MEMORY"),
                oom_kills: map!("OOM_KILLS"),
                stalls: map!("STALLS"),
                refaults: map!("REFAULTS"),
                processes: map!("PROCESSES"),
                followed: Followed::default(),
                counted: map!("COUNTED"),
                counted_now: BTreeSet::new(),
                hierarchies: machine.hierarchies,
            }
            .with_counted()?,
            last_line: LastLineMaps::new(
                map!("LAST_LINE"),
                map!("LAST_LINE_NEWEST"),
                map!("LAST_LINE_SEEN"),
                map!("LAST_LINE_PODS"),
                map!("KILLS_REPORTED"),
            )?,
            hooks,
        })
    }

    /// Takes the programs away, and has `drain` read what is left until every account adds up. A program that was
    /// running may take a moment longer; an account that is still open after that is what the caller will find.
    ///
    /// # Errors
    /// When pins cannot be removed, or the kernel refuses to show the counters.
    pub fn finish(
        &mut self,
        at_end: AtEnd,
        mut drain: impl FnMut(&mut Bpf),
    ) -> Result<Account, BpfError> {
        if let (Attachment::Pins(_), AtEnd::Keep) = (&self.attachment, at_end) {
            // They go on sending: what is counted now is open by what comes meanwhile.
            drain(self);
            return self.account();
        }
        if let Attachment::Pins(set) = std::mem::replace(&mut self.attachment, Attachment::Nothing)
        {
            set.remove()?;
            drop(self.pin_lock.take());
        }
        for _ in 0..SETTLE_ROUNDS {
            drain(self);
            let account = self.account()?;
            if account.open().next().is_none() {
                return Ok(account);
            }
            std::thread::sleep(SETTLE_PAUSE);
        }
        self.account()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use aya::maps::MapInfo;

    use super::super::object::OBJECT;
    use super::super::pins::tests::Mounted;
    use super::super::{Counts, HookSet};
    use super::*;
    use crate::notes;

    /// Only root puts anything into a set, and the set's name says of which object it is. What is there all the same is
    /// not believed by its name alone: each map in the place of each other, if type or sizes differ.
    #[test]
    fn a_map_of_another_shape_is_not_taken_over() {
        let Some(bpffs) = Mounted::new() else { return };
        bpffs.set_mode(0o700);
        let owner = PinOwner::of_in(&bpffs.path(), Path::new("/run/nowhere"));
        let lock = owner.prepare().unwrap();
        let options = BpfOptions {
            hooks: HookSet::NONE,
            without: &[],
            window: Duration::from_millis(100),
            counts: Counts::PodsOnly,
        };
        let machine = Machine::probe().unwrap();
        let mut ebpf = match loader::load(OBJECT, &options, &machine) {
            Ok(loaded) => loaded.ebpf,
            Err(error) => return notes::left_out(error),
        };
        let set = owner.set("abi1-0");
        set.begin().unwrap();
        let mut names = Vec::new();
        let made = Bpf::of_maps(&machine, Vec::new(), &mut |name| {
            let map = take_map(&mut ebpf, name)?;
            set.pin_map(name, &map).unwrap();
            names.push(name);
            Ok(map)
        });
        drop(made.unwrap());
        let take_over = |wanted: &str, other: &'static str| {
            Bpf::of_maps(&machine, Vec::new(), &mut |name| {
                let pin = if name == wanted { other } else { name };
                set.map(pin).map_err(|error| BpfError::Map {
                    map: name,
                    reason: error.to_string(),
                })
            })
        };
        let shape = |name: &str| {
            let info = MapInfo::from_pin(set.path().join("maps").join(name)).unwrap();
            let map_type = info.map_type().unwrap() as u32;
            (map_type, info.key_size(), info.value_size())
        };
        let mut refused = 0;
        for wanted in &names {
            assert!(take_over(wanted, wanted).is_ok(), "{wanted}");
            for other in names.iter().filter(|other| shape(other) != shape(wanted)) {
                let taken = take_over(wanted, other);
                assert!(taken.is_err(), "{other} was taken for {wanted}");
                refused += 1;
            }
        }
        assert!(refused > names.len(), "{refused} of {}", names.len());
        drop(lock);
        owner.remove().unwrap();
    }
}
