//! What a cgroup uses of memory, read by the loop where that is quick, and by a thread where it is not.
//!
//! **Problem.** For `memory.stat` the kernel adds up what every cgroup below and every CPU has counted since the last
//! time (`cgroup_rstat_flush`). With 4,000 nested cgroups on two CPUs one read took 22 ms, and 89 ms at most; it grows
//! with both numbers, and a tenant decides on the first. The loop is on its way to a signal. **Approach.** Each read is
//! measured. A cgroup of which two reads in a row took [`SLOW_NS`], or that is known to have very many below it, is
//! *slow*: the loop reads only its usage, and [`StatThread`] reads the rest, whose result comes with a later sample.
//! Until then, and once that is older than a second, all of the usage of a pod counts ([`MemoryReader::sure_cache`]): a
//! pod gains nothing by being slow. After [`QUICK_READS`] reads of the thread that were quick the loop reads it again.
//!
//! **Order.** Between loop and thread are places with a lock each ([`Handover`]), which the loop only tries, and one
//! result for each cgroup, alike. Neither allocates. Without a thread the loop reads everything, however long it takes.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use crate::host::cgroup::{PageCache, PodMemoryFiles};
use crate::host::clock::now_ns;
use crate::host::file::FileError;
use crate::host::handover::Handover;
use crate::host::worker::{End, WorkerThread};

/// A read that takes so long is not for the loop, nanoseconds. An ordinary one takes 20 to 100 µs, one of 200 nested
/// cgroups 500 µs. Four such pods at once are the time that the loop has to read figures anew for a decision.
const SLOW_NS: u64 = 5_000_000;
/// A read that takes so many times as long needs no second one.
const NO_ACCIDENT: u64 = 16;
/// So many reads in a row must be quick. The kernel has little to add up right after it has done so, and who makes a
/// cgroup slow chooses when.
const QUICK_READS: u32 = 4;
/// Cgroups that may wait for the thread.
const JOBS_MAX: usize = 64;
/// After a read the thread rests as long as it took, and at most so long: a tenant must not have a CPU that way.
const REST_MAX: Duration = Duration::from_millis(500);
/// `memory.stat` is read onto the stack.
const STACK_BYTES: usize = 128 << 10;

const MS: u64 = 1_000_000;

/// One reading of `memory.stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// What it said.
    pub cache: PageCache,
    /// The usage just before.
    pub usage_bytes: u64,
    /// When it was begun.
    pub at_ns: u64,
}

/// What the thread found.
#[derive(Debug)]
struct Answer {
    read: Result<Reading, FileError>,
    /// The loop could have read it.
    is_quick: bool,
}

/// What loop and thread share of one cgroup.
#[derive(Debug)]
struct Shared {
    files: PodMemoryFiles,
    /// It waits for the thread, or the thread is at it.
    is_asked: AtomicBool,
    answer: Mutex<Option<Answer>>,
}

/// One cgroup's memory files, and the newest reading of them.
#[derive(Debug)]
pub struct MemoryReader {
    shared: Arc<Shared>,
    newest: Option<Reading>,
    /// Quick reads of the thread in a row; `None`: the loop reads it.
    slow: Option<u32>,
    /// The loop's last read took long. One alone says nothing: the loop may have waited for another's flush, or for a
    /// CPU.
    was_slow: bool,
    is_large: bool,
}

impl MemoryReader {
    /// Of these files. Nothing is read yet.
    pub fn new(files: PodMemoryFiles) -> Self {
        Self {
            shared: Arc::new(Shared {
                files,
                is_asked: AtomicBool::new(false),
                answer: Mutex::new(None),
            }),
            newest: None,
            slow: None,
            was_slow: false,
            is_large: false,
        }
    }

    /// Whether there are so many cgroups below that it counts as slow before it was read, and while that is so.
    pub fn set_large(&mut self, is_large: bool) {
        self.is_large = is_large;
        if is_large {
            self.slow.get_or_insert(0);
        }
    }

    /// The usage: one system call.
    ///
    /// # Errors
    /// [`FileError::Vanished`] when the cgroup is gone.
    pub fn read_usage_bytes(&self) -> Result<u64, FileError> {
        self.shared.files.read_usage_bytes()
    }

    /// The newest reading, by whomever.
    pub fn newest(&self) -> Option<&Reading> {
        self.newest.as_ref()
    }

    /// Whether the loop leaves it to that thread.
    pub fn is_slow(&self, thread: Option<&StatThread>) -> bool {
        thread.is_some() && self.slow.is_some()
    }

