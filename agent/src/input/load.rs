//! The description of a load: what pods come to a cluster over days. Written by hand, so it is read strictly: every
//! error is named by file, line and field.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use plimsoll_core::arbitration::named::Named;
use plimsoll_core::arbitration::rehearsal::load::{DAY_S, Spread};
use plimsoll_core::kube::duration;

use super::cluster::{in_canonical_units, quantities};
use super::manifests::{ManifestError, read_or_stdin};
use super::yaml::{self, Limits, Node, Value};

/// Bytes of the file.
const BYTES_MAX: u64 = 1 << 20;
/// Values in the file.
const VALUES_MAX: usize = 50_000;
/// Streams of pods.
const STREAMS_MAX: usize = 1_000;
/// Days.
const DAYS_MAX: u64 = 31;
/// Pods in one arrival.
const COUNT_MAX: u64 = 10_000;
/// Seconds of a turn.
const TURN_S: std::ops::RangeInclusive<u64> = 10..=600;
/// Seconds between arrivals, and for which a pod runs.
const SPAN_S: std::ops::RangeInclusive<u64> = 1..=366 * DAY_S;

/// What comes, over how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) days: u64,
    pub(crate) turn_s: u64,
    pub(crate) seed: u64,
    pub(crate) streams: Vec<LoadStream>,
}

/// Pods that come again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoadStream {
    pub(crate) namespace: String,
    pub(crate) requests: Named,
    pub(crate) priority: i64,
    pub(crate) every_s: u64,
    pub(crate) count: u64,
    pub(crate) runs_s: u64,
    pub(crate) spread: Spread,
    /// Seconds of the day.
    pub(crate) between: (u64, u64),
}

/// Reads a file, or `stdin` for [`STDIN`](super::manifests::STDIN).
///
/// # Errors
/// All errors.
pub(crate) fn read(path: &Path, stdin: impl Read) -> Result<Load, Vec<ManifestError>> {
    let (file, text) = read_or_stdin(path, stdin, BYTES_MAX);
    let mut reader = Reader {
        file,
        errors: Vec::new(),
    };
    let load = match text {
        Ok(text) => reader.load(&text),
        Err(error) => return Err(vec![error]),
    };
    if reader.errors.is_empty() {
        Ok(load)
    } else {
        Err(reader.errors)
    }
}

struct Reader {
    file: Arc<Path>,
    errors: Vec<ManifestError>,
}

impl Reader {
    fn wrong(&mut self, line: u64, field: &str, what: impl Into<String>) {
        self.errors.push(ManifestError::Field {
            file: Arc::clone(&self.file),
            line,
            field: field.to_owned(),
            what: what.into(),
        });
    }

    fn load(&mut self, text: &str) -> Load {
        let mut load = Load {
            days: 1,
            turn_s: 30,
            seed: 1,
            streams: Vec::new(),
        };
        let limits = Limits {
            nodes: VALUES_MAX,
            documents: 1,
            repeated_keys: false,
        };
        let documents = match yaml::documents(text, limits) {
            Ok(documents) => documents,
            Err(error) => {
                self.errors.push(ManifestError::syntax(&self.file, error));
                return load;
            }
        };
        let [document] = &documents[..] else {
            let what = format!("expected one document, not {}", documents.len());
            self.wrong(1, "load", what);
            return load;
        };
        for (key, value) in document.fields() {
            match key.name.as_str() {
                "days" => load.days = self.number(value, "days", 1..=DAYS_MAX),
                "turn" => load.turn_s = self.span(value, "turn", &TURN_S),
                "seed" => load.seed = self.number(value, "seed", 0..=u64::MAX),
                "pods" => load.streams = self.streams(value),
                _ => self.wrong(
                    key.line,
                    &key.name,
                    "no field of a load; known are days, turn, seed and pods",
                ),
            }
        }
        if self.errors.is_empty() && load.streams.is_empty() {
            self.wrong(document.line, "pods", "missing; without it nothing comes");
        }
        load
    }

    fn streams(&mut self, list: &Node) -> Vec<LoadStream> {
        if !matches!(list.value, Value::List(_)) {
            self.wrong(
                list.line,
                "pods",
                format!("expected a list, not {}", list.kind()),
            );
        }
        if list.items().len() > STREAMS_MAX {
            let what = format!("at most {STREAMS_MAX} entries; this one is beyond");
            self.wrong(list.items()[STREAMS_MAX].line, "pods", what);
            return Vec::new();
        }
        let items = list.items().iter().enumerate();
        items.map(|(at, item)| self.stream(at, item)).collect()
    }

