use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;

use plimsoll_core::protocol::runtime_link::Answer;

use super::*;

/// The other end of one start.
struct Program(UnixStream);

impl Program {
    fn say(&mut self, frame: &FromNri) {
        let json = serde_json::to_vec(frame).unwrap();
        self.0.write_all(&FRAMING.frame(&json).unwrap()).unwrap();
    }

    /// `None`: it was ended.
    fn hear(&mut self) -> Option<ToNri> {
        let mut length = [0; LENGTH_BYTES];
        self.0.read_exact(&mut length).ok()?;
        let mut frame = vec![0; FRAMING.announced(length).unwrap()];
        self.0.read_exact(&mut frame).ok()?;
        Some(serde_json::from_slice(&frame).unwrap())
    }

    fn greet(&mut self) {
        let protocol = PROTOCOL;
        self.say(&FromNri::Hello { protocol });
    }
}

/// A link whose program is in the hands of a test, for each start.
fn link() -> (NriLink, NriEvents, Receiver<Program>) {
    let (starts, programs) = channel();
    let start: Start = Box::new(move || {
        let (stream, theirs) = UnixStream::pair()?;
        // The test may be over.
        starts.send(Program(theirs)).ok();
        let process = None;
        Ok(ChildProgram { stream, process })
    });
    let (link, events) = NriLink::started_by(start).unwrap();
    (link, events, programs)
}

fn scored(uid: &str, adj: i32) -> NriChange {
    NriChange::Pod {
        uid: PodUid::from(uid),
        answers: PodAnswers {
            refusal: None,
            oom_score_adj: [("app".to_owned(), adj)].into(),
            ..PodAnswers::default()
        },
    }
}

fn pod(change: &NriChange) -> ToNri {
    match change {
        NriChange::Pod { uid, answers } => ToNri::Pod {
            uid: uid.as_str().to_owned(),
            answers: answers.clone(),
        },
        NriChange::SharedPool(cpus) => ToNri::SharedPool { cpus: cpus.clone() },
    }
}

