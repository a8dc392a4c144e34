//! Reviews that are not answered yet. A refusal waits a second for what the watch has yet to say: a group and its first
//! member are often written within milliseconds.

use std::collections::VecDeque;

use super::{Question, Verdict, review};
use crate::arbitrate::store::{Kind, Store};
use crate::clock::Now;

/// How long a refusal waits.
const WAIT_MS: u64 = 1_000;
/// Refusals that wait at once; a further one is answered as it is.
const WAITING_MAX: usize = 16;
/// What waits is judged anew at most so often.
const AGAIN_EVERY_MS: u64 = 100;

/// Reviews; `R` is where the answer goes.
#[derive(Debug)]
pub struct Waiting<R> {
    /// With the time at which it is answered whatever it is then.
    all: VecDeque<(Question, R, u64)>,
    /// A watch has said something that reviews look at.
    has_news: bool,
    next_ms: u64,
}

impl<R> Default for Waiting<R> {
    fn default() -> Self {
        Self {
            all: VecDeque::new(),
            has_news: false,
            next_ms: 0,
        }
    }
}

impl<R> Waiting<R> {
    /// A watch of this kind has said something.
    pub fn hear(&mut self, kind: Kind) {
        self.has_news |= super::COMPARED.contains(&kind);
    }

    /// Takes a question. What can be answered at once comes back.
    pub fn ask(
        &mut self,
        store: &Store,
        question: Question,
        reply: R,
        now: Now,
    ) -> Option<(R, Verdict)> {
        let verdict = review(store, &question);
        if verdict.refused.is_empty() || self.all.len() >= WAITING_MAX {
            return Some((reply, verdict));
        }
        self.all.push_back((question, reply, now.mono_ms + WAIT_MS));
        None
    }

    /// What can be answered now.
    pub fn due(&mut self, store: &Store, now: Now) -> Vec<(R, Verdict)> {
        let ms = now.mono_ms;
        let is_again = self.has_news && ms >= self.next_ms;
        if is_again {
            self.has_news = false;
            self.next_ms = ms + AGAIN_EVERY_MS;
        }
        let mut answered = Vec::new();
        for (question, reply, until_ms) in std::mem::take(&mut self.all) {
            let is_last = ms >= until_ms;
            let verdict = (is_again || is_last).then(|| review(store, &question));
            match verdict.filter(|verdict| is_last || verdict.refused.is_empty()) {
                Some(verdict) => answered.push((reply, verdict)),
                None => self.all.push_back((question, reply, until_ms)),
            }
        }
        answered
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::arbitrate::review::tests::store;
    use crate::watch_event::WatchEvent;

    fn at(mono_ms: u64) -> Now {
        Now {
            mono_ms,
            unix_ms: 0,
        }
    }

    fn member(parent: &str) -> Question {
        let object =
            json!({"metadata": {"name": "c"}, "spec": {"namespace": "c", "parent": parent}});
        let review = json!({"request": {"uid": "r", "object": object}});
        Question::read(review.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_refusal_waits_for_the_group_that_was_written_just_before() {
        let (mut store, mut waiting) = (store(), Waiting::default());
        assert_eq!(waiting.ask(&store, member("new"), 1, at(0)), None);
        assert!(waiting.due(&store, at(50)).is_empty());
        let group = json!({"metadata": {"name": "new"}, "spec": {}});
        store.hear(
            Kind::Consumers,
            WatchEvent::Object(group.to_string().into_bytes()),
        );
        waiting.hear(Kind::Consumers);
        assert_eq!(waiting.due(&store, at(60)), [(1, Verdict::default())]);
        assert!(waiting.due(&store, at(2_000)).is_empty());
    }

    #[test]
    fn it_is_answered_after_a_second_and_what_is_right_at_once() {
        let (store, mut waiting) = (store(), Waiting::default());
        assert_eq!(waiting.ask(&store, member("nowhere"), 1, at(0)), None);
        let right = waiting.ask(&store, member("group"), 2, at(10));
        assert_eq!(right, Some((2, Verdict::default())));
        waiting.hear(Kind::Pods);
        waiting.hear(Kind::Consumers);
        assert!(waiting.due(&store, at(999)).is_empty());
        let answered = waiting.due(&store, at(1_000));
        assert_eq!((answered.len(), answered[0].1.refused.len()), (1, 1));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (store, mut waiting) = (store(), Waiting::default());
        let mut answered = 0;
        for at_once in 0..200 {
            let asked = waiting.ask(&store, member("nowhere"), at_once, at(0));
            answered += usize::from(asked.is_some());
        }
        assert_eq!(waiting.all.len(), WAITING_MAX);
        assert_eq!(answered, 200 - WAITING_MAX);
        assert_eq!(waiting.due(&store, at(1_000)).len(), WAITING_MAX);
    }
}
