//! The arbitrator: who may have how much of a cluster, and who gives it back.
//!
//! Problem: namespaces share one cluster. Each has something for sure (`reserved`) and something it never passes
//! (`hard`). What one does not use, others borrow; when it is wanted back, it has to come back, without going round in
//! circles and without breaking a promise.
//!
//! Approach: a snapshot goes in ([`cluster::Cluster`]), amounts and a plan come out ([`arbitrate`]); no clock, no
//! float, and the order of the input does not matter. What pods ask for ([`demand`], [`census`]) is shared by
//! progressive filling ([`fill`]), with groups from the leaves up and from the root down ([`groups`]). A pod is
//! *entitled* if its namespace may run it within what it deserves ([`entitled`]); only for such pods others leave
//! ([`plan`]). What that comes to over days is rehearsed ([`rehearsal`]).
//!
//! In plain words: `docs/reference/arbitrator.md`, whose headings are named at each rule.

pub mod amounts;
pub mod census;
pub mod cluster;
pub mod deletion;
pub mod demand;
pub mod entitled;
pub mod fill;
pub mod groups;
pub mod named;
pub mod plan;
pub mod rehearsal;
pub mod requests;
pub mod units;

use amounts::ResourceSet;
use census::Census;
use cluster::Cluster;
use groups::Deserved;
use plan::Step;
use plan::turns::Turns;

/// What one cycle comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle {
    /// What there is, and who asks for it.
    pub census: Census,
    /// What each Consumer deserves.
    pub deserved: Deserved,
    /// Namespaces that use more than they deserve, and of which resources.
    pub overused: Vec<(usize, ResourceSet)>,
    /// What is done for each entitled pod, in the order in which they are served.
    pub steps: Vec<Step>,
}

/// One cycle: from a snapshot to a plan.
#[must_use]
pub fn arbitrate(cluster: &Cluster) -> Cycle {
    arbitrate_in_turn(cluster, &mut Turns::default())
}

/// The same, after other cycles: where one cannot search for all, each is looked at in the end.
#[must_use]
pub fn arbitrate_in_turn(cluster: &Cluster, turns: &mut Turns) -> Cycle {
    let census = Census::of(cluster);
    let deserved = groups::deserve(&cluster.consumers, &census.asks, &census.capacity);
    let entitled = entitled::entitled(cluster, &census, &deserved);
    let steps = plan::plan(cluster, &census, &deserved, &entitled, turns);
    Cycle {
        overused: entitled::overused(&cluster.consumers, &census.asks, &deserved),
        steps,
        census,
        deserved,
    }
}
