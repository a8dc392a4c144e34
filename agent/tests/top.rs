//! `plimsoll top` as people and programs call it: on a terminal, on a pipe, and with what can be wrong.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod node;
mod notes;

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use node::{engine, serve};
use rustix::process::{Pid, Signal as ProcessSignal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

fn top(args: &[&str], state: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("top")
        .args(args)
        .arg("--state-dir")
        .arg(state)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn replayed(args: &[&str], journal: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["top", "--journal"])
        .arg(journal)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn said(output: &Output, status: i32) -> String {
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    String::from_utf8_lossy(if status == 0 {
        &output.stdout
    } else {
        &output.stderr
    })
    .into_owned()
}

#[test]
fn a_snapshot_on_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let _server = serve(&dir.path().join("control.sock"), None, &["a", "b"]);
    let text = said(&top(&["--once"], dir.path()), 0);
    assert!(text.contains("24Mi available of 1Gi"), "{text}");
    assert!(
        text.contains("memory.available 24Mi (<100Mi) MET"),
        "{text}"
    );
    assert!(
        text.contains("default/a") && !text.contains('\x1b'),
        "{text}"
    );
    let json = said(&top(&["--output", "json"], dir.path()), 0);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["pods"].as_array().unwrap().len(), 2);
    assert_eq!(json["pid"], std::process::id());
    assert_eq!(json["victims"], serde_json::json!(["default/b"]));
}

#[test]
fn what_is_not_a_terminal_is_told_the_other_ways() {
    let dir = tempfile::tempdir().unwrap();
    let _server = serve(&dir.path().join("control.sock"), None, &["a"]);
    let text = said(&top(&[], dir.path()), 1);
    assert!(text.contains("standard input is not a terminal"), "{text}");
    assert!(
        text.contains("--once") && text.contains("--output json"),
        "{text}"
    );
}

#[test]
fn no_agent_is_told_where_it_was_looked_for() {
    let dir = tempfile::tempdir().unwrap();
    let text = said(&top(&["--once"], dir.path()), 1);
    assert!(text.contains(dir.path().to_str().unwrap()), "{text}");
    assert!(text.contains("plimsoll run"), "{text}");
}

#[test]
fn an_agent_that_is_too_old_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
        let line =
            "{\"v\":1,\"error\":{\"kind\":\"badRequest\",\"message\":\"unknown variant\"}}\n";
        stream.write_all(line.as_bytes()).unwrap();
    });
    let text = said(&top(&["--once"], dir.path()), 1);
    assert!(text.contains("older than this plimsoll"), "{text}");
    thread.join().unwrap();
}

/// As a user without rights, where this test may become one.
#[test]
fn the_group_may_look_and_others_are_told_what_to_do() {
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        notes::left_out("only root can become another user");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let open = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    open(dir.path());
    // The build directory may be closed to others.
    let program = dir.path().join("plimsoll");
    fs::copy(env!("CARGO_BIN_EXE_plimsoll"), &program).unwrap();
    open(&program);
    let as_nobody = || {
        Command::new(&program)
            .args(["top", "--once", "--state-dir"])
            .arg(dir.path())
            .stdin(Stdio::null())
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .unwrap()
    };
    let path = dir.path().join("control.sock");
    let server = serve(&path, None, &["a"]);
    let text = said(&as_nobody(), 1);
    assert!(text.contains("--control-group"), "{text}");
    drop(server);
    let _server = serve(&path, Some("65534"), &["a"]);
    assert!(said(&as_nobody(), 0).contains("default/a"));
}

#[test]
fn a_journal_at_its_end_at_a_time_and_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.journal");
    engine(&["a", "b"], Some(&path));
    let text = said(&replayed(&["--once"], &path), 0);
    assert!(text.contains("24Mi available"), "{text}");
    let text = said(&replayed(&["--once", "--at", "1.5"], &path), 0);
    assert!(text.contains("512Mi available"), "{text}");
    let json = said(&replayed(&["--output", "json"], &path), 0);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json.get("pid").is_none(), "{json}");
    assert!(
        json["recentLines"][0]["text"]
            .as_str()
            .unwrap()
            .contains("MemoryPressure"),
        "{json}"
    );

    // What limits have cost stands beside the steps, after the last of them.
    let limits = &json["pods"][0]["limits"];
    assert_eq!(limits["all"]["throttledNs"], 1_500_000_000, "{json}");
    assert!(json["pods"][1].get("limits").is_none(), "{json}");
    let json = said(&replayed(&["--output", "json", "--at", "2"], &path), 0);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let limits = &json["pods"][0]["limits"];
    assert_eq!(limits["all"]["throttled"], 30, "the last step: {json}");

    let text = fs::read_to_string(&path).unwrap();
    let (steps, _aside) = text.rsplit_once("{\"aside\"").unwrap();
    fs::write(&path, &steps[..steps.len() - 3]).unwrap();
    let output = replayed(&["--once"], &path);
    assert!(said(&output, 0).contains("512Mi available"));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("incomplete"),
        "{output:?}"
    );
    fs::write(&path, "").unwrap();
    assert!(said(&replayed(&["--once"], &path), 1).contains("journal is empty"));
    fs::write(&path, "not a journal\n").unwrap();
    assert!(said(&replayed(&["--once"], &path), 1).contains("run.journal: not a journal"));
    let gone = dir.path().join("gone");
    assert!(said(&replayed(&[], &gone), 1).contains("not a terminal"));
    assert!(said(&replayed(&["--once"], &gone), 1).contains("No such file"));
}

