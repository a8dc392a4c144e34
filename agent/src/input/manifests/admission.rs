//! Which pods of the manifests directory may run, and with which requests, limits and priority, where LimitRanges,
//! ResourceQuotas and PriorityClasses decide about them.
//!
//! **Problem.** On one machine there is no API server that keeps a pod as it was admitted, and no clients whose
//! requests come one after the other. **Approach.** The decision is the API server's ([`World`]), made anew from all
//! objects whenever one has changed; here is what it has to be given. Pods ask in a fixed order: by when their file was
//! first seen, then by namespace and name. A pod that was admitted stays admitted, as it was admitted, until its
//! manifest is gone *and* it has left; a refused one asks again when anything has changed. Both outlive the agent
//! ([`state`]). Usage is counted from the admitted pods each time. **Scope.** A LimitRange or quota applies to the pods
//! of its namespace, a PriorityClass to all. Other pods are admitted as their manifests have them, as if this module
//! were not there. **Errors.** An object that the API server would not take has no effect, and its last good version
//! stays in force; where there is none, no further pod of its namespace is admitted, for a quota with a typing error
//! must not read as no quota.

mod state;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_core::kube::admission::Admission as Defects;
use plimsoll_core::kube::admission::chain::World;
use plimsoll_core::kube::admission::limit_range::ANNOTATION;
use plimsoll_core::kube::admission::object::Object;
use plimsoll_core::kube::admission::object_meta::ObjectMeta;
use plimsoll_core::kube::admission::pod_object::{MorePod, PodObject};
use plimsoll_core::kube::admission::pod_rules;
use plimsoll_core::kube::admission::priority;
use plimsoll_core::kube::admission::request::{Refusal, invalid};
use plimsoll_core::kube::admission::resource_quota::cluster::Cluster;
use plimsoll_core::kube::admission::resource_quota::configuration::Configuration;
use plimsoll_core::kube::admission::resource_quota::validate as quota_rules;
use plimsoll_core::kube::admission::standing::{QuotaUse, RefusedPod};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use serde::Deserialize as _;

use super::limits::{LimitKey, LimitKind, ManifestLimit};
use super::objects::Item;
use super::pods::set_namespace_and_grace;
use super::{ManifestError, ManifestPod};
use crate::host::shown::Show as _;
use crate::host::state_dir;
use state::{AdmittedPod, AdmittedPods, Rules, StateFileError};

pub use state::{ADMITTED, NotAdmitted, admitted};

/// A change has to name the version that it changes; there is one here.
const VERSION: &str = "1";
/// The resource of the API that pods are.
const PODS: &str = "pods";

/// Whether a pod has processes, as its manifest has it.
pub type IsRunning = dyn Fn(&Pod) -> bool + Send;

/// What admission needs of the machine.
pub struct AdmissionContext {
    /// The agent's state directory.
    pub state_dir: PathBuf,
    /// Asked at the first look, about pods of which nothing is known.
    pub is_running: Box<IsRunning>,
}

impl fmt::Debug for AdmissionContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionContext")
            .field("state_dir", &self.state_dir)
            .finish_non_exhaustive()
    }
}

/// What is wanted, as far as it could be read.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) pods: &'a BTreeMap<PodUid, ManifestPod>,
    pub(super) limits: Vec<&'a ManifestLimit>,
    /// The manifest files, and whether each has errors, or nothing in it.
    pub(super) files: BTreeMap<&'a Path, bool>,
    /// Everything in the directory was read.
    pub(super) is_complete: bool,
    /// A file has errors.
    pub(super) has_errors: bool,
}

/// What was decided.
#[derive(Debug, Default)]
pub(super) struct Decided {
    /// The pods that may run, as they were admitted.
    pub(super) pods: BTreeMap<PodUid, ManifestPod>,
    /// Those that may not, in their order.
    pub(super) refused: Vec<RefusedPod>,
    /// What is in use.
    pub(super) quotas: Vec<QuotaUse>,
    pub(super) errors: Vec<ManifestError>,
    /// It could not be written down, or rests upon what has only been seen once: it is to be made again soon.
    pub(super) is_passing: bool,
}

/// A pod that was admitted.
#[derive(Debug)]
struct Entry {
    /// As it was admitted; its document is as its manifest had it.
    pod: ManifestPod,
    /// The same for the API's rules.
    object: OnceCell<PodObject>,
    /// Something has decided about it, so that it may have what its manifest has not.
    is_ruled: bool,
    /// Its manifest is gone.
    leaving: bool,
    /// Only an agent before this one has seen its manifest.
    is_earlier: bool,
}

