//! Screens as text, and keys as changes of the model.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_core::model::telling::Severity;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};

use super::*;
use crate::record::journal_player::Position;
use crate::record::limit_counts::{LimitCounts, LimitTotals};
use crate::record::lines::RecentLine;
use crate::record::snapshot::Snapshot;
use crate::serve::summary::{CpuStats, MemoryStats, NodeStats, PodUse, PsiData, PsiStats};
use crate::show::top::draw;
use crate::show::top::model::{Command, Page, Sort};
use crate::testkit;

/// A pod that waits, one that is throttled, one that is never evicted; and a node that is short of memory soon.
fn overview(available_mib: u64) -> Overview {
    let pods = [
        (
            "web",
            r#""containers":[{"name":"app","resources":{"requests":{"cpu":"250m","memory":"100Mi"},"limits":{"cpu":"500m","memory":"200Mi"}}}]"#,
            90,
        ),
        ("hog", testkit::PLAIN, 300),
        (
            "dns",
            r#""priority":2000001000,"containers":[{"name":"dns"}]"#,
            20,
        ),
    ];
    let pods = pods.map(|(name, spec, used_mib)| (testkit::pod(name, spec), used_mib));
    let events = testkit::events(pods, &[(2_000_000_000, 1024 - available_mib)]);
    let engine = testkit::engine(testkit::config(), &events, |_, _| {});
    let mut snapshot = Snapshot::of(&engine);
    let mut figures = Figures {
        pid: Some(4711),
        ..Figures::default()
    };
    let psi = |avg10| PsiStats {
        some: PsiData {
            avg10,
            ..PsiData::default()
        },
        ..PsiStats::default()
    };
    for (pod, throttled_ms, stalled_ms, share) in [
        ("web", 1500, 0, 0.0),
        ("hog", 0, 600, 12.3),
        ("dns", 0, 0, 0.0),
    ] {
        let uid = plimsoll_core::kube::pod_uid::PodUid::of_name("default", pod);
        let counts = LimitCounts {
            throttled: throttled_ms / 50,
            throttled_ns: throttled_ms * 1_000_000,
            stalled_ns: stalled_ms * 1_000_000,
            ..LimitCounts::default()
        };
        let mut totals = LimitTotals::default();
        (totals.all, totals.recent) = (counts, counts);
        totals.recent_ns = 5_000_000_000;
        snapshot.limits.insert(uid.clone(), totals);
        let read = PodUse {
            cpu: Some(CpuStats {
                usage_nano_cores: Some(499_000_000),
                psi: Some(psi(3.0)),
                ..CpuStats::default()
            }),
            memory: Some(MemoryStats {
                psi: Some(psi(share)),
                ..MemoryStats::default()
            }),
            ..PodUse::default()
        };
        figures.pods.insert(uid, read);
    }
    figures.node = Some(NodeStats {
        node_name: "node-1".to_owned(),
        cpu: Some(CpuStats {
            usage_nano_cores: Some(1_500_000_000),
            psi: Some(psi(4.0)),
            ..CpuStats::default()
        }),
        memory: Some(MemoryStats {
            psi: Some(psi(12.5)),
            ..MemoryStats::default()
        }),
        ..NodeStats::default()
    });
    snapshot.recent_lines = [
        (
            Severity::Info,
            "plimsoll 0.1.0 runs (pid 4711), 3 pods\n  more",
        ),
        (
            Severity::Warning,
            "     1.500000 CPU throttled: default/web: 30 times, 1500 ms",
        ),
    ]
    .into_iter()
    .zip(1..)
    .map(|((severity, text), number)| Arc::new(RecentLine::new(number, severity, text)))
    .collect();
    Overview::new(&snapshot, &figures).unwrap()
}

fn live() -> Feed {
    Feed::Live {
        every: Duration::from_secs(1),
        silent: None,
        restarted: None,
    }
}

fn model(available_mib: u64) -> Model {
    let mut model = Model::new(live(), false);
    model.update(Message::Answer(Box::new(overview(available_mib))));
    model
}

fn terminal(model: &Model, wide: u16, high: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(wide, high)).unwrap();
    terminal.draw(|frame| draw(frame, model)).unwrap();
    terminal
}

