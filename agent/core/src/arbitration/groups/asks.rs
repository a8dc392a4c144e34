//! What a group asks for (`docs/reference/arbitrator.md`, "Who deserves how much").

use std::borrow::Cow;

use super::Tree;
use crate::arbitration::amounts::{Amounts, Bounds, ResourceSet};
use crate::arbitration::demand::{Class, Demand};
use crate::arbitration::fill::round::{UNIT, in_parts};
use crate::arbitration::fill::{Claimant, Filled, Room, fill};

impl Tree<'_> {
    /// From the leaves up: the demand and the floor of every group.
    pub(super) fn ask(&mut self) {
        for at in (0..self.from_the_root.len()).rev() {
            let group = self.from_the_root[at];
            if self.is_group(group) {
                self.ask_for(group);
            }
        }
    }

    fn ask_for(&mut self, group: usize) {
        let room = self.room_of(group);
        let members = self.sharers(group);
        let claimants = self.claimants(&members);
        let filled = fill(
            &claimants,
            Room {
                whole: &self.whole,
                given: &room,
            },
        );
        let demand = joint_demand(&claimants, &filled, &room);
        let consumer = &self.consumers[group];
        let floor = (0..room.len()).map(|resource| {
            let of_members = members.iter().fold(0, |sum: u64, member| {
                sum.saturating_add(self.floors.row(*member)[resource])
            });
            consumer.reserved[resource]
                .max(of_members)
                .min(demand.total[resource])
        });
        let floor: Amounts = floor.collect();
        self.floors.row_mut(group).copy_from_slice(&floor);
        self.demands[group] = Cow::Owned(demand);
    }

    /// What a group's members could have if there were no others: the cluster, within the group's `hard`.
    fn room_of(&self, group: usize) -> Bounds {
        let hard = self.consumers[group].hard.iter();
        hard.zip(&self.whole)
            .map(|bounds| match bounds {
                (Some(hard), Some(whole)) => Some(*hard.min(whole)),
                (hard, whole) => hard.or(*whole),
            })
            .collect()
    }

    /// Consumers as those who take part in a filling, with their floors.
    pub(super) fn claimants(&self, consumers: &[usize]) -> Vec<Claimant<'_>> {
        let claimant = |at: &usize| Claimant {
            weight: self.consumers[*at].weight,
            demand: &self.demands[*at],
            floor: self.floors.row(*at),
            caps: &[],
            used: &self.used[*at],
        };
        consumers.iter().map(claimant).collect()
    }
}

/// What members get of each class, in whole units rounded up, as classes of their group.
fn joint_demand(members: &[Claimant<'_>], filled: &Filled, room: &Bounds) -> Demand {
    let resources = room.len();
    let mut sum = Demand::nothing(resources);
    for (at, member) in members.iter().enumerate() {
        for (class, end) in member.demand.classes.iter().zip(filled.ends(at)) {
            sum.add(class.needs, |resource| {
                let had = u128::from(class.amounts[resource]) * end.fraction;
                u64::try_from(in_parts(had).div_ceil(UNIT)).unwrap_or(u64::MAX)
            });
        }
    }
    for resource in 0..resources {
        if let Some(room) = room[resource] {
            take_excess(
                &mut sum.classes,
                resource,
                sum.total[resource].saturating_sub(room),
            );
        }
    }
    let mut demand = Demand::nothing(resources);
    for Class { amounts, .. } in &sum.classes {
        demand.add(ResourceSet::needed(amounts), |resource| amounts[resource]);
    }
    for resource in 0..resources {
        let floors = filled.floors.column(resource).fold(0, u64::saturating_add);
        let beyond = floors.saturating_sub(demand.total[resource]);
        if beyond > 0 {
            demand.add(ResourceSet::of(resource), |_| beyond);
        }
    }
    demand
}

/// Rounding up can pass the room: takes as much of a resource back, from lesser classes first.
fn take_excess(classes: &mut [Class], resource: usize, mut excess: u64) {
    for class in classes {
        let taken = excess.min(class.amounts[resource]);
        class.amounts[resource] -= taken;
        excess -= taken;
    }
}
