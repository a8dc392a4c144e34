//! Records with running totals → spans and marks on the time line.
//!
//! A record says at its time how often and how long something has happened *so far*, so the difference to the one
//! before is what has ended since. One wait is one span that ends with its record. Where several waits came with one
//! record (a lost one, or `--window`), the span is as long as one of them was on average: never more than what was, and
//! the whole sum is with it. Spans of a cgroup that overlap (several tasks, several CPUs) become one: "somebody waited
//! here", as PSI's *some*.
//!
//! The programs are attached a while before the session begins, because loading takes its time. What they tell of that
//! while is where counting begins, and nothing else.

use std::collections::HashMap;

use super::groups::GroupIndex;

/// Marks of one kind and cgroup that come closer than this are one.
const MARK_MERGE_NS: u64 = 1_000_000;

/// What lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum SpanKind {
    /// A run queue was stopped by the CPU limit.
    Throttled,
    /// A task waited for memory, whatever the reason.
    MemoryStall,
    /// A task reclaimed because of a limit.
    LimitReclaim,
    /// A task slept because `memory.high` is exceeded.
    HighSleep,
    /// A task reclaimed because the node is short.
    NodeReclaim,
}

impl SpanKind {
    /// All of them.
    pub(super) const ALL: [SpanKind; 5] = [
        SpanKind::Throttled,
        SpanKind::MemoryStall,
        SpanKind::LimitReclaim,
        SpanKind::HighSleep,
        SpanKind::NodeReclaim,
    ];

    /// For tracks and JSON.
    pub(super) const fn name(self) -> &'static str {
        match self {
            SpanKind::Throttled => "throttled",
            SpanKind::MemoryStall => "memory stall",
            SpanKind::LimitReclaim => "reclaim for limit",
            SpanKind::HighSleep => "held at memory.high",
            SpanKind::NodeReclaim => "reclaim for node",
        }
    }
}

/// What happens at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum MarkKind {
    /// The kernel's OOM killer chose a process.
    OomKill,
    /// `memory.high` was met.
    High,
    /// `memory.max` was met.
    Max,
    /// The memcg OOM path was entered.
    Oom,
    /// Pages were read back: anonymous memory.
    RefaultAnon,
    /// Pages were read back: page cache.
    RefaultFile,
    /// Pages were read back from swap.
    SwapIn,
    /// kswapd woke up.
    KswapdWake,
    /// A task began to reclaim by itself.
    DirectReclaim,
}

impl MarkKind {
    /// For tracks and JSON.
    pub(super) const fn name(self) -> &'static str {
        match self {
            MarkKind::OomKill => "OOM kill",
            MarkKind::High => "memory.high met",
            MarkKind::Max => "memory.max met",
            MarkKind::Oom => "memcg OOM",
            MarkKind::RefaultAnon => "refault anon",
            MarkKind::RefaultFile => "refault file",
            MarkKind::SwapIn => "swap in",
            MarkKind::KswapdWake => "kswapd woken",
            MarkKind::DirectReclaim => "direct reclaim",
        }
    }
}

/// Something that lasted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Whose.
    pub(super) group: GroupIndex,
    /// What.
    pub(super) kind: SpanKind,
    /// From.
    pub(super) start_ns: u64,
    /// Until.
    pub(super) end_ns: u64,
    /// How many waits are in it.
    pub(super) count: u64,
    /// Their time, one after the other.
    pub(super) sum_ns: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// To whom.
    pub(super) group: GroupIndex,
    /// What.
    pub(super) kind: MarkKind,
    /// When first.
    pub(super) ts_ns: u64,
    /// When last.
    last_ns: u64,
    /// How often.
    pub(super) count: u64,
    /// What else there is to say.
    pub(super) detail: Option<String>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    count: u64,
    sum_ns: u64,
}

