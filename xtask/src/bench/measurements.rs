//! What the report of `cargo xtask bench all` has: a row for each measurement, with the command that a person types.

/// One measurement of the report.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measurement {
    /// In the keys of the report and for `--only`.
    pub(super) name: &'static str,
    /// In the page.
    pub(super) title: &'static str,
    /// A command of `cargo xtask bench`, without the kernel.
    what: &'static str,
    options: &'static str,
    pub(super) kernels: &'static [&'static str],
    /// The figure of its picture.
    pub(super) picture: Option<&'static str>,
}

/// Kernels that a measurement is of, unless it says others.
pub(super) const EACH: &[&str] = &["6.1", "6.12", "7.2"];

/// The report, in the order of the page.
pub(super) const MEASUREMENTS: &[Measurement] = &[
    Measurement {
        name: "reaction",
        title: "From a crossed threshold to memory back, 3 pods",
        what: "reaction",
        options: "--runs 3 --rates 64,512 --thresholds 1Gi,100Mi --peers plimsoll --idle 0",
        kernels: EACH,
        picture: Some("decision"),
    },
    Measurement {
        name: "reaction-100",
        title: "The same with 100 pods",
        what: "reaction",
        options: "--runs 3 --rates 512 --thresholds 1Gi --peers plimsoll --pods 100 --idle 0",
        kernels: EACH,
        picture: None,
    },
    Measurement {
        name: "reaction-1000",
        title: "The same with 1,000 pods",
        what: "reaction",
        options: "--runs 3 --rates 512 --thresholds 1Gi --peers plimsoll --pods 1000 --idle 0 --false-alarms 0",
        kernels: &["7.2"],
        picture: None,
    },
    Measurement {
        name: "peers",
        title: "Beside other systems",
        what: "reaction",
        options: "--runs 3 --rates 64,512 --thresholds 1Gi --peers none,earlyoom,oomd,plimsoll --idle 60 --false-alarms 0",
        kernels: &["6.1"],
        picture: Some("hog gone"),
    },
    Measurement {
        name: "cost",
        title: "What attached programs cost loops of page faults, forks and switches",
        what: "cost",
        options: "--pairs 3",
        kernels: EACH,
        picture: None,
    },
    Measurement {
        name: "signals",
        title: "Each program, and how soon its records are there",
        what: "signals",
        options: "--parts hooks",
        kernels: EACH,
        picture: None,
    },
    Measurement {
        name: "footprint",
        title: "The agent with many cgroups",
        what: "signals",
        options: "--parts footprint --cgroups 0,250,1000",
        kernels: &["6.12"],
        picture: Some("resident memory"),
    },
    Measurement {
        name: "teardown",
        title: "From the decision to memory back, beside unmapping by oneself",
        what: "teardown",
        options: "--runs 3 --sizes 512,2048",
        kernels: EACH,
        picture: Some("back, of unmapped"),
    },
    Measurement {
        name: "burst",
        title: "A bursty service under its CPU limit",
        what: "burst",
        options: "--runs 3",
        kernels: &["7.2"],
        picture: None,
    },
];

impl Measurement {
    /// What a person types behind `cargo xtask bench`.
    pub(super) fn command(&self, kernel: &str) -> String {
        format!("{} --kernel {kernel} {}", self.what, self.options)
    }

    /// In the report.
    pub(super) fn key(&self, kernel: &str) -> String {
        format!("{}/{kernel}", self.name)
    }

    /// Its picture below `folder`.
    pub(super) fn picture_path(&self, folder: &str) -> String {
        format!("{folder}/figures-{}.svg", self.name)
    }
}