/// The screen, without the spaces at the ends of lines.
fn screen(model: &Model, wide: u16, high: u16) -> String {
    let terminal = terminal(model, wide, high);
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for row in 0..high {
        let line: String = (0..wide)
            .map(|column| buffer[(column, row)].symbol())
            .collect();
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn press(model: &mut Model, code: KeyCode) -> Option<Command> {
    model.update(Message::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn names(model: &Model) -> Vec<&str> {
    model.rows().iter().map(|pod| pod.pod.as_str()).collect()
}

#[test]
fn all_of_it_on_the_smallest_screen() {
    let text = screen(&model(512), 80, 24);
    assert_eq!(
        text,
        "\
plimsoll top  node-1  3 pods, by pressure                              every 1 s
memory  [############............]  512Mi available of 1Gi, no swap
waits   cpu 4.0 %, memory 12.5 %, io ? % of the last 10 s   CPUs in use 1.50
signals memory.available 512Mi (<100Mi)

 POD            QOS     MEM     REQ     LIM    CPU   THR  WAIT  *PSI  CPUS EVICT
>default/hog    Bes   300Mi       -       -    499     0   120  12.3     -    >1
 default/dns    Bes    20Mi       -       -    499     0     0   0.0     -     -
 default/web    Bur    90Mi   100Mi   200Mi    499   300     0   0.0     -     3





NEXT TO BE EVICTED for memory.available
>1 default/hog: 300Mi is 300Mi above its request; ahead by lower priority
 3 default/web: 90Mi is 10Mi below its request

LATEST LINES
 plimsoll 0.1.0 runs (pid 4711), 3 pods
 1.500000 CPU throttled: default/web: 30 times, 1500 ms


q quit  s sort  r reverse  / filter  p pause  Enter details  ? help
"
    );
}

#[test]
fn a_wide_screen_has_more_columns_and_a_met_threshold_is_said() {
    let text = screen(&model(80), 120, 26);
    assert_eq!(
        text,
        "\
plimsoll top  node-1  3 pods, by pressure                                                                      every 1 s
memory  [######################..]  80Mi available of 1Gi, no swap
waits   cpu 4.0 %, memory 12.5 %, io ? % of the last 10 s   CPUs in use 1.50
signals memory.available 80Mi (<100Mi) MET
MemoryPressure
 POD                         QOS     MEM     REQ     LIM    CPU   THR  WAIT  *PSI  CPUS EVICT CPU%10  IO%10    SWAP  OOM
>default/hog                 Bes   300Mi       -       -    499     0   120  12.3     -   OUT    3.0      -       -    0
 default/dns                 Bes    20Mi       -       -    499     0     0   0.0     -     -    3.0      -       -    0
 default/web                 Bur    90Mi   100Mi   200Mi    499   300     0   0.0     -     3    3.0      -       -    0







NEXT TO BE EVICTED for memory.available
 3 default/web: 90Mi is 10Mi below its request


LATEST LINES
 plimsoll 0.1.0 runs (pid 4711), 3 pods
 1.500000 CPU throttled: default/web: 30 times, 1500 ms


q quit  s sort  r reverse  / filter  p pause  Enter details  ? help
"
    );
}

#[test]
fn one_pod() {
    let mut model = model(512);
    press(&mut model, KeyCode::Down);
    press(&mut model, KeyCode::Enter);
    assert_eq!(model.page, Page::Pod);
    assert_eq!(
        screen(&model, 80, 24),
        "\
plimsoll top  node-1  3 pods, by pressure                              every 1 s
default/dns  BestEffort, priority 2000001000
  state             running
  memory            20Mi charged, 20Mi working set, - swap; request 0, limit -
  CPUs              499m in use; request 0m, limit -; exclusive: -
  waits (PSI)       cpu 3.0 %, memory 0.0 %, io - % of the last 10 s
  eviction          rank 2: never evicted: system-critical priority
Limits, since the agent first saw the pod
  CPU limit         throttled 0 times, 0 ms
  memory limits     high 0, max 0, out of memory 0, below low 0 times
  OOM kills         0 processes
  waited for memory 0 ms
    of it for       its limits 0 ms, memory.high 0 ms, the node 0 ms
  read back         0 reclaimed pages, 0 from swap









q quit  s sort  r reverse  / filter  p pause  Enter details  ? help
"
    );
    press(&mut model, KeyCode::Esc);
    assert_eq!(model.page, Page::Pods);
}

#[test]
fn help_shows_every_key() {
    let mut model = model(512);
    press(&mut model, KeyCode::Char('?'));
    assert_eq!(
        screen(&model, 80, 24),
        "\
plimsoll top  node-1  3 pods, by pressure                              every 1 s

  q, Ctrl-C               quit
  Up Down k j             select a pod; PgUp, PgDn, Home, End go further
  Enter                   details of the selected pod, and back
  s, S                    sort by the next column, the previous one
  r                       reverse the order
  /                       show only pods whose name contains the text
  Esc                     back to the pods; then clear the filter
  p, Space                pause the screen (journal: play)
  ?, h                    this help, and back
  Left Right [ ] n N g G  in a journal: step, 10 s, decision, begin, end

  MEM     working set: memory without inactive page cache
  REQ LIM memory request and limit
  CPU     CPUs in use, thousandths; CPUS: its exclusive CPUs
  THR     ms of each second throttled by the CPU limit
  WAIT    ms of each second in which tasks wait for memory
  PSI     % of the last 10 s in which a task waited for memory
  EVICT   rank: > is next, - is exempt, OUT is leaving



q quit  s sort  r reverse  / filter  p pause  Enter details  ? help
"
    );
    press(&mut model, KeyCode::Char('?'));
    assert_eq!(model.page, Page::Pods);
}

#[test]
fn a_small_terminal_gets_the_needed_size() {
    let text = screen(&model(512), 40, 10);
    assert!(text.contains("too small"), "{text}");
    assert!(text.contains("It is 40x10, this needs 80x24."), "{text}");
    // Nothing is drawn beyond any edge.
    for (wide, high) in [(1, 1), (79, 24), (80, 23), (5, 100), (300, 2)] {
        screen(&model(512), wide, high);
    }
    for (wide, high) in [(80, 24), (111, 40), (500, 200)] {
        for page in [Page::Pods, Page::Pod, Page::Help] {
            let mut model = model(80);
            model.page = page;
            assert!(!screen(&model, wide, high).contains("too small"));
        }
    }
}

#[test]
fn pods_are_sorted_and_filtered_by_keys() {
    let mut model = model(512);
    let mut seen = Vec::new();
    for _ in Sort::ALL {
        seen.push((model.sort.name(), names(&model)[0].to_owned()));
        press(&mut model, KeyCode::Char('s'));
    }
    let seen: Vec<(&str, &str)> = seen
        .iter()
        .map(|(sort, pod)| (*sort, pod.as_str()))
        .collect();
    assert_eq!(
        seen,
        [
            ("pressure", "default/hog"),
            ("eviction", "default/hog"),
            ("memory", "default/hog"),
            ("cpu", "default/dns"),
            ("throttling", "default/web"),
            ("stalls", "default/hog"),
            ("name", "default/dns"),
        ]
    );
    assert_eq!(model.sort, Sort::Pressure);
    press(&mut model, KeyCode::Char('S'));
    press(&mut model, KeyCode::Char('r'));
    assert_eq!(names(&model), ["default/web", "default/hog", "default/dns"]);

    press(&mut model, KeyCode::Char('/'));
    // Letters that are keys otherwise are letters now.
    for letter in "hoq".chars() {
        assert_eq!(press(&mut model, KeyCode::Char(letter)), None);
    }
    assert!(screen(&model, 80, 24).contains("filter /hoq_"));
    assert!(screen(&model, 80, 24).contains("no pod has \"hoq\" in its name"));
    press(&mut model, KeyCode::Backspace);
    press(&mut model, KeyCode::Enter);
    assert_eq!(names(&model), ["default/hog"]);
    press(&mut model, KeyCode::Esc);
    assert_eq!(names(&model).len(), 3);
}

#[test]
fn the_selection_stays_with_its_pod() {
    let mut model = model(512);
    press(&mut model, KeyCode::End);
    let selected = model.selected.clone();
    assert_eq!(selected.as_ref().unwrap().as_str(), "default_web");
    press(&mut model, KeyCode::Char('s'));
    assert_eq!(model.selected, selected);
    model.update(Message::Answer(Box::new(overview(300))));
    assert_eq!(model.selected, selected);
    press(&mut model, KeyCode::PageUp);
    assert_eq!(model.selection(&model.rows()), 0);
    // A pod that is gone leaves the first.
    let mut gone = overview(300);
    gone.pods.retain(|pod| pod.pod == "default/web");
    model.update(Message::Answer(Box::new(gone)));
    assert_eq!(model.selection(&model.rows()), 0);
    // The last of many is on the screen.
    let mut many = overview(300);
    let pod = many.pods[0].clone();
    many.pods = (0..1000)
        .map(|index| {
            let mut pod = pod.clone();
            pod.pod = format!("default/p{index:04}");
            pod.uid = plimsoll_core::kube::pod_uid::PodUid::from(pod.pod.as_str());
            pod
        })
        .collect();
    model.update(Message::Answer(Box::new(many)));
    press(&mut model, KeyCode::End);
    let text = screen(&model, 80, 24);
    assert!(
        text.contains(">default/p0999") && !text.contains("p0001"),
        "{text}"
    );
}

#[test]
fn keys_that_leave() {
    let mut model = model(512);
    assert_eq!(press(&mut model, KeyCode::Char('q')), Some(Command::Quit));
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    press(&mut model, KeyCode::Char('/'));
    assert_eq!(model.update(Message::Key(control_c)), Some(Command::Quit));
}

#[test]
fn a_paused_screen_stays() {
    let mut model = model(512);
    model.update(Message::Tick(Duration::from_secs(5)));
    press(&mut model, KeyCode::Char('p'));
    model.update(Message::Answer(Box::new(overview(80))));
    model.update(Message::Tick(Duration::from_secs(9)));
    let text = screen(&model, 80, 24);
    assert!(text.contains("PAUSED for 4 s"), "{text}");
    assert!(text.contains("512Mi available"), "{text}");
    press(&mut model, KeyCode::Char('p'));
    model.update(Message::Answer(Box::new(overview(80))));
    assert!(screen(&model, 80, 24).contains("80Mi available"));
}

#[test]
fn an_agent_that_ends_is_waited_for_and_the_next_is_said() {
    let mut model = model(512);
    let at = |model: &mut Model, seconds| {
        model.update(Message::Tick(Duration::from_secs(seconds)));
    };
    at(&mut model, 10);
    model.update(Message::Answer(Box::new(overview(512))));
    at(&mut model, 12);
    model.update(Message::NoAnswer("it has ended".to_owned()));
    at(&mut model, 15);
    model.update(Message::NoAnswer("no such socket".to_owned()));
    let text = screen(&model, 110, 24);
    assert!(
        text.contains("NO ANSWER for 3 s; this is 5 s old; retrying: no such socket"),
        "{text}"
    );
    at(&mut model, 16);
    let mut other = overview(512);
    other.pid = Some(4712);
    model.update(Message::Answer(Box::new(other.clone())));
    at(&mut model, 17);
    let text = screen(&model, 80, 24);
    assert!(
        text.contains("another agent (PID 4712) has answered for 1 s"),
        "{text}"
    );
    at(&mut model, 60);
    model.update(Message::Answer(Box::new(other)));
    let text = screen(&model, 80, 24);
    assert!(
        !text.contains("another agent") && !text.contains("NO ANSWER"),
        "{text}"
    );
}

#[test]
fn a_journal_is_stepped_through() {
    let position = |step, at_s: u64| Position {
        step,
        steps: 40,
        at_ns: at_s * 1_000_000_000,
        begin_ns: 1_000_000_000,
        end_ns: 41_000_000_000,
    };
    let feed = Feed::Recorded {
        position: position(10, 11),
        plays_ns: None,
        remark: Some("the last line is incomplete and was ignored".to_owned()),
    };
    let mut model = Model::new(feed, false);
    let mut recorded = overview(512);
    (recorded.pid, recorded.node.name) = (None, None);
    model.update(Message::At(position(10, 11), Box::new(recorded)));
    let text = screen(&model, 80, 24);
    assert!(text.starts_with("plimsoll top  journal  3 pods"), "{text}");
    assert!(text.contains("step 10 of 40  11.000 (+10 s)"), "{text}");
    assert!(text.contains("the last line is incomplete"), "{text}");
    for (key, seek) in [
        (KeyCode::Right, Seek::Steps(1)),
        (KeyCode::Left, Seek::Steps(-1)),
        (KeyCode::Char(']'), Seek::Time(10_000_000_000)),
        (KeyCode::Char('['), Seek::Time(-10_000_000_000)),
        (KeyCode::Char('n'), Seek::Decision { forward: true }),
        (KeyCode::Char('N'), Seek::Decision { forward: false }),
        (KeyCode::Char('g'), Seek::Begin),
        (KeyCode::Char('G'), Seek::End),
    ] {
        assert_eq!(press(&mut model, key), Some(Command::Seek(seek)), "{key:?}");
    }
    // Time goes on also where nothing happened for long, and stops at the end.
    press(&mut model, KeyCode::Char(' '));
    for (now, at_ns) in [(2, 13), (7, 18), (40, 51)] {
        let tick = Message::Tick(Duration::from_secs(now));
        let at = Seek::At(at_ns * 1_000_000_000);
        assert_eq!(model.update(tick), Some(Command::Seek(at)));
    }
    assert_eq!(model.update(Message::Tick(Duration::from_secs(41))), None);
    // These keys are a journal's alone.
    assert_eq!(press(&mut self::model(512), KeyCode::Char('n')), None);
}

#[test]
fn colours_only_repeat_what_letters_say() {
    let plain = model(80);
    let mut colored = plain.clone();
    colored.has_color = true;
    assert_eq!(screen(&plain, 80, 24), screen(&colored, 80, 24));
    let has_color = |model: &Model| {
        let terminal = terminal(model, 80, 24);
        let cells = &terminal.backend().buffer().content;
        cells
            .iter()
            .any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(has_color(&colored) && !has_color(&plain));
    let first = terminal(&plain, 80, 24).backend().buffer()[(0, 0)].modifier;
    assert!(first.contains(Modifier::REVERSED));
}

#[test]
fn a_table_for_a_pipe() {
    let text = table(&overview(80), Style { color: false });
    assert_eq!(
        text,
        "\
80Mi available of 1Gi, swap 0 of 0
memory.available 80Mi (<100Mi) MET
MemoryPressure

POD          QOS    MEM    REQ    LIM  CPU  THR  WAIT   PSI  CPUS  EVICT  CPU%10  IO%10  SWAP  OOM
default/dns  Bes   20Mi      -      -  499    0     0   0.0     -      -     3.0      -     -    0
default/hog  Bes  300Mi      -      -  499    0   120  12.3     -    OUT     3.0      -     -    0
default/web  Bur   90Mi  100Mi  200Mi  499  300     0   0.0     -      3     3.0      -     -    0

Next to be evicted for memory.available:
  3 default/web: 90Mi is 10Mi below its request
"
    );
}

#[test]
fn json_is_read_back() {
    let seen = overview(80);
    let json = serde_json::to_string(&seen).unwrap();
    assert_eq!(serde_json::from_str::<Overview>(&json).unwrap(), seen);
}

/// What the agent could not react in is a figure of the screen's head.
#[test]
fn the_longest_turn_of_the_loop_is_beside_the_period() {
    let mut model = Model::new(live(), false);
    let mut overview = overview(512);
    overview.longest_turn_ns = Some(12_345_678);
    let json = serde_json::to_value(&overview).unwrap();
    assert_eq!(json["longestTurnNs"], 12_345_678);
    model.update(Message::Answer(Box::new(overview)));
    let text = screen(&model, 80, 24);
    assert_eq!(
        text.lines().next().unwrap(),
        "plimsoll top  node-1  3 pods, by pressure          longest turn 12 ms  every 1 s"
    );
}