fn away(event: Option<FromNri>) -> String {
    match event {
        Some(FromNri::Away { why }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_program_gets_the_whole_table_and_then_what_changes() {
    let (link, mut events, programs) = link();
    let mut program = programs.recv().unwrap();
    for change in [scored("a", 1), scored("b", 2), scored("a", 3)] {
        assert!(link.set(change));
    }
    // Before its greeting it gets nothing.
    program.greet();
    let mut heard = Vec::new();
    while heard.last() != Some(&ToNri::Complete) {
        heard.push(program.hear().unwrap());
    }
    // However much of it was there at the greeting: the newest comes last.
    let mut table = BTreeMap::new();
    let mut learn = |frame| {
        if let ToNri::Pod { uid, answers } = frame {
            table.insert(uid, answers);
        }
    };
    heard.into_iter().for_each(&mut learn);
    let last = scored("c", 4);
    link.set(last.clone());
    loop {
        let frame = program.hear().unwrap();
        learn(frame.clone());
        if frame == pod(&last) {
            break;
        }
    }
    let scores: Vec<i32> = table
        .values()
        .map(|answers| answers.oom_score_adj["app"])
        .collect();
    assert_eq!(scores, [3, 2, 4]);
    let made = FromNri::Container {
        pod_uid: "a".to_owned(),
        name: "app".to_owned(),
        id: "1".to_owned(),
        answer: Answer::Unchanged,
        is_foreign: false,
    };
    program.say(&made);
    assert_eq!(events.blocking_recv(), Some(made));

    // It ends, and the next one gets all of it, without what was taken back.
    let nothing = NriChange::Pod {
        uid: PodUid::from("a"),
        answers: PodAnswers::default(),
    };
    link.set(nothing.clone());
    assert_eq!(program.hear(), Some(pod(&nothing)));
    drop(program);
    assert!(away(events.blocking_recv()).contains("has ended"));
    let mut program = programs.recv().unwrap();
    program.greet();
    for frame in [pod(&scored("b", 2)), pod(&last), ToNri::Complete] {
        assert_eq!(program.hear(), Some(frame));
    }
    // The end of the link is the program's.
    drop(link);
    assert_eq!(program.hear(), None);
}

#[test]
fn what_is_no_frame_ends_it() {
    let cases: [(&[u8], &str); 4] = [
        (&[0xff; 8], "announced a frame of 4294967295 bytes"),
        (b"\x02\0\0\0{}", "no frame"),
        (b"\x03\0\0\0[[[", "no frame"),
        (
            b"\x20\0\0\0{\"type\":\"hello\",\"protocol\":9999}",
            "speaks protocol 9999",
        ),
    ];
    for (bytes, expected) in cases {
        let (_link, mut events, programs) = link();
        let mut program = programs.recv().unwrap();
        program.0.write_all(bytes).unwrap();
        let why = away(events.blocking_recv());
        assert!(why.contains(expected), "{expected}: {why}");
        assert_eq!(program.hear(), None);
    }
    // Before its greeting, and a second greeting.
    let runtime = "containerd".to_owned();
    for is_greeted in [false, true] {
        let (_link, mut events, programs) = link();
        let mut program = programs.recv().unwrap();
        let frame = match is_greeted {
            true => {
                program.greet();
                let protocol = PROTOCOL;
                FromNri::Hello { protocol }
            }
            false => FromNri::Connected {
                runtime: runtime.clone(),
            },
        };
        program.say(&frame);
        assert!(away(events.blocking_recv()).contains("no frame"));
    }
}

#[test]
fn a_loop_that_does_not_listen_loses_nothing_and_is_waited_for() {
    const CONTAINERS: usize = 3 * EVENTS_MAX;
    let (link, mut events, programs) = link();
    let mut program = programs.recv().unwrap();
    program.greet();
    assert_eq!(program.hear(), Some(ToNri::Complete));
    let made = |number: usize| FromNri::Container {
        pod_uid: "a".to_owned(),
        name: "app".to_owned(),
        id: number.to_string(),
        answer: Answer::Unchanged,
        is_foreign: false,
    };
    for number in 0..CONTAINERS {
        program.say(&made(number));
    }
    // Changes go on meanwhile.
    link.set(scored("a", 1));
    assert_eq!(program.hear(), Some(pod(&scored("a", 1))));
    for number in 0..CONTAINERS {
        assert_eq!(events.blocking_recv(), Some(made(number)));
    }
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let (_link, mut events) = NriLink::start(NriSettings {
        socket: PathBuf::from("/nowhere/nri.sock"),
        runtime: PathBuf::from("/nowhere/runtime.sock"),
        program: PathBuf::from("/nowhere/plimsoll-runtime"),
    })
    .unwrap();
    let why = away(events.blocking_recv());
    assert!(why.contains("/nowhere/plimsoll-runtime"), "{why}");
}

#[test]
fn a_pod_that_does_not_fit_into_a_frame_costs_itself_alone() {
    let (link, _events, programs) = link();
    let mut program = programs.recv().unwrap();
    // The pool comes before all pods.
    let pool = NriChange::SharedPool(Some("1".to_owned()));
    link.set(pool.clone());
    program.greet();
    assert_eq!(program.hear(), Some(pod(&pool)));
    assert_eq!(program.hear(), Some(ToNri::Complete));
    let names = (0..FRAMING.values_max).map(|number| (number.to_string(), 1));
    let of_a = |oom_score_adj| NriChange::Pod {
        uid: PodUid::from("a"),
        answers: PodAnswers {
            oom_score_adj,
            ..PodAnswers::default()
        },
    };
    link.set(of_a(names.collect()));
    assert_eq!(program.hear(), Some(pod(&of_a(BTreeMap::new()))));
    link.set(scored("b", 2));
    assert_eq!(program.hear(), Some(pod(&scored("b", 2))));
}

fn many(what: &'static str, count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |at| format!("{what}-{at}"))
}

#[test]
fn of_too_many_answers_the_scores_go_first() {
    let answers = PodAnswers {
        oom_score_adj: many("scored", 3000).map(|name| (name, 1)).collect(),
        foreign: many("id", 10).collect(),
        ..PodAnswers::default()
    };
    let sent = |answers: &PodAnswers| {
        let (uid, answers) = ("u1".to_owned(), answers.clone());
        let bytes = fitting(&ToNri::Pod { uid, answers }).unwrap();
        match serde_json::from_slice(&bytes[LENGTH_BYTES..]).unwrap() {
            ToNri::Pod { answers, .. } => answers,
            other => panic!("{other:?}"),
        }
    };
    let scored = sent(&answers);
    assert_eq!((scored.oom_score_adj.len(), scored.foreign.len()), (0, 10));
    let refused = PodAnswers {
        refusal: Some("evicted".to_owned()),
        foreign: many("id", 3000).collect(),
        ..answers
    };
    let sent = sent(&refused);
    assert_eq!(sent.refusal, refused.refusal);
    assert_eq!((sent.oom_score_adj.len(), sent.foreign.len()), (0, 0));
}
