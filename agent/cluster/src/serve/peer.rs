//! Who calls, and what is left for others: connections and time are few, and whoever reaches the port can ask for all
//! of them. Pure.
//!
//! Approach: peers are told apart by their addresses, so one of them can have all that nobody else wants, and no more
//! than its part of what others want too.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;

/// Connections at once.
pub const CONNECTIONS_MAX: usize = 32;
/// So long after an answer its connection stays: it is still being written.
const WRITTEN_MS: u64 = 200;

/// An IPv4 address, or the network of 64 bits of an IPv6 address: one host can have all others of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer(IpAddr);

impl Peer {
    /// Of the address of a connection.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// At most so many in any second, for whoever comes first; beyond, as many again for peers that have had less than
/// their part.
#[derive(Debug)]
pub struct FairPace {
    most: usize,
    /// Those of the last second.
    last: VecDeque<(u64, Peer)>,
}

impl FairPace {
    /// None so far.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self {
            most,
            last: VecDeque::new(),
        }
    }

    /// Whether this peer may have one more, which then counts.
    pub fn takes(&mut self, peer: Peer, mono_ms: u64) -> bool {
        while let Some((at, _)) = self.last.front()
            && mono_ms >= at + 1000
        {
            self.last.pop_front();
        }
        let takes = self.last.len() < self.most
            || (self.last.len() < 2 * self.most && self.has_less_than_its_part(peer));
        if takes {
            self.last.push_back((mono_ms, peer));
        }
        takes
    }

    fn has_less_than_its_part(&self, peer: Peer) -> bool {
        let held = self.last.iter().filter(|(_, other)| *other == peer).count();
        let mut peers: BTreeSet<Peer> = self.last.iter().map(|(_, peer)| *peer).collect();
        peers.insert(peer);
        held < (self.most / peers.len()).max(1)
    }
}

/// A connection; `H` ends it.
#[derive(Debug)]
struct Seat<H> {
    number: u64,
    peer: Peer,
    /// It is not ended before: its review is answered.
    until_ms: u64,
    end: H,
}

/// The connections that there are.
#[derive(Debug)]
pub struct Seats<H> {
    /// Older ones first.
    all: Vec<Seat<H>>,
    next: u64,
}

impl<H> Default for Seats<H> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            next: 0,
        }
    }
}

impl<H> Seats<H> {
    /// A new connection: its number, and what ends another one that makes place for it. That is one of the peer with
    /// the most connections, the oldest of them that is not being answered. Nothing: the peer itself has the most, and
    /// there is no place for one more.
    pub fn take(&mut self, peer: Peer, end: H, mono_ms: u64) -> Option<(u64, Option<H>)> {
        let mut ended = None;
        if self.all.len() >= CONNECTIONS_MAX {
            let of = |of: Peer| self.all.iter().filter(|seat| seat.peer == of).count();
            let can_end = |seat: &&Seat<H>| seat.until_ms <= mono_ms;
            let can_end = self.all.iter().filter(can_end);
            // Of equal ones the oldest: `max_by_key` has the last.
            let greediest = can_end.rev().max_by_key(|seat| {
                // The new one counts.
                of(seat.peer) + usize::from(seat.peer == peer)
            })?;
            if greediest.peer != peer && of(greediest.peer) < of(peer) + 1 {
                return None;
            }
            let number = greediest.number;
            ended = self.free(number);
        }
        let number = self.next;
        self.next += 1;
        self.all.push(Seat {
            number,
            peer,
            until_ms: 0,
            end,
        });
        Some((number, ended))
    }

    /// A connection has ended, or ends.
    pub fn free(&mut self, number: u64) -> Option<H> {
        let at = self.all.iter().position(|seat| seat.number == number)?;
        Some(self.all.remove(at).end)
    }