/// The admitted pods, and what decided about them.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// `None`: nothing is kept.
    ground: Option<AdmissionContext>,
    next_file: u64,
    files: BTreeMap<String, u64>,
    /// The last good version of each object.
    in_force: BTreeMap<LimitKey, ManifestLimit>,
    /// Namespaces of objects that have errors and no good version, and why none of their pods is admitted.
    withheld: BTreeMap<String, String>,
    rules: Rules,
    /// What decided when an earlier agent ended, until all files could be read.
    earlier: Rules,
    entries: BTreeMap<PodUid, Entry>,
    /// What the file has.
    written: Option<AdmittedPods>,
    has_looked: bool,
    /// Why the file of the agent before was not used.
    file_error: Option<StateFileError>,
}

impl Admission {
    /// Takes up what an earlier agent has admitted.
    pub(super) fn on(ground: AdmissionContext) -> Self {
        let mut this = Self::default();
        this.take_up(&ground.state_dir);
        this.ground = Some(ground);
        this
    }

    fn take_up(&mut self, state_dir: &Path) {
        self.file_error = None;
        match AdmittedPods::read(state_dir) {
            Ok(Some(earlier)) => {
                self.next_file = earlier.next_file;
                self.files.clone_from(&earlier.files);
                self.earlier.clone_from(&earlier.rules);
                for known in &earlier.pods {
                    let pod = ManifestPod {
                        pod: Arc::clone(&known.pod),
                        document: Arc::clone(&known.document),
                        file: Arc::from(known.file.as_path()),
                        line: known.line,
                    };
                    let mut entry = Entry::new(pod);
                    entry.is_ruled = true;
                    entry.leaving = known.leaving;
                    entry.is_earlier = true;
                    self.entries.insert(known.pod.uid(), entry);
                }
                self.written = Some(earlier);
            }
            Ok(None) => {}
            Err(error) => {
                if let StateFileError::Damaged { path, why } = &error {
                    // If that fails, the next write fails as well, and says so.
                    state_dir::set_aside(path, why).ok();
                }
                self.file_error = Some(error);
            }
        }
    }

    /// A pod whose manifest was gone has left. Returns whether that changes anything.
    pub(super) fn note_left(&mut self, uid: &PodUid) -> bool {
        let left = self.entries.get(uid).is_some_and(|entry| entry.leaving);
        if left {
            self.entries.remove(uid);
        }
        left && (!self.rules.namespaces.is_empty() || self.rules.everywhere)
    }

    /// Decides about all pods.
    pub(super) fn decide(&mut self, wanted: &Wanted<'_>) -> Decided {
        let mut decided = Decided::default();
        if let (Some(StateFileError::Io { .. }), Some(ground)) = (&self.file_error, &self.ground) {
            let state_dir = ground.state_dir.clone();
            self.take_up(&state_dir);
        }
        if let Some(error) = &self.file_error {
            decided.errors.push(self.unwritten(error));
        }
        self.number_files(wanted.files.keys().copied());
        let mut world = World::new(
            Defects::Upstream,
            Configuration::default(),
            Cluster::default(),
        );
        self.put_in_force(&mut world, wanted, &mut decided.errors);
        self.end_unwanted(wanted, &mut decided);
        self.count(&mut world, &mut decided.errors);
        let asked = self.ask(&mut world, wanted, &mut decided);
        if let Err(error) = self.write(&decided) {
            decided.errors.push(self.unwritten(&error));
            decided.is_passing = true;
            self.take_back(&asked, &error, &mut decided);
        }
        decided.quotas = QuotaUse::of_all(world.quotas(), &world.counts());
        decided
    }

