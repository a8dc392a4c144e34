//! Why the merged hint is what it is, and why not another one.

use std::fmt;

use super::{Alignment, ProvidedHints};
use crate::placement::hints::HintSet;
use crate::placement::merge::{NumaInfo, best_alone, is_hint};
use crate::placement::numa_mask::NumaMask;

/// More alternatives are not shown.
const ALTERNATIVES_MAX: usize = 16;

/// What a resource offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It may be served anywhere.
    Anywhere,
    /// It cannot be served.
    Nowhere,
    /// On some sets of nodes.
    On {
        /// The best of them, were there no other resource.
        best: NumaMask,
        /// Whether that is preferred.
        preferred: bool,
    },
}

/// What a provider offers for a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceOffer {
    /// The provider.
    pub provider: &'static str,
    /// The resource; `None` if the provider says nothing at all.
    pub resource: Option<String>,
    /// What it offers.
    pub offer: Offer,
}

/// Why a mask is not the merged one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loss {
    /// These resources cannot be served there.
    NotOfferedBy(Vec<String>),
    /// These could be, but do better elsewhere.
    NotPreferredBy(Vec<String>),
    /// All prefer it, and the merged mask has fewer nodes.
    MoreNodes,
    /// All prefer it, it has as many nodes, and they are further apart.
    FurtherApart {
        /// The sum of distances between its nodes.
        sum: u64,
        /// That of the merged mask's.
        best: u64,
    },
    /// All prefer it, and nothing but the numbers of the nodes decided.
    HigherNumber,
    /// It is as good or better: the search was cut short, or the policy allows one node only.
    NotReached,
}

/// A mask that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alternative {
    /// The nodes.
    pub mask: NumaMask,
    /// Why it was not.
    pub loss: Loss,
}

/// A merge as it can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlignmentExplanation {
    /// What each resource offers.
    pub offers: Vec<ResourceOffer>,
    /// What was considered beside the merged hint: what each resource likes best, and single nodes.
    pub alternatives: Vec<Alternative>,
    /// How many single nodes are not shown.
    pub left_out: usize,
}

/// Explains a merge.
#[must_use]
pub fn explain(alignment: &Alignment, numa: &NumaInfo) -> AlignmentExplanation {
    let offers = offers(&alignment.hints, numa);
    let merged = alignment.merged.hint.mask;
    let liked = offers.iter().filter_map(|offer| match offer.offer {
        Offer::On { best, .. } => Some(best),
        Offer::Anywhere | Offer::Nowhere => None,
    });
    let mut masks: Vec<NumaMask> = Vec::new();
    for mask in liked.chain(numa.nodes.iter().map(NumaMask::of)) {
        if Some(mask) != merged && !masks.contains(&mask) {
            masks.push(mask);
        }
    }
    let left_out = masks.len().saturating_sub(ALTERNATIVES_MAX);
    masks.truncate(ALTERNATIVES_MAX);
    let alternative = |mask| Alternative {
        mask,
        loss: loss(mask, alignment, numa),
    };
    AlignmentExplanation {
        alternatives: masks.into_iter().map(alternative).collect(),
        offers,
        left_out,
    }
}

/// What each resource would get alone.
pub(super) fn offers(hints: &[ProvidedHints], numa: &NumaInfo) -> Vec<ResourceOffer> {
    let mut offers = Vec::new();
    for ProvidedHints { provider, hints } in hints {
        let mut add = |resource: Option<&String>, offer| {
            offers.push(ResourceOffer {
                provider,
                resource: resource.cloned(),
                offer,
            });
        };
        if hints.is_empty() {
            add(None, Offer::Anywhere);
        }
        for (resource, hints) in hints {
            add(Some(resource), offer(hints.as_ref(), numa));
        }
    }
    offers
}

fn offer(hints: Option<&HintSet>, numa: &NumaInfo) -> Offer {
    let Some(hints) = hints else {
        return Offer::Anywhere;
    };
    if hints.is_empty() {
        return Offer::Nowhere;
    }
    match best_alone(hints, numa) {
        Some((best, preferred)) => Offer::On { best, preferred },
        None => Offer::Anywhere,
    }
}

fn loss(mask: NumaMask, alignment: &Alignment, numa: &NumaInfo) -> Loss {
    let mut not_offered = Vec::new();
    let mut not_preferred = Vec::new();
    for ProvidedHints { provider, hints } in &alignment.hints {
        for (resource, hints) in hints {
            let Some(hints) = hints else {
                continue;
            };
            let name = || format!("{provider}/{resource}");
            match is_hint(hints, mask) {
                None => not_offered.push(name()),
                Some(false) => not_preferred.push(name()),
                Some(true) => {}
            }
        }
    }
    if !not_offered.is_empty() {
        return Loss::NotOfferedBy(not_offered);
    }
    if !not_preferred.is_empty() {
        return Loss::NotPreferredBy(not_preferred);
    }
    let Some(merged) = alignment
        .merged
        .hint
        .mask
        .filter(|_| alignment.merged.hint.preferred)
    else {
        return Loss::NotReached;
    };
    if mask.len() != merged.len() {
        return if mask.len() > merged.len() {
            Loss::MoreNodes
        } else {
            Loss::NotReached
        };
    }
    if let Some(distances) = &numa.distances {
        let (sum, best) = (distances.sum(mask), distances.sum(merged));
        if sum != best {
            return Loss::FurtherApart { sum, best };
        }
    }
    Loss::HigherNumber
}

impl fmt::Display for ResourceOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.provider)?;
        if let Some(resource) = self.resource.as_ref().filter(|name| *name != self.provider) {
            write!(f, " ({resource})")?;
        }
        match self.offer {
            Offer::Anywhere => f.write_str(" may be anywhere"),
            Offer::Nowhere => f.write_str(" has not enough on any nodes"),
            Offer::On { best, preferred } => {
                let nodes = if best.len() == 1 { "node" } else { "nodes" };
                let how = if preferred {
                    "prefers"
                } else {
                    "has enough only on"
                };
                write!(f, " {how} {nodes} {best}")
            }
        }
    }
}
