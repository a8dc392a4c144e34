//! A kubelet's `/metrics/resource`, which metrics-server reads: CPU time, memory and swap of node, pods and containers,
//! in the classic text.
//!
//! Names, labels, help and times as in `pkg/kubelet/metrics/collectors/resource_metrics.go` of 1.36. `scrape_error`,
//! which it hides since 1.29, is left out.

use std::fmt::Write as _;

use super::clock::Time;
use super::shape::{ContainerStats, CpuStats, MemoryStats, NodeStats, PodStats, SwapStats};

const NS_PER_S: f64 = 1e9;

/// One value, and when it was read. `None`: as of now.
type Sample = Option<(f64, Option<Time>)>;

/// What is said of a container.
type OfContainer = fn(&ContainerStats) -> Sample;
/// What is said of a pod.
type OfPod = fn(&PodStats) -> Sample;

/// The page; `None`: nothing could be read.
pub fn page(read: Option<(&NodeStats, &[PodStats])>) -> String {
    let mut page = Page(String::new());
    if let Some((node, pods)) = read {
        page.containers(pods);
        page.node(node);
        page.pods(pods);
    }
    let failed = f64::from(u8::from(read.is_none()));
    page.family(
        "resource_scrape_error",
        "gauge",
        "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
        [(String::new(), Some((failed, None)))],
    );
    page.0
}

fn cpu(stats: Option<&CpuStats>) -> Sample {
    let stats = stats?;
    #[expect(
        clippy::cast_precision_loss,
        reason = "as the kubelet does; 2^53 ns are 104 days of CPU time, and from there on it is exact to a few of them"
    )]
    let seconds = stats.usage_core_nano_seconds? as f64 / NS_PER_S;
    Some((seconds, Some(stats.time)))
}

fn bytes(value: u64, at: Time) -> Sample {
    #[expect(
        clippy::cast_precision_loss,
        reason = "as the kubelet does; exact up to 8 PiB"
    )]
    Some((value as f64, Some(at)))
}

fn memory(stats: Option<&MemoryStats>) -> Sample {
    let stats = stats?;
    bytes(stats.working_set_bytes?, stats.time)
}

fn swap(stats: Option<&SwapStats>) -> Sample {
    let stats = stats?;
    bytes(stats.swap_usage_bytes?, stats.time)
}

fn swap_limit(stats: Option<&SwapStats>) -> Sample {
    let stats = stats?;
    let used = stats.swap_usage_bytes.unwrap_or(0);
    bytes(stats.swap_available_bytes?.saturating_add(used), stats.time)
}

struct Page(String);

impl Page {
    fn containers(&mut self, pods: &[PodStats]) {
        let families: [(&str, &str, &str, OfContainer); 5] = [
            (
                "container_cpu_usage_seconds_total",
                "counter",
                "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
                |it| cpu(it.cpu.as_ref()),
            ),
            (
                "container_memory_working_set_bytes",
                "gauge",
                "[STABLE] Current working set of the container in bytes",
                |it| memory(it.memory.as_ref()),
            ),
            (
                "container_start_time_seconds",
                "gauge",
                "[STABLE] Start time of the container since unix epoch in seconds",
                |it| {
                    let start = it.start_time.0;
                    (!start.is_zero()).then_some((start.as_secs_f64(), None))
                },
            ),
            (
                "container_swap_limit_bytes",
                "gauge",
                "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems",
                |it| swap_limit(it.swap.as_ref()),
            ),
            (
                "container_swap_usage_bytes",
                "gauge",
                "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
                |it| swap(it.swap.as_ref()),
            ),
        ];
        for (name, kind, help, of) in families {
            let rows = pods.iter().flat_map(|pod| {
                let labels = |it: &ContainerStats| {
                    let (container, pod) = (label("container", &it.name), pod_labels(pod));
                    // In the order of their names, as the kubelet's are.
                    let [namespace, pod] = pod;
                    format!("{{{container},{namespace},{pod}}}")
                };
                pod.containers.iter().map(move |it| (labels(it), of(it)))
            });
            self.family(name, kind, help, rows);
        }
    }

    fn node(&mut self, node: &NodeStats) {
        let mut one = |name, kind, help, value| {
            self.family(name, kind, help, [(String::new(), value)]);
        };
        one(
            "node_cpu_usage_seconds_total",
            "counter",
            "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
            cpu(node.cpu.as_ref()),
        );
        one(
            "node_memory_working_set_bytes",
            "gauge",
            "[STABLE] Current working set of the node in bytes",
            memory(node.memory.as_ref()),
        );
        one(
            "node_swap_usage_bytes",
            "gauge",
            "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
            swap(node.swap.as_ref()),
        );
    }

