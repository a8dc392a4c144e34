//! What the dashboard and the alerts ask for is served.

use super::*;
use crate::metrics::Metrics;

#[test]
fn each_figure_of_the_dashboard_and_the_alerts_is_served() {
    let mut world = World::full(false);
    world.run(40, true, |_| None);
    let (metrics, arbitration) = Metrics::of_arbitrator();
    arbitration.set(&world.arbiter);
    arbitration.set_state(&world.arbiter, true);
    let text = metrics.text();
    let served = |name: &str| {
        let mut lines = text.lines();
        lines.any(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with([' ', '{']))
        })
    };
    let files = [
        include_str!("../../../../../deploy/components/grafana/plimsoll.json"),
        include_str!("../../../../../deploy/components/prometheus/rules.yaml"),
    ];
    for file in files {
        let mut asked = 0;
        for rest in file.split("plimsoll_arbitrator_").skip(1) {
            let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c == '_'));
            let name = format!("plimsoll_arbitrator_{}", &rest[..end.unwrap()]);
            assert!(served(&name), "{name}");
            asked += 1;
        }
        assert!(asked > 0);
    }
}
