//! The two forms of a page of metrics.
//!
//! `prometheus-client` writes OpenMetrics, which Prometheus asks for. Older readers, and `promtool check metrics`, know
//! only the classic text: there a counter's family is named with `_total`, units have no line of their own, and nothing
//! marks the end. Sources: <https://prometheus.io/docs/instrumenting/exposition_formats/>,
//! <https://prometheus.io/docs/specs/om/open_metrics_spec/>.

/// A form of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The classic text, 0.0.4.
    Classic,
}

impl Form {
    /// The form that suits a client, by its `Accept`: OpenMetrics only for who names it.
    pub fn accepted(accept: &str) -> Self {
        let named = accept.split(',').any(|range| {
            let name = range.split(';').next().unwrap_or_default();
            name.trim()
                .eq_ignore_ascii_case("application/openmetrics-text")
        });
        if named {
            Self::OpenMetrics
        } else {
            Self::Classic
        }
    }

    /// The `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// A page of OpenMetrics in this form.
    pub(super) fn of(self, page: String) -> String {
        match self {
            Self::OpenMetrics => page,
            Self::Classic => classic(&page),
        }
    }
}

fn classic(page: &str) -> String {
    let mut text = String::with_capacity(page.len() + page.len() / 16);
    let mut help = None;
    for line in page.lines() {
        if let Some(it) = line.strip_prefix("# HELP ") {
            // Its name is known when its type is.
            help = it.split_once(' ');
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|it| it.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, help)) = help.take() {
                text.push_str(&format!("# HELP {name}{suffix} {help}\n"));
            }
            text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if !(line.starts_with("# UNIT ") || line == "# EOF") {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_for_who_names_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Form::accepted(prometheus), Form::OpenMetrics);
        for other in ["", "*/*", "text/plain;version=0.0.4", "text/html"] {
            assert_eq!(Form::accepted(other), Form::Classic, "{other}");
        }
    }

    #[test]
    fn a_counters_family_is_named_as_its_series() {
        let page = "# HELP a_seconds Time.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\na_seconds_total{k=\"v\"} 1.5\n\
             # HELP b Level.\n# TYPE b gauge\nb 2\n# EOF\n";
        assert_eq!(
            classic(page),
            "# HELP a_seconds_total Time.\n# TYPE a_seconds_total counter\na_seconds_total{k=\"v\"} 1.5\n\
             # HELP b Level.\n# TYPE b gauge\nb 2\n"
        );
    }
}
