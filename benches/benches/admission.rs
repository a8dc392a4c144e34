//! How long it takes to ask for a pod in a namespace with 20 quotas and a LimitRange, and to say who takes how much of
//! each.

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_core::kube::admission::Admission;
use plimsoll_core::kube::admission::chain::World;
use plimsoll_core::kube::admission::object::{LimitRange, Object, ResourceQuota};
use plimsoll_core::kube::admission::pod_object::{MorePod, PodObject};
use plimsoll_core::kube::admission::resource_quota::cluster::Cluster;
use plimsoll_core::kube::admission::resource_quota::configuration::Configuration;
use serde_json::{Value, from_value, json};

/// Quotas of the namespace; every other one is for terminating pods, which none of these are.
const QUOTAS: usize = 20;

fn world() -> World {
    let mut world = World::new(
        Admission::Upstream,
        Configuration::default(),
        Cluster::default(),
    );
    let range = json!({"metadata": {"name": "limits", "namespace": "n"}, "spec": {"limits": [
        {"type": "Container", "default": {"cpu": "1", "memory": "256Mi"}, "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "4"}}]}});
    world
        .add_range(from_value::<LimitRange>(range).expect("a LimitRange"))
        .expect("in force");
    for at in 0..QUOTAS {
        let mut quota = json!({"metadata": {"name": format!("q{at}"), "namespace": "n"},
            "spec": {"hard": {"pods": "100k", "requests.cpu": "100k", "limits.memory": "100Ti"}}});
        if at % 2 == 1 {
            quota["spec"]["scopes"] = json!(["Terminating"]);
        }
        world
            .add_quota(from_value::<ResourceQuota>(quota).expect("a quota"))
            .expect("in force");
    }
    world.count();
    world
}

fn pods(count: usize) -> Vec<Object> {
    let pod = |at: usize| {
        let value: Value = json!({"metadata": {"name": format!("p{at}"), "namespace": "n"}, "spec": {"containers": [
            {"name": "main", "resources": {"requests": {"cpu": "500m", "memory": "128Mi"}}}, {"name": "sidecar"}]}});
        let more: MorePod = from_value(value.clone()).expect("a pod");
        Object::Pod(Box::new(PodObject::new(
            from_value(value).expect("a pod"),
            more,
        )))
    };
    (0..count).map(pod).collect()
}

fn admit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("admit");
    for count in [1_000, 10_000] {
        let pods = pods(count);
        group.throughput(Throughput::Elements(
            u64::try_from(count).unwrap_or(u64::MAX),
        ));
        group.sample_size(10);
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter_batched(
                || (world(), pods.clone()),
                |(mut world, pods)| {
                    for pod in pods {
                        world.admit("pods", black_box(pod)).expect("admitted");
                    }
                    world
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// What `plimsoll quota` asks of the same namespace: who takes how much of each quota.
fn takers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("takers");
    for count in [1_000, 10_000] {
        let mut world = world();
        for pod in pods(count) {
            world.admit("pods", pod).expect("admitted");
        }
        group.throughput(Throughput::Elements(
            u64::try_from(count).unwrap_or(u64::MAX),
        ));
        group.sample_size(10);
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter(|| {
                let counts = world.counts();
                let quotas = world.quotas();
                quotas
                    .map(|quota| counts.takers(black_box(&quota)).len())
                    .sum::<usize>()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, admit, takers);
criterion_main!(benches);
