//! How long the eviction ranking takes: the part of a decision that grows with the number of pods.

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::policy::eviction::rank::{Nanos, RankRow, Ranking};

/// Rows in a scattered but fixed order: few priorities, and requests that some pods exceed, so that every comparator
/// works.
fn rows(count: u64) -> Vec<RankRow> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |below: u64| {
        // xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    (0..count)
        .map(|_| {
            let request = Nanos::from_units(next(64) << 26);
            RankRow {
                uid: PodUid::new(format!("{:016x}-{:016x}", next(u64::MAX), next(u64::MAX))),
                stats_known: next(100) != 0,
                unnamed: 0,
                exempt: false,
                priority: [0, 0, 0, 1000, 2_000_000_000][next(5) as usize],
                overused: 0,
                over_share: 0,
                usage: next(64) << 26,
                allowance: request,
                request,
            }
        })
        .collect()
}

fn rank(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rank_memory");
    for pods in [100, 1_000, 10_000] {
        let unsorted = rows(pods);
        let mut sort_keys = Vec::with_capacity(unsorted.len());
        group.bench_with_input(
            BenchmarkId::from_parameter(pods),
            &unsorted,
            |bencher, unsorted| {
                bencher.iter_batched_ref(
                    || unsorted.clone(),
                    |rows| Ranking::Memory.rank(black_box(rows), &mut sort_keys),
                    BatchSize::LargeInput,
                );
            },
        );
    }
    group.finish();
}

criterion_group!(benches, rank);
criterion_main!(benches);