    /// Files that are new have the next number; those that are gone have none any more.
    fn number_files<'a>(&mut self, files: impl Iterator<Item = &'a Path>) {
        let names: BTreeSet<String> = files.map(name_of).collect();
        self.files.retain(|name, _| names.contains(name));
        let known = self.files.len();
        for name in names {
            self.files.entry(name).or_insert(self.next_file);
        }
        if self.files.len() > known {
            self.next_file = self.next_file.saturating_add(1);
        }
    }

    /// Gives the world what decides: first what is unchanged, then what has changed, then what is new, so that of two
    /// objects that exclude each other the one that is in force stays.
    fn put_in_force(
        &mut self,
        world: &mut World,
        wanted: &Wanted<'_>,
        errors: &mut Vec<ManifestError>,
    ) {
        let mut limits: BTreeMap<&LimitKey, &ManifestLimit> = BTreeMap::new();
        for limit in &wanted.limits {
            if let Some(first) = limits.get(&limit.key) {
                let (key, place) = (&limit.key, first.place());
                let what = format!("{key} is already defined at {place}, which is used");
                errors.push(limit.error("metadata.name", what));
            } else {
                limits.insert(&limit.key, limit);
            }
        }
        let mut before = std::mem::take(&mut self.in_force);
        self.withheld.clear();
        let mut order: Vec<(u8, &ManifestLimit, Option<ManifestLimit>)> = limits
            .into_values()
            .map(|limit| {
                let known = before.remove(&limit.key);
                let stage = match (&known, &limit.object) {
                    (Some(known), Some(object)) if is_same(known, &object.1) => 0,
                    (Some(_), _) => 1,
                    (None, _) => 2,
                };
                (stage, limit, known)
            })
            .collect();
        order.sort_by_key(|(stage, limit, _)| (*stage, &limit.key));
        for (_, limit, known) in order {
            // The errors of a document without object were found when it was read.
            let taken =
                limit
                    .object
                    .as_ref()
                    .map(|object| match change_errors(known.as_ref(), limit) {
                        Some(refusal) => Err(refusal),
                        None => add(world, &object.1),
                    });
            if let Some(Err(refusal)) = &taken {
                errors.extend(limit.refused(refusal));
            }
            let in_force = match (taken, known) {
                (Some(Ok(())), _) => Some(limit.clone()),
                (_, Some(known)) => {
                    let again = known.object.as_ref().map(|object| add(world, &object.1));
                    matches!(again, Some(Ok(()))).then_some(known)
                }
                (_, None) => None,
            };
            match in_force {
                Some(limit) => {
                    self.in_force.insert(limit.key.clone(), limit);
                }
                None if limit.key.kind != LimitKind::PriorityClass => {
                    let why = format!(
                        "{} at {} has errors and was never in force: no pod of its namespace is admitted until it is mended or removed",
                        limit.key,
                        limit.place()
                    );
                    self.withheld
                        .entry(limit.key.namespace.clone())
                        .or_insert(why);
                }
                None => {}
            }
        }
        self.withhold_by_earlier(wanted);
        let system = priority::system_classes();
        let is_system = |name: &str| system.iter().any(|class| class.metadata.name == name);
        let keys = self.in_force.keys();
        let namespaces = keys.clone().map(|key| &key.namespace);
        let namespaces = namespaces.chain(self.withheld.keys());
        self.rules = Rules {
            namespaces: namespaces.filter(|it| !it.is_empty()).cloned().collect(),
            everywhere: keys
                .clone()
                .any(|key| key.kind == LimitKind::PriorityClass && !is_system(&key.name)),
        };
    }

    /// What decided about a namespace when an earlier agent ended may stand in a file that cannot be read now.
    fn withhold_by_earlier(&mut self, wanted: &Wanted<'_>) {
        if wanted.is_complete && !wanted.has_errors {
            self.earlier = Rules::default();
        }
        let namespaces = self.earlier.namespaces.iter();
        for namespace in namespaces {
            let decides = |key: &LimitKey| key.namespace == *namespace;
            if !self.in_force.keys().any(decides) {
                self.withheld.entry(namespace.clone()).or_insert_with(|| {
                    "a manifest file has errors, and may have the LimitRange or ResourceQuota that decided about this namespace before: mend the file".to_owned()
                });
            }
        }
    }

    /// Admitted pods whose manifests are gone have to leave. The first look ends none: a file may be half written, or
    /// away for a moment, and what an earlier agent has admitted is all that it knows. At that look pods that do not
    /// run any more have left, and pods that run and were admitted by nobody stay as they are.
    fn end_unwanted(&mut self, wanted: &Wanted<'_>, decided: &mut Decided) {
        let is_first = !self.has_looked;
        self.has_looked |= wanted.is_complete;
        let ground = self.ground.as_ref();
        let is_running = |pod: &Pod| ground.is_some_and(|ground| (ground.is_running)(pod));
        self.entries.retain(|uid, entry| {
            let is_wanted = wanted.pods.contains_key(uid);
            entry.is_earlier &= !is_wanted;
            if is_wanted && !(is_first && entry.leaving) {
                return true;
            }
            // A file that is wrong for a moment ends no pod, even if this agent has never seen it right.
            let in_broken_file = wanted
                .files
                .iter()
                .any(|(file, is_broken)| *is_broken && name_of(file) == name_of(&entry.pod.file));
            if in_broken_file && !entry.leaving {
                decided.pods.insert(uid.clone(), entry.pod.clone());
                return true;
            }
            // With more files than are read each look is a first one; what this agent has seen there is gone all the
            // same.
            if !is_first || !entry.is_earlier && !is_wanted {
                entry.leaving = true;
                return true;
            }
            if !is_running(&entry.pod.pod) {
                return !wanted.is_complete;
            }
            // The next look ends it, or its manifest is there again.
            entry.leaving = false;
            if !is_wanted {
                decided.pods.insert(uid.clone(), entry.pod.clone());
                decided.is_passing = true;
            }
            true
        });
        decided.is_passing |= !self.has_looked;
        if !is_first {
            return;
        }
        for (uid, pod) in wanted.pods {
            let is_ruled = self.rules.decide_about(pod.pod.namespace());
            if is_ruled && !self.entries.contains_key(uid) && is_running(&pod.pod) {
                self.entries.insert(uid.clone(), Entry::new(pod.clone()));
            }
        }
    }

    /// Gives the world the admitted pods.
    fn count(&self, world: &mut World, errors: &mut Vec<ManifestError>) {
        let ruled = self.entries.values();
        for entry in ruled.filter(|entry| self.rules.decide_about(entry.pod.pod.namespace())) {
            let object = Object::Pod(Box::new(entry.object().clone()));
            // Two that had the same name before anything decided about them.
            if let Err(refusal) = world.add_existing(PODS, object) {
                errors.push(ManifestError::Field {
                    file: Arc::clone(&entry.pod.file),
                    line: entry.pod.line,
                    field: "metadata.name".to_owned(),
                    what: format!("{refusal}; it runs on and is not counted: remove one of them"),
                });
            }
        }
        world.count();
    }

    /// Each wanted pod in turn. Returns those that have been admitted just now.
    fn ask(
        &mut self,
        world: &mut World,
        wanted: &Wanted<'_>,
        decided: &mut Decided,
    ) -> Vec<PodUid> {
        let mut order: Vec<&ManifestPod> = wanted.pods.values().collect();
        order.sort_by_cached_key(|pod| {
            let number = self.files.get(&name_of(&pod.file)).copied();
            let metadata = &pod.pod.metadata;
            let name = (metadata.namespace.clone(), metadata.name.clone());
            (number, name, pod.pod.uid())
        });
        let mut asked = Vec::new();
        for pod in order {
            let uid = pod.pod.uid();
            let is_ruled = self.rules.decide_about(pod.pod.namespace());
            match self.entries.get_mut(&uid) {
                Some(entry) if !is_ruled => entry.take_on(pod),
                Some(entry) if !entry.leaving => {
                    if let Err(error) = entry.update(pod) {
                        decided.errors.push(error);
                    }
                }
                _ if !is_ruled => {
                    self.entries.insert(uid.clone(), Entry::new(pod.clone()));
                }
                // One that is on its way out exists, and so is refused.
                _ => match self.admit(world, pod) {
                    Ok(entry) => {
                        self.entries.insert(uid.clone(), entry);
                        asked.push(uid.clone());
                    }
                    Err(message) => {
                        decided.refused.push(refused(pod, message));
                        continue;
                    }
                },
            }
            if let Some(entry) = self.entries.get(&uid) {
                decided.pods.insert(uid, entry.pod.clone());
            }
        }
        asked
    }

    /// Asks for a new pod.
    ///
    /// # Errors
    /// Why it is refused.
    fn admit(&self, world: &mut World, pod: &ManifestPod) -> Result<Entry, String> {
        if let Some(why) = self.withheld.get(pod.pod.namespace()) {
            return Err(why.clone());
        }
        let given = given(pod).map_err(|error| error.to_string())?;
        let admitted = world
            .admit(PODS, Object::Pod(Box::new(given)))
            .map_err(|refusal| refusal.message)?;
        let Object::Pod(object) = &*admitted.object else {
            return Err("the object is no pod".to_owned());
        };
        let mut kept = object.pod.clone();
        kept.metadata = pod.pod.metadata.clone();
        kept.metadata
            .annotations
            .clone_from(&object.meta().annotations);
        set_namespace_and_grace(&mut kept);
        let mut entry = Entry::new(ManifestPod {
            pod: Arc::new(kept),
            ..pod.clone()
        });
        entry.is_ruled = true;
        entry.object.set((**object).clone()).ok();
        Ok(entry)
    }

    /// Writes down what was decided, where anything decides about pods.
    fn write(&mut self, decided: &Decided) -> Result<(), StateFileError> {
        let Some(ground) = &self.ground else {
            return Ok(());
        };
        let state_dir = &ground.state_dir;
        if let Some(StateFileError::Io { path, source }) = &self.file_error {
            // It would be replaced unread.
            return Err(StateFileError::Io {
                path: path.clone(),
                source: std::io::Error::new(source.kind(), source.to_string()),
            });
        }
        let entries = self.entries.values();
        let kept = entries
            .filter(|entry| entry.is_ruled || self.rules.decide_about(entry.pod.pod.namespace()));
        let pods: Vec<AdmittedPod> = kept.map(Entry::kept).collect();
        if pods.is_empty() && self.rules == Rules::default() {
            if self.written.is_some() {
                AdmittedPods::remove(state_dir)?;
                self.written = None;
            }
            return Ok(());
        }
        let refused = decided.refused.iter();
        let now = AdmittedPods {
            next_file: self.next_file,
            files: self.files.clone(),
            rules: self.rules.clone(),
            pods,
            refused: refused
                .map(|it| (it.uid.clone(), it.message.clone()))
                .collect(),
        };
        if self.written.as_ref() != Some(&now) {
            now.write(state_dir)?;
            self.written = Some(now);
        }
        Ok(())
    }

    /// What could not be written down is not admitted: an agent after this one would not know of it.
    fn take_back(&mut self, asked: &[PodUid], error: &StateFileError, decided: &mut Decided) {
        for uid in asked {
            self.entries.remove(uid);
            if let Some(pod) = decided.pods.remove(uid) {
                let message = format!("its admission cannot be written down: {error}");
                decided.refused.push(refused(&pod, message));
            }
        }
    }

    fn unwritten(&self, error: &StateFileError) -> ManifestError {
        let dir = self
            .ground
            .as_ref()
            .map(|ground| ground.state_dir.as_path());
        ManifestError::TooMuch {
            file: Arc::from(dir.unwrap_or(Path::new(ADMITTED))),
            what: error.to_string(),
        }
    }
}

