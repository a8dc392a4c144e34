//! Files: bytes, inodes and page cache.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::fs::{MemfdFlags, OFlags, SeekFrom, memfd_create, seek};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::{Go, Growth, Log, sleep_for_ever};

const MIB: usize = 1 << 20;
/// Files in one directory; more make slow directories on old file systems.
const FILES_PER_DIRECTORY: u64 = 1000;
/// MiB in one file of [`fill`].
const FILE_MB: u64 = 16;
/// What one read of [`direct`] takes.
const DIRECT_BYTES: usize = 64 << 10;
/// What a pipe holds at most without privileges (`pipe-max-size`), if each page is full.
const PIPE_BYTES: usize = MIB;
/// Where memory for direct reads may begin: a multiple of every disk's block.
const DIRECT_ALIGN: usize = 4096;

/// Writes a file of `mb` MiB to the disk, so that its pages are clean page cache.
pub(crate) fn write(path: &Path, mb: usize) -> anyhow::Result<()> {
    let mut file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    let block = vec![1_u8; MIB];
    for _ in 0..mb {
        file.write_all(&block)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    file.sync_all()?;
    Ok(())
}

/// A file of `mb` MiB that is in memory alone, under no name: it lives as long as somebody has it open.
pub(crate) fn memfd(mb: usize) -> anyhow::Result<File> {
    let mut file = File::from(memfd_create("hog", MemfdFlags::CLOEXEC).context("memfd_create")?);
    let block = vec![1_u8; MIB];
    for _ in 0..mb {
        file.write_all(&block).context("writing a memfd")?;
    }
    Ok(file)
}

/// A file of `mb` MiB without blocks, read, of which pipes hold every page: the kernel lists them as page cache, and
/// cannot drop one.
pub(crate) fn pin(path: &Path, mb: usize) -> anyhow::Result<Vec<(OwnedFd, OwnedFd)>> {
    let file = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(path)
        .with_context(|| format!("creating {}", path.display()))?;
    let bytes = (mb * MIB) as u64;
    file.set_len(bytes)?;
    io::copy(&mut (&file).take(bytes), &mut io::sink())?;
    let mut pipes = Vec::new();
    let mut offset = 0;
    while offset < bytes {
        let (output, input) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        fcntl_setpipe_size(&input, PIPE_BYTES).context("a pipe of 256 pages")?;
        for _ in 0..PIPE_BYTES / DIRECT_ALIGN {
            if offset < bytes {
                let mut from = offset;
                let flags = SpliceFlags::NONBLOCK;
                splice(&file, Some(&mut from), &input, None, 1, flags).context("splice")?;
                offset += DIRECT_ALIGN as u64;
            }
        }
        pipes.push((output, input));
    }
    Ok(pipes)
}

/// Reads a file to its end again and again. The amount in the log is the round.
pub(crate) fn reread(path: &Path, rounds: u64, pause: Duration, log: &Log) -> anyhow::Result<()> {
    let mut block = vec![0_u8; MIB];
    for round in 1..=rounds {
        let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        while file.read(&mut block)? > 0 {}
        // The second round is what makes pages active.
        match round {
            2 => log.goal(round),
            _ => log.event("at", round),
        }
        thread::sleep(pause);
    }
    Ok(())
}

/// MiB after MiB, in files of [`FILE_MB`].
pub(crate) fn fill(dir: &Path, growth: &Growth, go: &Go, log: &Log) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let block = vec![1_u8; MIB];
    let mut file: Option<File> = None;
    growth.run(go, log, |made| {
        let open = match &mut file {
            Some(open) if !made.is_multiple_of(FILE_MB) => open,
            stale => stale.insert(File::create(dir.join(format!("fill-{}", made / FILE_MB)))?),
        };
        open.write_all(&block)?;
        // Space is taken when pages are written back, on file systems that allocate late.
        if (made + 1).is_multiple_of(FILE_MB) || made + 1 == growth.count {
            open.sync_all()?;
        }
        Ok(())
    });
    Ok(())
}

/// Empty files, and a directory for each [`FILES_PER_DIRECTORY`] of them.
pub(crate) fn inodes(dir: &Path, growth: &Growth, go: &Go, log: &Log) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    growth.run(go, log, |made| -> io::Result<()> {
        let below = dir.join(format!("{}", made / FILES_PER_DIRECTORY));
        if made.is_multiple_of(FILES_PER_DIRECTORY) {
            fs::create_dir_all(&below)?;
        }
        File::create(below.join(format!("{made}"))).map(drop)
    });
    Ok(())
}

/// Threads that read a file or disk past the page cache, each from its own place on, again and again.
pub(crate) fn direct(path: &Path, threads: u64, pause: Duration, log: &Log) -> anyhow::Result<()> {
    let mut direct = File::options();
    direct
        .read(true)
        .custom_flags(OFlags::DIRECT.bits().cast_signed());
    let opened = || {
        direct
            .open(path)
            .with_context(|| format!("opening {}", path.display()))
    };
    let blocks = seek(opened()?, SeekFrom::End(0))? / DIRECT_BYTES as u64;
    ensure!(
        blocks > 0,
        "{} has less than {DIRECT_BYTES} bytes",
        path.display()
    );
    for thread in 0..threads {
        let file = opened()?;
        thread::spawn(move || {
            let mut memory = vec![0_u8; DIRECT_BYTES + DIRECT_ALIGN];
            let from = memory.as_ptr().align_offset(DIRECT_ALIGN);
            let block = &mut memory[from..from + DIRECT_BYTES];
            let first = blocks / threads * thread;
            for at in (first..blocks).chain(0..first).cycle() {
                if let Err(error) = file.read_exact_at(block, at * DIRECT_BYTES as u64) {
                    println!("refused at block {at}: {error}");
                    return;
                }
                thread::sleep(pause);
            }
        });
    }
    log.event("ready", threads);
    sleep_for_ever()
}