    /// Reads `memory.stat`, if that is quick; else has the thread do it. Does not wait for the thread, allocates
    /// nothing.
    ///
    /// # Errors
    /// When it cannot be read, also if the thread found that out. The newest reading stays.
    pub fn read(
        &mut self,
        usage_bytes: u64,
        now_ns: u64,
        thread: Option<&StatThread>,
    ) -> Result<(), FileError> {
        if let Some(thread) = thread.filter(|_| self.slow.is_some()) {
            let taken = self.take_answer();
            if self.slow.is_some() {
                thread.ask(&self.shared);
                return taken;
            }
        }
        let began_ns = self::now_ns();
        let read = self.shared.files.read_cache();
        let took_ns = self::now_ns().saturating_sub(began_ns);
        if let Some(thread) = thread {
            let is_slow = took_ns >= thread.slow_ns;
            if is_slow && (self.was_slow || took_ns >= thread.slow_ns.saturating_mul(NO_ACCIDENT)) {
                self.slow = Some(0);
            }
            self.was_slow = is_slow;
        }
        self.newest = Some(Reading {
            cache: read?,
            usage_bytes,
            at_ns: now_ns,
        });
        Ok(())
    }

    /// Takes in what the thread has found since. Does not wait.
    ///
    /// # Errors
    /// What it found.
    pub fn take_answer(&mut self) -> Result<(), FileError> {
        if self.slow.is_none() {
            return Ok(());
        }
        let answer = match self.shared.answer.try_lock() {
            Ok(mut answer) => answer.take(),
            Err(TryLockError::Poisoned(answer)) => answer.into_inner().take(),
            // It comes with the next sample.
            Err(TryLockError::WouldBlock) => None,
        };
        let Some(Answer { read, is_quick }) = answer else {
            return Ok(());
        };
        self.slow = match self.slow {
            Some(quick) if is_quick && !self.is_large => {
                (quick + 1 < QUICK_READS).then_some(quick + 1)
            }
            _ => Some(0),
        };
        self.newest = Some(read?);
        Ok(())
    }

    /// Page cache and huge pages that are in a usage for certain, by the newest reading, if that is not older than so
    /// many milliseconds: what usage has fallen by may have been of either.
    pub fn sure_cache(&self, usage_bytes: u64, now_ns: u64, age_max_ms: u32) -> PageCache {
        let Some(Reading {
            cache,
            usage_bytes: usage_then_bytes,
            ..
        }) = self.newest.filter(|_| !self.is_older(now_ns, age_max_ms))
        else {
            return PageCache::default();
        };
        let fallen_bytes = usage_then_bytes.saturating_sub(usage_bytes);
        let beyond_bytes = fallen_bytes.saturating_sub(cache.inactive_file_bytes);
        PageCache {
            inactive_file_bytes: cache.inactive_file_bytes.saturating_sub(fallen_bytes),
            active_file_bytes: cache.active_file_bytes.saturating_sub(beyond_bytes),
            lazily_freed_bytes: cache.lazily_freed_bytes,
            huge_page_bytes: cache.huge_page_bytes.saturating_sub(fallen_bytes),
        }
    }

    /// Whether the newest reading is older than that, or there is none.
    pub fn is_older(&self, now_ns: u64, age_max_ms: u32) -> bool {
        self.newest
            .is_none_or(|newest| now_ns.saturating_sub(newest.at_ns) > u64::from(age_max_ms) * MS)
    }
}

#[derive(Debug, Default)]
struct Jobs {
    waiting: Handover<Arc<Shared>, JOBS_MAX>,
    refused: AtomicU64,
}

/// The thread that reads what is slow: the loop's side.
#[derive(Debug)]
pub struct StatThread {
    jobs: Arc<Jobs>,
    slow_ns: u64,
    thread: WorkerThread<Infallible>,
}

impl StatThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the kernel gives none.
    pub fn start() -> std::io::Result<Self> {
        Self::start_with(SLOW_NS, PodMemoryFiles::read_cache)
    }

    /// With another bound and another way to read, for tests.
    pub(crate) fn start_with(
        slow_ns: u64,
        read: impl Fn(&PodMemoryFiles) -> Result<PageCache, FileError> + Send + 'static,
    ) -> std::io::Result<Self> {
        let jobs = Arc::new(Jobs::default());
        let of_thread = Arc::clone(&jobs);
        let thread = WorkerThread::start("pod-stat", STACK_BYTES, 0, move |_jobs, end| {
            work(&of_thread, slow_ns, read, &end);
        })?;
        Ok(Self {
            jobs,
            slow_ns,
            thread,
        })
    }

    /// Has one read. Does not wait, allocates nothing. Without a place it is to be asked for again.
    fn ask(&self, shared: &Arc<Shared>) {
        if shared.is_asked.swap(true, Ordering::SeqCst) {
            return;
        }
        if !self.jobs.waiting.put(Arc::clone(shared)) {
            shared.is_asked.store(false, Ordering::SeqCst);
            self.jobs.refused.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(thread) = self.thread.thread() {
            thread.unpark();
        }
    }

    /// Cgroups that found no place.
    pub fn refused(&self) -> u64 {
        self.jobs.refused.load(Ordering::Relaxed)
    }
}

impl Drop for StatThread {
    fn drop(&mut self) {
        if !self.thread.end_soon() {
            tracing::debug!("a read of memory.stat is still held up");
        }
    }
}