impl Entry {
    fn new(pod: ManifestPod) -> Self {
        Self {
            pod,
            object: OnceCell::new(),
            is_ruled: false,
            leaving: false,
            is_earlier: false,
        }
    }

    /// The admitted pod for the API's rules.
    fn object(&self) -> &PodObject {
        self.object.get_or_init(|| {
            let pod = &self.pod.pod;
            // One that nothing decided about may have fields that only the API server reads.
            let mut more = MorePod::deserialize(&*self.pod.document).unwrap_or_default();
            set_name(&mut more.metadata, pod);
            PodObject::new((**pod).clone(), more)
        })
    }

    /// Nothing decides about it: it is as its manifest has it.
    fn take_on(&mut self, pod: &ManifestPod) {
        self.leaving = false;
        if self.pod.document == pod.document {
            (self.pod.file, self.pod.line) = (Arc::clone(&pod.file), pod.line);
        } else {
            *self = Self::new(pod.clone());
        }
    }

    /// Its manifest may have changed: what the API server lets a pod change is taken over.
    ///
    /// # Errors
    /// What it does not; then the pod stays as it is.
    fn update(&mut self, pod: &ManifestPod) -> Result<(), ManifestError> {
        if self.pod.document != pod.document {
            let refused = |message: String| ManifestError::NotChanged {
                file: Arc::clone(&pod.file),
                line: pod.line,
                // What follows in further lines is a list of differences.
                message: message.lines().next().unwrap_or_default().to_owned(),
            };
            let read = |pod: &ManifestPod| given(pod).map_err(|error| refused(error.to_string()));
            let (mut new, mut old) = (read(pod)?, read(&self.pod)?);
            for object in [&mut new, &mut old] {
                object.set_defaults();
                VERSION.clone_into(&mut object.more.metadata.resource_version);
            }
            let errors = pod_rules::update_errors(&new, &old);
            if !errors.is_empty() {
                return Err(refused(invalid("Pod", &new.meta().name, errors).message));
            }
            let merged = merged(&pod.pod, &self.pod.pod);
            self.pod = ManifestPod {
                pod: Arc::new(merged),
                ..pod.clone()
            };
            self.object = OnceCell::new();
        }
        (self.pod.file, self.pod.line) = (Arc::clone(&pod.file), pod.line);
        Ok(())
    }

