//! Hands jobs from the loop to a thread of lower priority.
//!
//! **Problem.** The loop has a real-time priority and is on its way to a kill: it must not wait for a lock that a
//! thread of ordinary priority can hold, and a channel has one. **Approach.** A few places, each with a lock of its
//! own. The loop only tries each lock: a place that the thread has just locked counts as taken. The thread may wait for
//! the loop, which holds a lock for the time of a move. Wake the thread with `unpark` afterwards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

/// Jobs on their way to a thread, `PLACES` at most. One thread puts, one takes.
#[derive(Debug)]
pub struct Handover<T, const PLACES: usize> {
    places: [Mutex<Option<(u64, T)>>; PLACES],
    next: AtomicU64,
}

impl<T, const PLACES: usize> Default for Handover<T, PLACES> {
    fn default() -> Self {
        Self {
            places: std::array::from_fn(|_| Mutex::new(None)),
            next: AtomicU64::new(0),
        }
    }
}

impl<T, const PLACES: usize> Handover<T, PLACES> {
    /// Returns whether there was a place; without one the job is dropped. Does not wait, allocates nothing.
    pub fn put(&self, job: T) -> bool {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        for place in &self.places {
            let mut place = match place.try_lock() {
                Ok(place) => place,
                Err(TryLockError::Poisoned(place)) => place.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            if place.is_none() {
                *place = Some((number, job));
                return true;
            }
        }
        false
    }

    /// As [`Handover::put`], unless a job that is the `same` waits already: that one does for both. Returns whether one
    /// of them waits.
    ///
    /// A job that the thread has taken does not wait any more, and one in a place that is just locked is not seen: then
    /// the new one is put beside it.
    pub fn put_once(&self, job: T, same: impl Fn(&T, &T) -> bool) -> bool {
        let waits = |place: &Mutex<Option<(u64, T)>>| match place.try_lock() {
            Ok(place) => place.as_ref().is_some_and(|(_, one)| same(one, &job)),
            Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => false,
        };
        self.places.iter().any(waits) || self.put(job)
    }

    /// Whether no job waits. May wait for the thread, for the time of a move.
    pub(crate) fn is_empty(&self) -> bool {
        let lock = |place: &Mutex<Option<(u64, T)>>| {
            let place = place.lock().unwrap_or_else(PoisonError::into_inner);
            place.is_none()
        };
        self.places.iter().all(lock)
    }

    /// The oldest job.
    pub fn take(&self) -> Option<T> {
        let number_at = |place: &Mutex<Option<(u64, T)>>| {
            let place = place.lock().unwrap_or_else(PoisonError::into_inner);
            place.as_ref().map(|(number, _)| *number)
        };
        let places = self.places.iter();
        let (_, oldest) = places
            .filter_map(|place| Some((number_at(place)?, place)))
            .min_by_key(|(number, _)| *number)?;
        let mut oldest = oldest.lock().unwrap_or_else(PoisonError::into_inner);
        oldest.take().map(|(_, job)| job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_job_is_taken_first() {
        let jobs = Handover::<&str, 2>::default();
        assert!(jobs.put("first") && jobs.put("second"));
        assert!(!jobs.put("no place"));
        assert_eq!(jobs.take(), Some("first"));
        assert!(jobs.put("third"), "in the place of the first");
        assert_eq!([jobs.take(), jobs.take()], [Some("second"), Some("third")]);
        assert_eq!(jobs.take(), None);
    }

    #[test]
    fn the_same_job_waits_once() {
        let jobs = Handover::<&str, 2>::default();
        let put = |job| jobs.put_once(job, |one, other| one == other);
        assert!(put("a") && put("a") && put("b"));
        assert!(put("a") && put("b"), "both wait");
        assert!(!put("c"), "no place");
        assert_eq!(jobs.take(), Some("a"));
        assert!(put("a"), "it was taken, and is wanted again");
        assert_eq!([jobs.take(), jobs.take()], [Some("b"), Some("a")]);
        assert_eq!(jobs.take(), None);
    }

    #[test]
    fn a_place_that_is_locked_counts_as_taken() {
        let jobs = Handover::<u32, 2>::default();
        let held = jobs.places[0].lock().unwrap();
        assert!(jobs.put(1));
        assert!(!jobs.put(2), "does not wait for the lock");
        drop(held);
        assert_eq!(jobs.take(), Some(1));
    }
}
