//! The search for the best set of two or three victims: every one is tried, but for those that are known not to be the
//! best.
//!
//! [Kinds](super::kinds) are tried instead of pods. They stand in the order in which the comparison looks at a single
//! pod of each, so the first sets are good ones. A set is at least as bad as what is in it already, in every part of
//! the comparison (the highest priority, the loss, the least excess and the age of the oldest only get worse by another
//! victim): what is worse than the best so far is not gone on with.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::Planner;
use super::search::{Found, Need, Worth, missing};
use crate::arbitration::entitled::Entitled;

/// Up to so many victims all sets are tried.
const EXACT_MAX: usize = 3;

/// A node on which pods could leave.
pub(super) struct Site<'a> {
    pub(super) node: usize,
    pub(super) need: Need,
    /// Those who could leave, each for itself, by kind; the best first.
    choices: Vec<Choice<'a>>,
    /// For each of them what the greatest of it and of those after it have of each resource that is needed, one row
    /// after the other.
    most: Vec<u64>,
    /// Fewer than so many cannot make enough room.
    fewest: usize,
}

/// Candidates of a kind.
struct Choice<'a> {
    /// The youngest first.
    members: &'a [usize],
    /// How good the youngest alone would be: none of a set with one of them is better.
    worth: Worth,
}

impl Site<'_> {
    /// All who could leave.
    pub(super) fn candidates(&self) -> Vec<usize> {
        let all = self.choices.iter().flat_map(|choice| choice.members);
        all.copied().collect()
    }

    /// No set is better.
    fn bound(&self) -> Option<Worth> {
        self.choices.first().map(|choice| choice.worth)
    }
}

/// A set of which it is only said how many of each kind.
#[derive(Default)]
struct Trial {
    /// The youngest of each kind.
    set: Vec<usize>,
    /// Of each victim its choice, ascending.
    of: Vec<usize>,
}