    fn kept(&self) -> AdmittedPod {
        AdmittedPod {
            file: self.pod.file.to_path_buf(),
            line: self.pod.line,
            leaving: self.leaving,
            document: Arc::clone(&self.pod.document),
            pod: Arc::clone(&self.pod.pod),
        }
    }
}

/// The new specification with what the pod was admitted with: what a client leaves out of a change stays.
fn merged(new: &Pod, admitted: &Pod) -> Pod {
    let mut pod = new.clone();
    let lists = [
        (&mut pod.spec.containers, &admitted.spec.containers),
        (
            &mut pod.spec.init_containers,
            &admitted.spec.init_containers,
        ),
    ];
    for (new, admitted) in lists {
        for (new, admitted) in new.iter_mut().zip(admitted) {
            new.resources.clone_from(&admitted.resources);
        }
    }
    pod.spec.resources.clone_from(&admitted.spec.resources);
    pod.spec.priority = admitted.spec.priority;
    let class = &admitted.spec.priority_class_name;
    pod.spec.priority_class_name.clone_from(class);
    if let Some(note) = admitted.metadata.annotations.get(ANNOTATION) {
        let annotations = &mut pod.metadata.annotations;
        annotations.insert(ANNOTATION.to_owned(), note.clone());
    }
    pod
}