/// All spans and marks of a session.
#[derive(Debug)]
pub(super) struct Spans {
    start_ns: u64,
    max: usize,
    spans: Vec<Span>,
    marks: Vec<Mark>,
    totals: HashMap<(GroupIndex, SpanKind), Totals>,
    last_span: HashMap<(GroupIndex, SpanKind), usize>,
    counts: HashMap<(GroupIndex, MarkKind), u64>,
    last_mark: HashMap<(GroupIndex, MarkKind), usize>,
    /// Those that found no room.
    pub(super) not_kept: u64,
}

impl Spans {
    /// None yet, of a session that began at `start_ns`; `max` of each at most.
    pub(super) fn new(start_ns: u64, max: usize) -> Self {
        Self {
            start_ns,
            max,
            spans: Vec::new(),
            marks: Vec::new(),
            totals: HashMap::new(),
            last_span: HashMap::new(),
            counts: HashMap::new(),
            last_mark: HashMap::new(),
            not_kept: 0,
        }
    }

    /// A record of something that lasts, with totals so far.
    pub(super) fn totals(
        &mut self,
        group: GroupIndex,
        kind: SpanKind,
        ts_ns: u64,
        count: u64,
        sum_ns: u64,
    ) {
        let before = self.totals.entry((group, kind)).or_default();
        // Records of two CPUs may come in another order than they were counted: what is missing in one is in the other.
        let (Some(new), Some(new_sum_ns)) = (
            count.checked_sub(before.count).filter(|new| *new > 0),
            sum_ns.checked_sub(before.sum_ns),
        ) else {
            return;
        };
        *before = Totals { count, sum_ns };
        if ts_ns < self.start_ns {
            return;
        }
        // It may have begun before the session did.
        let start_ns = ts_ns.saturating_sub(new_sum_ns / new).max(self.start_ns);
        if let Some(last) = self.last_span.get(&(group, kind))
            && let Some(last) = self.spans.get_mut(*last)
            && start_ns <= last.end_ns
        {
            last.start_ns = last.start_ns.min(start_ns);
            last.end_ns = last.end_ns.max(ts_ns);
            last.count += new;
            last.sum_ns += new_sum_ns;
            return;
        }
        if self.spans.len() >= self.max {
            self.not_kept += 1;
            return;
        }
        self.last_span.insert((group, kind), self.spans.len());
        self.spans.push(Span {
            group,
            kind,
            start_ns,
            end_ns: ts_ns,
            count: new,
            sum_ns: new_sum_ns,
        });
    }

    /// A record of something that happens, with how often so far.
    pub(super) fn happened(&mut self, group: GroupIndex, kind: MarkKind, ts_ns: u64, count: u64) {
        let before = self.counts.entry((group, kind)).or_default();
        let new = count.saturating_sub(*before);
        *before = count.max(*before);
        if new > 0 && ts_ns >= self.start_ns {
            self.mark(group, kind, ts_ns, new, None);
        }
    }

    /// Something that has a record each time it happens.
    pub(super) fn mark(
        &mut self,
        group: GroupIndex,
        kind: MarkKind,
        ts_ns: u64,
        count: u64,
        detail: Option<String>,
    ) {
        if detail.is_none()
            && let Some(last) = self.last_mark.get(&(group, kind))
            && let Some(last) = self.marks.get_mut(*last)
            && ts_ns.saturating_sub(last.last_ns) < MARK_MERGE_NS
        {
            last.count += count;
            last.last_ns = last.last_ns.max(ts_ns);
            return;
        }
        if self.marks.len() >= self.max {
            self.not_kept += 1;
            return;
        }
        self.last_mark.insert((group, kind), self.marks.len());
        self.marks.push(Mark {
            group,
            kind,
            ts_ns,
            last_ns: ts_ns,
            count,
            detail,
        });
    }