    fn pods(&mut self, pods: &[PodStats]) {
        let families: [(&str, &str, &str, OfPod); 3] = [
            (
                "pod_cpu_usage_seconds_total",
                "counter",
                "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
                |it| cpu(it.cpu.as_ref()),
            ),
            (
                "pod_memory_working_set_bytes",
                "gauge",
                "[STABLE] Current working set of the pod in bytes",
                |it| memory(it.memory.as_ref()),
            ),
            (
                "pod_swap_usage_bytes",
                "gauge",
                "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
                |it| swap(it.swap.as_ref()),
            ),
        ];
        for (name, kind, help, of) in families {
            let rows = pods.iter().map(|it| {
                let [namespace, pod] = pod_labels(it);
                (format!("{{{namespace},{pod}}}"), of(it))
            });
            self.family(name, kind, help, rows);
        }
    }

    /// A family without rows is left out.
    fn family(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        rows: impl IntoIterator<Item = (String, Sample)>,
    ) {
        let mut is_first = true;
        for (labels, sample) in rows {
            let Some((value, at)) = sample else { continue };
            if std::mem::take(&mut is_first) {
                self.line(format_args!("# HELP {name} {help}"));
                self.line(format_args!("# TYPE {name} {kind}"));
            }
            match at {
                Some(Time(at)) => {
                    self.line(format_args!("{name}{labels} {value} {}", at.as_millis()));
                }
                None => self.line(format_args!("{name}{labels} {value}")),
            }
        }
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        // To memory it can always be written.
        writeln!(self.0, "{text}").ok();
    }
}

/// Those of its pod, sorted by name.
fn pod_labels(pod: &PodStats) -> [String; 2] {
    [
        label("namespace", &pod.pod_ref.namespace),
        label("pod", &pod.pod_ref.name),
    ]
}

fn label(name: &str, value: &str) -> String {
    let mut text = format!("{name}=\"");
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::shape::PodReference;
    use super::*;

    #[test]
    fn a_page_is_a_kubelets() {
        let at = Time(Duration::from_millis(1_700_000_000_123));
        let cpu = |usage_core_nano_seconds| CpuStats {
            time: at,
            usage_core_nano_seconds,
            ..CpuStats::default()
        };
        let memory = |working_set_bytes| MemoryStats {
            time: at,
            working_set_bytes,
            ..MemoryStats::default()
        };
        let node = NodeStats {
            cpu: Some(cpu(Some(5_250_000_000))),
            memory: Some(memory(Some(1 << 40))),
            ..NodeStats::default()
        };
        let app = ContainerStats {
            name: "app".to_owned(),
            start_time: Time(Duration::from_millis(1_699_999_999_500)),
            cpu: Some(cpu(Some(1))),
            memory: Some(memory(Some(4096))),
            swap: Some(SwapStats {
                time: at,
                swap_available_bytes: Some(90),
                swap_usage_bytes: Some(10),
            }),
            ..ContainerStats::default()
        };
        // Of one that has ended nothing is known.
        let ended = ContainerStats {
            name: "init".to_owned(),
            cpu: Some(cpu(None)),
            ..ContainerStats::default()
        };
        let pod = PodStats {
            pod_ref: PodReference {
                name: "we\"b".to_owned(),
                namespace: "shop".to_owned(),
                uid: "u".to_owned(),
            },
            containers: vec![app, ended],
            memory: Some(memory(Some(8192))),
            ..PodStats::default()
        };
        let page = page(Some((&node, &[pod])));
        let series: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            series,
            [
                r#"container_cpu_usage_seconds_total{container="app",namespace="shop",pod="we\"b"} 0.000000001 1700000000123"#,
                r#"container_memory_working_set_bytes{container="app",namespace="shop",pod="we\"b"} 4096 1700000000123"#,
                r#"container_start_time_seconds{container="app",namespace="shop",pod="we\"b"} 1699999999.5"#,
                r#"container_swap_limit_bytes{container="app",namespace="shop",pod="we\"b"} 100 1700000000123"#,
                r#"container_swap_usage_bytes{container="app",namespace="shop",pod="we\"b"} 10 1700000000123"#,
                "node_cpu_usage_seconds_total 5.25 1700000000123",
                "node_memory_working_set_bytes 1099511627776 1700000000123",
                r#"pod_memory_working_set_bytes{namespace="shop",pod="we\"b"} 8192 1700000000123"#,
                "resource_scrape_error 0",
            ]
        );
        assert!(page.starts_with(
            "# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds\n\
             # TYPE container_cpu_usage_seconds_total counter\n"
        ));
        assert_eq!(page.matches("# TYPE ").count(), series.len(), "{page}");
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let page = page(None);
        assert!(page.ends_with("\nresource_scrape_error 1\n"), "{page}");
        assert_eq!(page.lines().count(), 3);
    }
}