fn work(
    jobs: &Jobs,
    slow_ns: u64,
    read: impl Fn(&PodMemoryFiles) -> Result<PageCache, FileError>,
    end: &End,
) {
    while !end.is_asked() {
        let Some(shared) = jobs.waiting.take() else {
            // A cgroup, or the end, that comes in between has left its token: then this returns at once.
            std::thread::park();
            continue;
        };
        let at_ns = now_ns();
        let reading = shared.files.read_usage_bytes().and_then(|usage_bytes| {
            let cache = read(&shared.files)?;
            Ok(Reading {
                cache,
                usage_bytes,
                at_ns,
            })
        });
        let took_ns = now_ns().saturating_sub(at_ns);
        let answer = Answer {
            read: reading,
            is_quick: took_ns < slow_ns,
        };
        *shared.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        shared.is_asked.store(false, Ordering::SeqCst);
        if !end.is_asked() {
            std::thread::sleep(Duration::from_nanos(took_ns).min(REST_MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::CgroupPath;
    use crate::host::cgroup::tests::fake_v2;

    /// When the loop reads.
    const OF_LOOP_NS: u64 = 7;

    fn reader() -> (tempfile::TempDir, MemoryReader) {
        let (dir, host) = fake_v2();
        let pod = host.path("/sys/fs/cgroup/pod");
        std::fs::create_dir_all(&pod).unwrap();
        std::fs::write(pod.join("memory.current"), "100\n").unwrap();
        let stat = "inactive_file 30\nactive_file 20\nhugetlb 25\n";
        std::fs::write(pod.join("memory.stat"), stat).unwrap();
        let (mounts, path) = (host.cgroup_mounts().unwrap(), CgroupPath::new("pod"));
        let files = PodMemoryFiles::open(&mounts, &path.unwrap()).unwrap();
        (dir, MemoryReader::new(files))
    }

    /// Asks until the thread has read it again; `false`: the loop has.
    fn is_answered(reader: &mut MemoryReader, thread: &StatThread) -> bool {
        let before = reader.newest().copied();
        while reader.newest() == before.as_ref() {
            reader.read(100, OF_LOOP_NS, Some(thread)).unwrap();
            std::thread::yield_now();
        }
        reader.newest().unwrap().at_ns != OF_LOOP_NS
    }

    #[test]
    fn what_has_become_quick_is_read_by_the_loop_again() {
        let (_dir, mut reader) = reader();
        let thread = StatThread::start_with(u64::MAX, PodMemoryFiles::read_cache).unwrap();
        reader.set_large(true);
        reader.read(100, OF_LOOP_NS, Some(&thread)).unwrap();
        assert_eq!(reader.newest(), None, "not the first time either");
        for _ in 0..2 * QUICK_READS {
            assert!(is_answered(&mut reader, &thread), "it has as many cgroups");
        }
        reader.set_large(false);
        for _ in 1..QUICK_READS {
            assert!(is_answered(&mut reader, &thread));
        }
        // With the last one it is the loop's.
        assert!(!is_answered(&mut reader, &thread));
        assert!(!reader.is_slow(Some(&thread)));
        let cache = PageCache {
            inactive_file_bytes: 30,
            active_file_bytes: 20,
            huge_page_bytes: 25,
            ..PageCache::default()
        };
        assert_eq!(reader.newest().unwrap().cache, cache);
    }

    #[test]
    fn a_slow_read_of_the_loop_is_its_last_and_without_a_thread_it_reads_all() {
        let (_dir, mut reader) = reader();
        for at_ns in [1, 2] {
            reader.read(100, at_ns, None).unwrap();
            assert_eq!(reader.newest().unwrap().at_ns, at_ns);
        }
        let (let_go, held) = std::sync::mpsc::channel::<()>();
        let thread = StatThread::start_with(0, move |files| {
            held.recv().ok();
            files.read_cache()
        });
        let thread = thread.unwrap();
        for _ in 0..1000 {
            reader.read(100, 3, Some(&thread)).unwrap();
        }
        assert_eq!(reader.newest().unwrap().at_ns, 3);
        assert!(reader.is_slow(Some(&thread)));
        assert_eq!(thread.refused(), 0, "it waits once");
        drop(let_go);
        assert!(is_answered(&mut reader, &thread));
        assert!(reader.is_slow(Some(&thread)));
    }

    #[test]
    fn what_usage_has_fallen_by_may_have_been_any_of_it() {
        let (_dir, mut reader) = reader();
        let sure = |reader: &MemoryReader, usage_bytes, now_ns| {
            let cache = reader.sure_cache(usage_bytes, now_ns, 1);
            let PageCache {
                inactive_file_bytes,
                active_file_bytes,
                huge_page_bytes,
                ..
            } = cache;
            (inactive_file_bytes, active_file_bytes, huge_page_bytes)
        };
        assert_eq!(sure(&reader, 100, 5), (0, 0, 0), "never read");
        reader.read(100, 5, None).unwrap();
        let now_ns = 5 + MS;
        let known = [150, 100, 90, 65, 40].map(|usage_bytes| sure(&reader, usage_bytes, now_ns));
        assert_eq!(
            known,
            [
                (30, 20, 25),
                (30, 20, 25),
                (20, 20, 15),
                (0, 15, 0),
                (0, 0, 0)
            ]
        );
        assert_eq!(sure(&reader, 100, now_ns + 1), (0, 0, 0), "too old");
    }
}