    /// All of both, by their start. Spans of one cgroup and kind do not overlap.
    pub(super) fn finish(mut self) -> (Vec<Span>, Vec<Mark>) {
        self.spans
            .sort_by_key(|span| (span.group, span.kind, span.start_ns));
        let mut merged: Vec<Span> = Vec::with_capacity(self.spans.len());
        for span in self.spans {
            match merged.last_mut() {
                // A record that came late may have grown backwards into another.
                Some(last)
                    if (last.group, last.kind) == (span.group, span.kind)
                        && span.start_ns <= last.end_ns =>
                {
                    last.end_ns = last.end_ns.max(span.end_ns);
                    last.count += span.count;
                    last.sum_ns += span.sum_ns;
                }
                _ => merged.push(span),
            }
        }
        merged.sort_by_key(|span| (span.start_ns, span.group, span.kind));
        self.marks
            .sort_by_key(|mark| (mark.ts_ns, mark.group, mark.kind));
        (merged, self.marks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans_of(records: &[(u64, u64, u64)]) -> Vec<(u64, u64, u64, u64)> {
        let mut spans = Spans::new(100, 10);
        for (ts_ns, count, sum_ns) in records {
            spans.totals(0, SpanKind::Throttled, *ts_ns, *count, *sum_ns);
        }
        let (spans, _) = spans.finish();
        spans
            .iter()
            .map(|span| (span.start_ns, span.end_ns, span.count, span.sum_ns))
            .collect()
    }

    #[test]
    fn each_wait_is_a_span_that_ends_with_its_record() {
        assert_eq!(
            spans_of(&[(200, 1, 50), (400, 2, 150)]),
            [(150, 200, 1, 50), (300, 400, 1, 100)]
        );
    }

    #[test]
    fn waits_that_overlap_are_one_span() {
        // Two CPUs, throttled over the same time.
        assert_eq!(
            spans_of(&[(200, 1, 50), (202, 2, 100)]),
            [(150, 202, 2, 100)]
        );
    }

    #[test]
    fn several_waits_in_one_record_are_as_long_as_one() {
        assert_eq!(spans_of(&[(500, 4, 80)]), [(480, 500, 4, 80)]);
    }

    #[test]
    fn nothing_begins_before_the_session_or_is_counted_twice() {
        assert_eq!(spans_of(&[(150, 1, 500)]), [(100, 150, 1, 500)]);
        // Late: its count is in the record before.
        assert_eq!(spans_of(&[(300, 2, 40), (299, 1, 20)]), [(280, 300, 2, 40)]);
    }

    #[test]
    fn what_was_before_the_session_is_where_counting_begins() {
        assert_eq!(
            spans_of(&[(99, 7, 7_000), (200, 8, 7_050)]),
            [(150, 200, 1, 50)]
        );
        let mut spans = Spans::new(100, 10);
        spans.happened(0, MarkKind::Max, 99, 7);
        spans.happened(0, MarkKind::Max, 200, 8);
        let (_, marks) = spans.finish();
        assert_eq!((marks.len(), marks[0].count), (1, 1));
    }

    #[test]
    fn marks_in_a_flood_are_one_with_a_count() {
        let mut spans = Spans::new(0, 10);
        spans.happened(0, MarkKind::High, 1_000, 5);
        spans.happened(0, MarkKind::High, 2_000, 7);
        spans.happened(0, MarkKind::High, 2_000, 7);
        spans.happened(1, MarkKind::High, 2_000, 1);
        spans.happened(0, MarkKind::High, 9_000_000, 8);
        let (_, marks) = spans.finish();
        let seen: Vec<_> = marks
            .iter()
            .map(|mark| (mark.group, mark.ts_ns, mark.count))
            .collect();
        assert_eq!(seen, [(0, 1_000, 7), (1, 2_000, 1), (0, 9_000_000, 1)]);
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let mut spans = Spans::new(0, 2);
        for turn in 1..=5 {
            spans.totals(0, SpanKind::MemoryStall, turn * 1_000, turn, turn);
            spans.mark(0, MarkKind::OomKill, turn, 1, Some("x".into()));
        }
        assert_eq!(spans.not_kept, 6);
        let (spans, marks) = spans.finish();
        assert_eq!((spans.len(), marks.len()), (2, 2));
    }
}