    /// Its review is being answered, or has been.
    pub fn answers(&mut self, number: u64, is_answered: bool, mono_ms: u64) {
        let mut seats = self.all.iter_mut();
        if let Some(seat) = seats.find(|seat| seat.number == number) {
            seat.until_ms = if is_answered {
                mono_ms + WRITTEN_MS
            } else {
                u64::MAX
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> Peer {
        Peer::of(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn a_host_has_one_network_of_ipv6_and_one_address_of_ipv4() {
        let of = |text: &str| Peer::of(text.parse().unwrap());
        assert_eq!(of("fd00:1:2:3:4:5:6:7"), of("fd00:1:2:3::9"));
        assert_ne!(of("fd00:1:2:3::9"), of("fd00:1:2:4::9"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.2"), of("10.0.0.1"));
    }

    #[test]
    fn one_peer_has_the_whole_pace_and_leaves_others_theirs() {
        let mut pace = FairPace::new(100);
        let had = |pace: &mut FairPace, of: u8, ms: u64| {
            (0..1000).filter(|_| pace.takes(peer(of), ms)).count()
        };
        assert_eq!(had(&mut pace, 1, 0), 100);
        assert_eq!(had(&mut pace, 2, 999), 50, "its half");
        assert_eq!(had(&mut pace, 3, 999), 33, "its third");
        assert_eq!(had(&mut pace, 1, 999), 0);
        assert_eq!(had(&mut pace, 4, 999), 17, "twice the pace, whoever asks");
        // A second later all is as at the beginning.
        assert_eq!(had(&mut pace, 4, 1_999), 100);
    }

    /// A host can take another address of its network for each question.
    #[test]
    fn a_network_of_ipv6_has_one_part_and_one_place_among_peers() {
        let of = |network: u16, host: u16| {
            Peer::of(IpAddr::from([0xfd00, 0, 0, network, 0, 0, 0, host]))
        };
        let mut pace = FairPace::new(100);
        let hosts = (0..1000).filter(|host| pace.takes(of(1, *host), 0));
        assert_eq!(hosts.count(), 100);
        let other = (0..1000).filter(|_| pace.takes(of(2, 0), 0));
        assert_eq!(other.count(), 50, "two peers, so its half");
        let mut seats = Seats::default();
        for host in 0..CONNECTIONS_MAX {
            let host = u16::try_from(host).unwrap();
            seats.take(of(1, host), host, 0).unwrap();
        }
        let (_, ended) = seats.take(of(2, 0), 99, 0).unwrap();
        assert_eq!(ended, Some(0));
        let (_, ended) = seats.take(of(1, 99), 100, 0).unwrap();
        assert_eq!(ended, Some(1), "one of its own");
    }

    /// Ten hosts that ask a thousand times a second each, and one that asks ten times.
    #[test]
    fn who_asks_seldom_is_served_beside_those_who_ask_all_the_time() {
        let mut pace = FairPace::new(100);
        let mut served = 0;
        for ms in 0..10_000 {
            for of in 1..=10 {
                pace.takes(peer(of), ms);
            }
            served += usize::from(ms % 100 == 99 && pace.takes(peer(99), ms));
        }
        assert!(served >= 90, "{served}");
    }

    #[test]
    fn a_peer_that_fills_all_places_makes_room_for_another_and_not_for_itself_alone() {
        let mut seats = Seats::default();
        for at in 0..CONNECTIONS_MAX {
            let (number, ended) = seats.take(peer(1), at, 0).unwrap();
            assert_eq!((number, ended), (at as u64, None));
        }
        let (ours, ended) = seats.take(peer(2), 99, 0).unwrap();
        assert_eq!(ended, Some(0), "the oldest of the greatest");
        // It comes again, and ends one of its own.
        for at in 1..100 {
            let (_, ended) = seats.take(peer(1), 100 + at, 0).unwrap();
            assert!(ended.is_some_and(|ended| ended != 99));
        }
        assert_eq!(seats.free(ours), Some(99));
        assert_eq!(seats.free(ours), None);
    }

    #[test]
    fn what_is_being_answered_is_not_ended() {
        let mut seats = Seats::default();
        for at in 0..CONNECTIONS_MAX {
            let (number, _) = seats.take(peer(1), at, 0).unwrap();
            if at > 0 {
                seats.answers(number, false, 0);
            }
        }
        // All but the one that asks nothing.
        assert_eq!(seats.take(peer(2), 99, 0).unwrap().1, Some(0));
        // The only one that could be ended is of a peer with less.
        assert_eq!(seats.take(peer(1), 100, 0), None);
        seats.answers(5, true, 1_000);
        assert_eq!(
            seats.take(peer(3), 101, 1_000 + WRITTEN_MS - 1).unwrap().1,
            Some(99)
        );
        assert_eq!(
            seats.take(peer(3), 102, 1_000 + WRITTEN_MS).unwrap().1,
            Some(5)
        );
    }

    /// Many hosts with one connection each: a new one takes the place of the oldest that says nothing.
    #[test]
    fn where_each_has_one_the_oldest_goes() {
        let mut seats = Seats::default();
        for at in 0..CONNECTIONS_MAX {
            let of = u8::try_from(at).unwrap();
            seats.take(peer(of), at, 0).unwrap();
        }
        assert_eq!(seats.take(peer(200), 99, 0).unwrap().1, Some(0));
        assert_eq!(seats.take(peer(201), 99, 0).unwrap().1, Some(1));
    }
}
