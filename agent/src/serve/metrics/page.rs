//! One page: families of series, each with its help, type and unit, in the encoder of `prometheus-client`.

use std::collections::HashMap;
use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Unit;

use crate::record::tally::{BOUNDS_NS, Latencies};

const NS_PER_S: f64 = 1e9;

/// One value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Count(u64),
    Level(i64),
    Float(f64),
    Latencies(&'a Latencies),
}

/// Name and value.
type Label<'a> = (&'static str, &'a str);

/// A page that is being written.
pub(super) struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl<'a> Page<'a> {
    pub(super) fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self { encoder }
    }

    /// Series that only grow. The encoder ends their names with the unit and `_total`.
    pub(super) fn counter<'v, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        unit: &str,
        rows: impl IntoIterator<Item = ([Label<'v>; N], Value<'v>)>,
    ) -> fmt::Result {
        self.family(name, help, unit, MetricType::Counter, rows)
    }

    /// Series that come and go. The encoder ends their names with the unit.
    pub(super) fn gauge<'v, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        unit: &str,
        rows: impl IntoIterator<Item = ([Label<'v>; N], Value<'v>)>,
    ) -> fmt::Result {
        self.family(name, help, unit, MetricType::Gauge, rows)
    }

    /// How often something took how long, in seconds.
    pub(super) fn histogram<'v, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = ([Label<'v>; N], &'v Latencies)>,
    ) -> fmt::Result {
        let rows = rows
            .into_iter()
            .map(|(labels, latencies)| (labels, Value::Latencies(latencies)));
        self.family(name, help, "seconds", MetricType::Histogram, rows)
    }

    /// A family without rows is left out.
    fn family<'v, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        unit: &str,
        kind: MetricType,
        rows: impl IntoIterator<Item = ([Label<'v>; N], Value<'v>)>,
    ) -> fmt::Result {
        let mut rows = rows.into_iter().peekable();
        if rows.peek().is_none() {
            return Ok(());
        }
        let unit = (!unit.is_empty()).then(|| Unit::Other(unit.to_owned()));
        let counts = matches!(kind, MetricType::Counter);
        let mut family = self
            .encoder
            .encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (labels, value) in rows {
            if N == 0 {
                encode(&mut family, counts, value)?;
            } else {
                encode(&mut family.encode_family(&labels)?, counts, value)?;
            }
        }
        Ok(())
    }
}

fn encode(series: &mut MetricEncoder<'_>, counts: bool, value: Value<'_>) -> fmt::Result {
    match value {
        Value::Count(count) if counts => {
            series.encode_counter::<NoLabelSet, u64, u64>(&count, None)
        }
        Value::Float(amount) if counts => {
            series.encode_counter::<NoLabelSet, f64, u64>(&amount, None)
        }
        Value::Count(level) => series.encode_gauge(&level),
        Value::Level(level) => series.encode_gauge(&level),
        Value::Float(level) => series.encode_gauge(&level),
        Value::Latencies(latencies) => {
            let bounds = BOUNDS_NS.map(|ns| ns as f64 / NS_PER_S);
            let bounds = bounds.into_iter().chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(latencies.counts).collect();
            let none: Option<&HashMap<usize, Exemplar<NoLabelSet, f64>>> = None;
            let sum_s = latencies.sum_ns as f64 / NS_PER_S;
            series.encode_histogram(sum_s, latencies.count(), &buckets, none)
        }
    }
}