/// The same figures from a journal as from the agent that wrote it.
#[test]
fn throttling_is_explained_from_a_journal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.journal");
    engine(&["a", "b"], Some(&path));
    let explain = |what: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .arg("explain")
            .args(what)
            .arg("--journal")
            .arg(&path)
            .output()
            .unwrap();
        said(&output, 0)
    };
    let text = explain(&["throttling"]);
    assert!(text.contains("default/a     30      1.5 s"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&explain(&["memory", "a", "--output", "json"])).unwrap();
    assert_eq!(json["pods"][0]["limits"]["all"]["throttled"], 30, "{json}");
    // Before anything was said of limits.
    let text = explain(&["throttling", "--at", "1.5"]);
    assert!(text.contains("is unknown"), "{text}");
}

/// A terminal, the program on it, and what it has drawn.
struct Terminal {
    child: Child,
    keys: File,
    /// The program's end, to ask in which mode it is.
    line: OwnedFd,
    drawn: Receiver<Vec<u8>>,
    all: Vec<u8>,
    screen: Vec<Vec<char>>,
    /// What has been drawn and not been understood yet.
    rest: Vec<u8>,
    cursor: (usize, usize),
}

const SIZE: (u16, u16) = (100, 30);

impl Terminal {
    fn start(args: &[&str], envs: &[(&str, &str)]) -> Self {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let name = ptsname(&keys, Vec::new()).unwrap();
        let line = File::options()
            .read(true)
            .write(true)
            .open(PathBuf::from(name.into_string().unwrap()))
            .unwrap();
        let size = Winsize {
            ws_col: SIZE.0,
            ws_row: SIZE.1,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&line, size).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .arg("top")
            .args(args)
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .envs(envs.iter().copied())
            .stdin(line.try_clone().unwrap())
            .stdout(line.try_clone().unwrap())
            .stderr(line.try_clone().unwrap())
            .spawn()
            .unwrap();
        let (sender, drawn) = channel();
        let keys = File::from(keys);
        let mut output = keys.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read) = output.read(&mut buffer) {
                if sender.send(buffer[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            keys,
            line: line.into(),
            drawn,
            all: Vec::new(),
            screen: vec![vec![' '; SIZE.0.into()]; SIZE.1.into()],
            rest: Vec::new(),
            cursor: (0, 0),
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Takes in what has been drawn: letters, and where they go. Everything else is looks.
    fn take(&mut self) {
        for bytes in self.drawn.try_iter() {
            self.all.extend_from_slice(&bytes);
            self.rest.extend_from_slice(&bytes);
        }
        let text = String::from_utf8_lossy(&self.rest).into_owned();
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            if character == '\x1b' {
                // `ESC [`, figures, a letter.
                let mut sequence = String::new();
                while !sequence.ends_with(|own: char| own.is_ascii_alphabetic()) {
                    match characters.next() {
                        Some(own) => sequence.push(own),
                        // Cut off: the rest comes with the next bytes.
                        None => {
                            self.rest = format!("\x1b{sequence}").into_bytes();
                            return;
                        }
                    }
                }
                self.moved(&sequence);
                continue;
            }
            let (row, column) = self.cursor;
            if let Some(cell) = self.screen.get_mut(row).and_then(|row| row.get_mut(column)) {
                *cell = character;
            }
            self.cursor.1 += 1;
        }
        self.rest.clear();
    }

    fn moved(&mut self, sequence: &str) {
        if let Some(place) = sequence
            .strip_prefix('[')
            .and_then(|own| own.strip_suffix('H'))
            && let Some((row, column)) = place.split_once(';')
        {
            self.cursor = (
                row.parse::<usize>().unwrap() - 1,
                column.parse::<usize>().unwrap() - 1,
            );
        }
        if sequence.ends_with('J') {
            self.screen
                .iter_mut()
                .flatten()
                .for_each(|cell| *cell = ' ');
        }
    }

    fn text(&mut self) -> String {
        self.take();
        let rows = self.screen.iter().map(|row| row.iter().collect::<String>());
        rows.map(|row| row.trim_end().to_owned() + "\n").collect()
    }

    fn until(&mut self, what: &str, holds: impl Fn(&str) -> bool) {
        eprintln!("waits until {what}");
        loop {
            let text = self.text();
            if holds(&text) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.line).unwrap().local_modes;
        !modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// How it ended; the terminal must be as it was.
    fn ended(&mut self) -> Option<i32> {
        let status = self.child.wait().unwrap();
        // Its last words are on their way from one end of the line to the other.
        let is_back = |all: &str| {
            all.rfind("\x1b[?1049l") > all.rfind("\x1b[?1049h")
                && all.rfind("\x1b[?25h") > all.rfind("\x1b[?25l")
        };
        let mut all = String::new();
        for _ in 0..6_000 {
            self.take();
            all = String::from_utf8_lossy(&self.all).into_owned();
            if is_back(&all) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let left = all.rfind("\x1b[?1049l");
        assert!(
            left > all.rfind("\x1b[?1049h"),
            "the other screen is left: {all:?}"
        );
        assert!(
            all.rfind("\x1b[?25h") > all.rfind("\x1b[?25l"),
            "the cursor is back"
        );
        assert!(!self.is_raw(), "lines are read as lines again");
        status.code()
    }
}

#[test]
fn a_terminal_is_drawn_on_and_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let _server = serve(&dir.path().join("control.sock"), None, &["a", "b"]);
    let state = dir.path().to_str().unwrap();
    type Leave = fn(&mut Terminal);
    let signal = |terminal: &Terminal, signal| {
        let pid = Pid::from_child(&terminal.child);
        kill_process(pid, signal).unwrap();
    };
    let by_q: Leave = |terminal| terminal.press("q");
    let by_control_c: Leave = |terminal| terminal.press("\x03");
    for leave in [by_q, by_control_c] {
        let mut terminal = Terminal::start(&["--state-dir", state], &[]);
        terminal.until("it is drawn", |text| text.contains("NEXT TO BE EVICTED"));
        assert!(terminal.is_raw());
        leave(&mut terminal);
        assert_eq!(terminal.ended(), Some(0));
    }
    for number in [
        ProcessSignal::TERM,
        ProcessSignal::HUP,
        ProcessSignal::INT,
        ProcessSignal::QUIT,
    ] {
        let mut terminal = Terminal::start(&["--state-dir", state], &[("NO_COLOR", "1")]);
        terminal.until("it is drawn", |text| text.contains("MemoryPressure"));
        signal(&terminal, number);
        assert_eq!(terminal.ended(), Some(0));
        let all = String::from_utf8_lossy(&terminal.all);
        assert!(
            !all.contains("\x1b[31m") && !all.contains("38;5;1m"),
            "{all:?}"
        );
    }
}

#[test]
fn an_agent_that_restarts_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let server = serve(&path, None, &["a", "b"]);
    let mut terminal = Terminal::start(&["--state-dir", dir.path().to_str().unwrap()], &[]);
    terminal.until("it is drawn", |text| text.contains("2 pods"));
    drop(server);
    terminal.until("it is said", |text| text.contains("NO ANSWER for "));
    assert!(terminal.text().contains("default/b"), "what was seen stays");
    let _server = serve(&path, None, &["a", "b", "c"]);
    terminal.until("it is asked again", |text| {
        text.contains("3 pods") && !text.contains("NO ANSWER")
    });
    terminal.press("q");
    assert_eq!(terminal.ended(), Some(0));
}

#[test]
fn a_journal_is_stepped_through_by_keys() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.journal");
    engine(&["a", "b"], Some(&path));
    let mut terminal = Terminal::start(&["--journal", path.to_str().unwrap()], &[]);
    terminal.until("the end", |text| text.contains("step 6 of 6  2.000"));
    terminal.press("\x1b[D");
    terminal.until("a step back", |text| {
        text.contains("step 5 of 6  1.000") && text.contains("512Mi available")
    });
    terminal.press("g");
    terminal.until("the begin", |text| text.contains("step 0 of 6"));
    // A pod appears with the first step.
    terminal.press("\x1b[C");
    terminal.until("a step on", |text| text.contains("1 pods"));
    terminal.press("n");
    terminal.until("the decision", |text| text.contains("MemoryPressure"));
    terminal.press("q");
    assert_eq!(terminal.ended(), Some(0));
}

#[test]
fn a_terminal_that_is_too_small_says_what_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let _server = serve(&dir.path().join("control.sock"), None, &["a"]);
    let mut terminal = Terminal::start(&["--state-dir", dir.path().to_str().unwrap()], &[]);
    terminal.until("it is drawn", |text| text.contains("default/a"));
    let size = |wide| Winsize {
        ws_col: wide,
        ws_row: 10,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&terminal.line, size(40)).unwrap();
    let pid = Pid::from_child(&terminal.child);
    kill_process(pid, ProcessSignal::WINCH).unwrap();
    terminal.until("it is said", |text| text.contains("this needs 80x24"));
    terminal.press("q");
    assert_eq!(terminal.ended(), Some(0));
}