impl Planner<'_> {
    /// Who could leave on a node. Nothing if that cannot be enough.
    pub(super) fn site<'a>(
        &'a self,
        entitled: &Entitled,
        node: usize,
        need: Need,
        excesses: &mut BTreeMap<usize, i128>,
        found: &mut Found<'a>,
    ) -> Option<Site<'a>> {
        let missing = missing(&need);
        let minimum_run_time = self.minimum_run_time(entitled);
        let mut choices = Vec::new();
        for kind in self.kinds.on(node, self.cluster, &self.candidates) {
            found.steps.take(1);
            let members = kind.since(&self.candidates, minimum_run_time);
            let Some(first) = members.first().copied() else {
                continue;
            };
            if self.may_leave(entitled, first, &need, missing) {
                let namespace = self.candidates.get(first).namespace;
                let excess = excesses
                    .entry(namespace)
                    .or_insert_with(|| self.excess(namespace));
                let worth = self.worth(node, &[first], self.loss(&[first]), *excess);
                choices.push(Choice { members, worth });
            }
        }
        choices.sort_by_key(|choice| choice.worth);
        let fewest = need
            .iter()
            .map(|need| self.fewest(&choices, *need))
            .try_fold(1, |most, fewest| Some(most.max(fewest?)))?;
        let width = need.len();
        let mut most = vec![0; choices.len() * width];
        for (at, choice) in choices.iter().enumerate().rev() {
            let requests = self.candidates.requests(choice.members[0]);
            for (place, (resource, _)) in need.iter().enumerate() {
                let after = most.get((at + 1) * width + place).copied().unwrap_or(0);
                most[at * width + place] = requests[*resource].max(after);
            }
        }
        Some(Site {
            node,
            need,
            choices,
            most,
            fewest,
        })
    }

    /// How few of the candidates can have so much of a resource.
    fn fewest(&self, choices: &[Choice], (resource, need): (usize, u64)) -> Option<usize> {
        let amount =
            |choice: &Choice| u128::from(self.candidates.requests(choice.members[0])[resource]);
        let amounts = choices.iter();
        let mut amounts: Vec<(u128, usize)> = amounts
            .map(|choice| (amount(choice), choice.members.len()))
            .filter(|(amount, _)| *amount > 0)
            .collect();
        amounts.sort_unstable_by_key(|(amount, _)| Reverse(*amount));
        let (mut missing, mut before) = (u128::from(need), 0);
        for (amount, count) in amounts {
            let enough = usize::try_from(missing.div_ceil(amount)).unwrap_or(usize::MAX);
            if enough <= count {
                return Some((before + enough).max(1));
            }
            before += count;
            missing -= amount * count as u128;
        }
        None
    }

    /// The best set of more than one on these sites, the smallest first.
    pub(super) fn try_sets<'a>(&'a self, sites: &mut [Site<'a>], found: &mut Found<'a>) {
        sites.sort_by_key(Site::bound);
        for count in 2..=EXACT_MAX {
            for site in sites.iter() {
                if site.bound().is_some_and(|bound| !found.can_be_best(bound)) {
                    break;
                }
                if site.fewest <= count {
                    self.try_more(site, count, &mut Trial::default(), found);
                }
            }
            if found.is_found() {
                return;
            }
        }
    }

    /// Tries every set of so many victims that begins with these. What breaks a rule, or costs too much, does so with
    /// more victims, too.
    fn try_more<'a>(
        &'a self,
        site: &Site<'a>,
        count: usize,
        trial: &mut Trial,
        found: &mut Found<'a>,
    ) {
        let left = count - trial.set.len();
        let from = trial.of.last().copied().unwrap_or(0);
        for at in from..site.choices.len() {
            let choice = &site.choices[at];
            if !found.can_be_best(choice.worth) || !self.can_cover(site, at, left, &trial.set) {
                break;
            }
            let taken = trial.of.iter().filter(|of| **of == at).count();
            let Some(member) = choice.members.get(taken) else {
                continue;
            };
            if !found.sets.take(1) {
                return;
            }
            trial.set.push(*member);
            trial.of.push(at);
            if left == 1 {
                self.keep_best(site, trial, found);
            } else if self.keeps_rules(&trial.set, &site.need) && {
                let loss = self.loss(&trial.set);
                found.affords(loss) && self.can_be_best(site, &trial.set, loss, found)
            } {
                self.try_more(site, count, trial, found);
            }
            trial.set.pop();
            trial.of.pop();
        }
    }

    /// Whether a set with these in it can be as good as the best.
    fn can_be_best(&self, site: &Site, set: &[usize], loss: i128, found: &Found) -> bool {
        !found.is_found()
            || found.can_be_best(self.worth(site.node, set, loss, self.least_excess(set)))
    }

    /// Whether a set can make enough room with so many more of this choice and those after it.
    fn can_cover(&self, site: &Site, at: usize, left: usize, set: &[usize]) -> bool {
        let mut need = site.need.iter().zip(&site.most[at * site.need.len()..]);
        need.all(|((resource, need), most)| {
            let freed = set
                .iter()
                .map(|at| u128::from(self.candidates.requests(*at)[*resource]));
            freed.sum::<u128>() + u128::from(*most) * left as u128 >= u128::from(*need)
        })
    }

    /// Of the sets with so many of each kind the best one, if it may leave, is enough, and is better.
    fn keep_best<'a>(&'a self, site: &Site<'a>, trial: &Trial, found: &mut Found<'a>) {
        let set = &trial.set;
        if self.covers(set, &site.need) && self.keeps_rules(set, &site.need) {
            self.weigh(site.node, set, found, |age| {
                let kinds = trial.of.chunk_by(|a, b| a == b);
                let least = |of: &[usize]| self.least(site.choices[of[0]].members, age, of.len());
                kinds.flat_map(least).collect()
            });
        }
    }

    /// Of those that are not older the ones with the least UIDs.
    fn least(&self, members: &[usize], age: u64, count: usize) -> Vec<usize> {
        let younger = members.partition_point(|at| self.candidates.get(*at).age <= age);
        let mut members = members[..younger].to_vec();
        let uid = |at: &usize| self.uid(self.candidates.get(*at).pod);
        members.sort_unstable_by(|a, b| uid(a).cmp(uid(b)));
        members.truncate(count);
        members
    }
}