    fn stream(&mut self, at: usize, item: &Node) -> LoadStream {
        let mut stream = LoadStream {
            namespace: String::new(),
            requests: Named::new(),
            priority: 0,
            every_s: 0,
            count: 1,
            runs_s: 0,
            spread: Spread::Random,
            between: (0, DAY_S),
        };
        let name = |field: &str| format!("pods[{at}].{field}");
        for (key, value) in item.fields() {
            let field = name(&key.name);
            match key.name.as_str() {
                "namespace" => match value.text() {
                    Some(text) if !text.is_empty() => stream.namespace = text.to_owned(),
                    _ => self.wrong(value.line, &field, format!("expected a name, not {}", value.kind())),
                },
                "requests" => stream.requests = self.amounts(value, &field),
                "priority" => stream.priority = self.priority(value, &field),
                "every" => stream.every_s = self.span(value, &field, &SPAN_S),
                "count" => stream.count = self.number(value, &field, 1..=COUNT_MAX),
                "runs" => stream.runs_s = self.span(value, &field, &SPAN_S),
                "spread" => match value.text() {
                    Some("Random") => stream.spread = Spread::Random,
                    Some("Even") => stream.spread = Spread::Even,
                    _ => self.wrong(value.line, &field, format!("expected Random or Even, not {}", value.kind())),
                },
                "from" => stream.between.0 = self.span(value, &field, &(0..=DAY_S - 1)),
                "to" => stream.between.1 = self.span(value, &field, &(1..=DAY_S)),
                _ => self.wrong(key.line, &field, "no field of an entry; known are namespace, requests, priority, every, count, runs, spread, from and to"),
            }
        }
        for field in ["namespace", "requests", "every", "runs"] {
            if item.get(field).is_none() {
                self.wrong(item.line, &name(field), "missing");
            }
        }
        if stream.between.0 >= stream.between.1 {
            self.wrong(
                item.line,
                &name("to"),
                "must be later than `from`; make two entries for hours around midnight",
            );
        }
        stream
    }

    fn number(&mut self, value: &Node, field: &str, of: std::ops::RangeInclusive<u64>) -> u64 {
        let number = match &value.value {
            Value::Number(number) => number.as_u64().filter(|number| of.contains(number)),
            _ => None,
        };
        number.unwrap_or_else(|| {
            let what = format!(
                "expected a whole number from {} to {}, not {}",
                of.start(),
                of.end(),
                value.kind()
            );
            self.wrong(value.line, field, what);
            *of.start()
        })
    }

    fn priority(&mut self, value: &Node, field: &str) -> i64 {
        let number = match &value.value {
            Value::Number(number) => number.as_i64(),
            _ => None,
        };
        number.unwrap_or_else(|| {
            self.wrong(
                value.line,
                field,
                format!("expected a whole number, not {}", value.kind()),
            );
            0
        })
    }

    fn span(&mut self, value: &Node, field: &str, of: &std::ops::RangeInclusive<u64>) -> u64 {
        let ns = value.text().and_then(|text| duration::parse_ns(text).ok());
        let seconds = ns
            .and_then(|ns| u64::try_from(ns).ok())
            .map(|ns| ns / 1_000_000_000);
        seconds
            .filter(|seconds| of.contains(seconds))
            .unwrap_or_else(|| {
                let what = format!(
                    "expected a time from {} s to {} s, such as 90s, 10m or 2h30m, not {}",
                    of.start(),
                    of.end(),
                    value.kind()
                );
                self.wrong(value.line, field, what);
                *of.start()
            })
    }

    /// What a pod requests, in canonical units; one of `pods` in any case.
    fn amounts(&mut self, list: &Node, field: &str) -> Named {
        let mut amounts = Named::new();
        let given = quantities(list, field, |line, field, what| {
            self.wrong(line, field, what);
        });
        for (name, quantity) in given {
            amounts.insert(name.to_owned(), in_canonical_units(name, &quantity));
        }
        amounts.insert("pods".to_owned(), 1);
        amounts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Load, String> {
        read(Path::new("-"), text.as_bytes()).map_err(|errors| {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            lines.join("\n")
        })
    }

    #[test]
    fn a_load() {
        let load = read_text(
            "days: 2\nturn: 1m\npods:\n- {namespace: a, every: 10m, count: 3, runs: 1h30m, requests: {cpu: 500m, memory: 1Gi}, priority: -5, from: 9h, to: 17h, spread: Even}\n",
        )
        .unwrap();
        assert_eq!((load.days, load.turn_s, load.seed), (2, 60, 1));
        let stream = &load.streams[0];
        assert_eq!(
            (stream.every_s, stream.count, stream.runs_s, stream.priority),
            (600, 3, 5400, -5)
        );
        assert_eq!(
            (stream.spread, stream.between),
            (Spread::Even, (9 * 3600, 17 * 3600))
        );
        assert_eq!(
            (
                stream.requests["cpu"],
                stream.requests["memory"],
                stream.requests["pods"]
            ),
            (500, 1 << 30, 1)
        );
    }

    #[test]
    fn each_error_has_its_line_and_field() {
        let errors = read_text("days: 99\npods:\n- {namespace: a, every: soon, runs: 1h, requests: {cpu: x}}\n- {every: 1h, runs: 1h, requests: {}, colour: red, from: 5h, to: 4h}\nhours: 3\n").unwrap_err();
        for line in [
            "standard input:1: days: expected a whole number from 1 to 31",
            "standard input:3: pods[0].every: expected a time",
            "standard input:3: pods[0].requests.cpu: ",
            "standard input:4: pods[1].namespace: missing",
            "standard input:4: pods[1].colour: no field of an entry",
            "standard input:4: pods[1].to: must be later",
            "standard input:5: hours: no field of a load",
        ] {
            assert!(errors.contains(line), "{line}: {errors}");
        }
        assert!(
            read_text("days: 1\n")
                .unwrap_err()
                .contains("pods: missing")
        );
        assert!(read_text("").unwrap_err().contains("expected one document"));
    }
}
