use std::fs;
use std::path::PathBuf;

use super::*;
use crate::host::HostRoot;

/// Numbers of the same length: a file in a temporary directory keeps the tail of a longer text, a control file does
/// not.
const OLD: &str = "99999744";
const NEW_BYTES: u64 = 67_108_864;

struct Cgroup {
    _dir: tempfile::TempDir,
    high: PathBuf,
    reclaim: PathBuf,
    ledger: PathBuf,
    uid: PodUid,
    files: Arc<RemedyFiles>,
    remedies: Remedies,
    reports: Reports,
}

fn cgroup() -> Cgroup {
    let dir = tempfile::tempdir().unwrap();
    let (high, reclaim) = (
        dir.path().join("memory.high"),
        dir.path().join("memory.reclaim"),
    );
    fs::write(&high, format!("{OLD}\n")).unwrap();
    fs::write(&reclaim, "").unwrap();
    let ledger = dir.path().join(REMEDIES_LEDGER);
    let host = HostRoot::new(dir.path());
    let (remedies, reports) = Remedies::start(Ledger::open(&host, &ledger).unwrap()).unwrap();
    Cgroup {
        files: Arc::new(RemedyFiles::open(dir.path()).unwrap()),
        _dir: dir,
        high,
        reclaim,
        ledger,
        uid: "hog".into(),
        remedies,
        reports,
    }
}

impl Cgroup {
    fn set_high(&mut self, for_ms: u64) {
        let until_ns = now_ns() + for_ms * 1_000_000;
        self.remedies
            .set_high(&self.uid, &self.files, NEW_BYTES, until_ns)
            .unwrap();
    }

    fn high(&self) -> String {
        fs::read_to_string(&self.high).unwrap().trim().to_owned()
    }

    fn wait_high(&self, value: &str) {
        wait(|| self.high() == value);
    }
}

fn wait(mut until: impl FnMut() -> bool) {
    while !until() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_high_is_put_back_when_it_is_asked_for_and_the_ledger_is_empty_then() {
    let mut cgroup = cgroup();
    for _ in 0..3 {
        cgroup.set_high(60_000);
        cgroup.wait_high(&NEW_BYTES.to_string());
        assert!(fs::metadata(&cgroup.ledger).unwrap().len() > 0);
        cgroup.remedies.clear_high(&cgroup.uid).unwrap();
        wait(|| cgroup.high() == OLD && fs::metadata(&cgroup.ledger).unwrap().len() == 0);
    }
}

#[test]
fn a_high_is_put_back_at_the_end() {
    let mut cgroup = cgroup();
    cgroup.set_high(60_000);
    cgroup.wait_high(&NEW_BYTES.to_string());
    drop(cgroup.remedies);
    assert_eq!(fs::read_to_string(&cgroup.high).unwrap().trim(), OLD);
}

#[test]
fn a_high_that_nobody_asks_back_is_put_back_all_the_same() {
    let mut cgroup = cgroup();
    cgroup.set_high(50);
    cgroup.wait_high(&NEW_BYTES.to_string());
    cgroup.wait_high(OLD);
}

/// The loop asks back at every moment: before the thread has begun, between its look at the ticket and its write, and
/// after that.
#[test]
fn a_high_that_is_asked_back_at_any_moment_does_not_stay() {
    let mut cgroup = cgroup();
    for turn in 0..300_u32 {
        cgroup.set_high(60_000);
        for _ in 0..turn * 20 {
            std::hint::spin_loop();
        }
        cgroup.remedies.clear_high(&cgroup.uid).unwrap();
        // The next job of this thread begins when this one is over.
        if turn % 7 == 0 {
            cgroup.wait_high(OLD);
        }
        wait(|| cgroup.remedies.shared.jobs.is_empty());
    }
    let high = cgroup.high.clone();
    drop(cgroup.remedies);
    assert_eq!(fs::read_to_string(high).unwrap().trim(), OLD);
    assert!(
        !fs::exists(&cgroup.ledger).unwrap() || fs::metadata(&cgroup.ledger).unwrap().len() == 0
    );
}

#[test]
fn a_job_whose_ticket_is_old_is_not_begun() {
    let cgroup = cgroup();
    let job = Job {
        ticket: 0,
        uid: cgroup.uid.clone(),
        files: Arc::clone(&cgroup.files),
        bytes: NEW_BYTES,
        until_ns: u64::MAX,
        what: Work::SetHigh,
    };
    let shared = Arc::new(Shared::default());
    shared.ticket.store(1, Ordering::SeqCst);
    let mut worker = Worker {
        shared,
        ledger: Ledger::open(&HostRoot::live(), &cgroup.ledger).unwrap(),
        reports: mpsc::channel(1).0,
        overdue_ns: None,
        said: Vec::new(),
    };
    worker.work(job);
    assert_eq!(cgroup.high(), OLD);
}

#[test]
fn what_somebody_else_has_set_meanwhile_stays() {
    let mut cgroup = cgroup();
    cgroup.set_high(60_000);
    cgroup.wait_high(&NEW_BYTES.to_string());
    fs::write(&cgroup.high, "55555584").unwrap();
    cgroup.remedies.clear_high(&cgroup.uid).unwrap();
    wait(|| fs::metadata(&cgroup.ledger).unwrap().len() == 0);
    assert_eq!(cgroup.high(), "55555584");
}

#[test]
fn a_stricter_high_is_not_raised() {
    let mut cgroup = cgroup();
    fs::write(&cgroup.high, "1048576").unwrap();
    cgroup.set_high(60_000);
    let outcome = cgroup.reports.blocking_recv().unwrap();
    assert!(matches!(outcome.report, RemedyReport::Failed { error } if error.contains("1048576")));
    assert_eq!(cgroup.high(), "1048576");
}

#[test]
fn reclaim_goes_in_chunks_and_says_what_came() {
    let mut cgroup = cgroup();
    let bytes = 2 * RECLAIM_CHUNK_BYTES + 4096;
    cgroup
        .remedies
        .reclaim(&cgroup.uid, &cgroup.files, bytes, u64::MAX)
        .unwrap();
    let outcome = cgroup.reports.blocking_recv().unwrap();
    assert_eq!(outcome.report, RemedyReport::Reclaimed { bytes });
    // The last chunk over the longer ones.
    let written = fs::read_to_string(&cgroup.reclaim).unwrap();
    assert_eq!(written, "40967216");
    // Its time was over before it began.
    cgroup
        .remedies
        .reclaim(&cgroup.uid, &cgroup.files, bytes, 0)
        .unwrap();
    let outcome = cgroup.reports.blocking_recv().unwrap();
    assert_eq!(outcome.report, RemedyReport::Reclaimed { bytes: 0 });
}

#[test]
fn what_this_kernel_does_not_have_is_said() {
    let mut cgroup = cgroup();
    let none = Arc::new(RemedyFiles::default());
    for remedy in [Remedy::Reclaim, Remedy::Throttle] {
        let until_ns = u64::MAX;
        match remedy {
            Remedy::Reclaim => cgroup.remedies.reclaim(&cgroup.uid, &none, 1, until_ns),
            _ => cgroup.remedies.set_high(&cgroup.uid, &none, 1, until_ns),
        }
        .unwrap();
        let outcome = cgroup.reports.blocking_recv().unwrap();
        assert_eq!(
            (outcome.remedy, outcome.report),
            (remedy, RemedyReport::Unsupported)
        );
    }
}