/// The pod as its manifest has it, for the API's rules.
fn given(pod: &ManifestPod) -> Result<PodObject, serde_json::Error> {
    let mut more = MorePod::deserialize(&*pod.document)?;
    set_name(&mut more.metadata, &pod.pod);
    Ok(PodObject::new(Pod::deserialize(&*pod.document)?, more))
}

/// What every object of an API server has.
fn set_name(meta: &mut ObjectMeta, pod: &Pod) {
    meta.name.clone_from(&pod.metadata.name);
    pod.namespace().clone_into(&mut meta.namespace);
}

fn refused(pod: &ManifestPod, message: String) -> RefusedPod {
    RefusedPod {
        pod: pod.pod.full_name(),
        uid: pod.pod.uid(),
        place: format!("{}:{}", pod.file.shown(), pod.line),
        message,
    }
}

/// Manifest files are directly in their directory.
fn name_of(file: &Path) -> String {
    file.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn is_same(known: &ManifestLimit, item: &Item) -> bool {
    known.object.as_ref().is_some_and(|known| known.1 == *item)
}

/// Why the API server would not take a changed object; of a new one it is asked by [`add`].
fn change_errors(known: Option<&ManifestLimit>, limit: &ManifestLimit) -> Option<Refusal> {
    let (known, limit) = (known?.object.as_ref()?, limit.object.as_ref()?);
    let refusal = |kind: &str, name: &str, errors: Vec<_>| {
        (!errors.is_empty()).then(|| invalid(kind, name, errors))
    };
    match (&known.1, &limit.1) {
        (Item::PriorityClass(old), Item::PriorityClass(new)) => {
            let (mut old, mut new) = (old.clone(), new.clone());
            for class in [&mut old, &mut new] {
                class.set_defaults();
                VERSION.clone_into(&mut class.metadata.resource_version);
            }
            let errors = priority::update_errors(&new, &old);
            refusal(priority::CLASS_KIND, &new.metadata.name, errors)
        }
        (Item::Quota(old), Item::Quota(new)) => {
            let (mut old, mut new) = (old.clone(), new.clone());
            for quota in [&mut old, &mut new] {
                quota.set_defaults();
                VERSION.clone_into(&mut quota.metadata.resource_version);
            }
            let errors = quota_rules::update_errors(&new, &old, Defects::Upstream);
            refusal("ResourceQuota", &new.metadata.name, errors)
        }
        _ => None,
    }
}

/// Gives the world an object. A quota's status is not believed: all that it counts is here.
fn add(world: &mut World, item: &Item) -> Result<(), Refusal> {
    match item {
        Item::PriorityClass(class) => world.add_class((**class).clone()),
        Item::LimitRange(range) => world.add_range((**range).clone()),
        Item::Quota(quota) => {
            let mut quota = (**quota).clone();
            quota.status = Default::default();
            world.add_quota(quota)
        }
        _ => Ok(()),
    }
}
