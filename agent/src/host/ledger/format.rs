//! The file of a ledger: a line of JSON for each change. What follows the last line end is a torn line.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt as _;

use super::{LEDGER_BYTES_MAX, Line};

/// Of a ledger's end that is read at one time, bytes: several lines.
pub(super) const PORTION: usize = 4096;

/// Where the last whole line ends. Read from the end on, so that a line takes as long in a long ledger as in a short
/// one.
pub(super) fn whole_lines(file: &File, end: u64) -> std::io::Result<u64> {
    if end > LEDGER_BYTES_MAX {
        return Err(too_large());
    }
    let mut buffer = [0; PORTION];
    let mut at = end;
    while at > 0 {
        let start = at.saturating_sub(PORTION as u64);
        // No longer than the buffer.
        let portion = &mut buffer[..usize::try_from(at - start).unwrap_or(PORTION)];
        file.read_exact_at(portion, start)?;
        if let Some(newline) = portion.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + newline as u64 + 1);
        }
        at = start;
    }
    Ok(0)
}

fn too_large() -> std::io::Error {
    std::io::Error::other(format!(
        "larger than {LEDGER_BYTES_MAX} bytes, so not a ledger; move it away"
    ))
}

fn read_all(file: &mut File) -> std::io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(0))?;
    let mut text = Vec::new();
    file.take(LEDGER_BYTES_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > LEDGER_BYTES_MAX {
        return Err(too_large());
    }
    Ok(text)
}

/// The lines that can be read, and the numbers of those that cannot.
pub(super) fn read_lines(file: &mut File) -> std::io::Result<(Vec<Line>, Vec<usize>)> {
    let text = read_all(file)?;
    let (mut lines, mut unreadable) = (Vec::new(), Vec::new());
    // What follows the last line end is a torn line: its change was never made.
    let whole = text
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(&[][..], |at| &text[..at]);
    for (number, line) in whole
        .split(|byte| *byte == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
    {
        match serde_json::from_slice(line) {
            Ok(line) => lines.push(line),
            Err(_) => unreadable.push(number + 1),
        }
    }
    Ok((lines, unreadable))
}
