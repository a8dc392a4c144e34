//! `plimsoll top` of a running agent: the pods that are throttled, killed and next to go are seen; and later, from the
//! journal.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::super::agent::Options;
use super::super::clock::wait_until;
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::pod::Pod;
use super::super::process::program;
use super::{EVICTION_TIMEOUT, go, leak, needs_memory_v2, threshold_below_now};

pub(super) const TESTS: &[Test] = &[Test {
    name: "top::who_is_throttled_killed_and_next_is_seen",
    on: On::Weekly(Machine::V7_2),
    run: who_is_throttled_killed_and_next_is_seen,
}];

pub(super) fn top(arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program("plimsoll"))
        .arg("top")
        .args(arguments)
        .output()
        .context("starting plimsoll top")?;
    ensure!(output.status.success(), "{arguments:?}: {output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

fn pod<'a>(seen: &'a Value, name: &str) -> &'a Value {
    let pods = seen["pods"].as_array().into_iter().flatten();
    let mut of_name = pods.filter(|own| own["pod"] == name);
    of_name.next().unwrap_or(&Value::Null)
}

fn who_is_throttled_killed_and_next_is_seen() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let node = super::Node::new()?;
    let journal = node.directory.join("run.journal");
    let web = Pod::guaranteed("web", "200m", "128Mi");
    let _web = node.hog(&web, "spin")?;
    let database = Pod::burstable("database", "256Mi").priority(100_000);
    let _database = node.hog(&database, "hold --mb 192")?;
    let batch = Pod::best_effort("batch");
    let _batch = node.hog(&batch, "hold --mb 32")?;
    let leaky = Pod::burstable("leaky", "64Mi").priority(-10);
    let leaks = leak(&node, &leaky, 500, "")?;
    let greedy = Pod::burstable("greedy", "32Mi").limit("memory", "64Mi");
    let grows = leak(&node, &greedy, 200, "")?;
    let options = Options::hard(&threshold_below_now(256)?)
        .on_tracepoints()
        .journal(&journal);
    let mut agent = node.agent(&options)?;
    go(&grows)?;

    let state = node.directory.join("state");
    let state = state.to_string_lossy();
    let asked = |output: &str| top(&["--state-dir", &state, "--output", output]);
    let mut seen = Value::Null;
    let is_seen = wait_until(Duration::from_secs(60), Duration::from_millis(500), || {
        let json = asked("json").ok();
        seen = json
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or_default();
        let web = pod(&seen, "default/web");
        let greedy = &pod(&seen, "default/greedy")["limits"]["all"]["oomKills"];
        let database = &pod(&seen, "default/database")["memory"]["workingSetBytes"];
        // Counted, read and said at moments of their own.
        web["limits"]["recent"]["throttledNs"].as_u64() > Some(0)
            && web["cpu"]["usedMilli"].as_u64() > Some(50)
            && greedy.as_u64() > Some(0)
            && database.as_u64() >= Some(192 << 20)
            && seen["recentLines"]
                .to_string()
                .contains("kernel OOM killer")
    });
    ensure!(is_seen, "{seen}");
    ensure!(seen["pid"] == agent.started.pid, "{seen}");
    let database = pod(&seen, "default/database");
    ensure!(
        database["memory"]["requestBytes"] == 256 << 20 && database["place"].is_object(),
        "{database}"
    );
    let cpu = &pod(&seen, "default/web")["cpu"];
    ensure!(cpu["limitMilli"] == 200, "{cpu}");

    go(&leaks)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(finished.pod == "default/leaky", "{finished:?}");
    let text = asked("text")?;
    ensure!(text.contains("default/database"), "{text}");
    agent.stop()?;
    let journal = journal.to_string_lossy();
    let text = top(&["--journal", &journal, "--output", "json"])?;
    let recorded: Value = serde_json::from_str(&text)?;
    let lines = recorded["recentLines"].to_string();
    ensure!(lines.contains("default_leaky"), "{lines}");
    let web = &pod(&recorded, "default/web")["limits"]["all"];
    ensure!(web["throttledNs"].as_u64() > Some(0), "{web}");
    let greedy = &pod(&recorded, "default/greedy")["limits"]["all"];
    ensure!(greedy["oomKills"].as_u64() > Some(0), "{greedy}");
    let output = Command::new(program("plimsoll"))
        .args(["explain", "throttling", "web", "--journal", &journal])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let row = text.lines().rfind(|line| line.starts_with("default/web "));
    let times = row.and_then(|row| row.split_whitespace().nth(1)?.parse().ok());
    ensure!(times > Some(0_u64), "{output:?}");
    Ok(Done::Passed)
}
