//! The parts of this program's file that only a panic reads.
//!
//! **Problem.** All that is mapped of the program is locked in memory, and a fifth of that are tables by which a panic
//! unwinds the stack. Nothing between a record and a kill reads them, and a panic there ends the process. **Approach.**
//! The section headers of the ELF file say where they are; the pages that hold nothing else are not locked. They are
//! read from the file when a listener panics.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const TABLES: [&[u8]; 3] = [b".eh_frame", b".eh_frame_hdr", b".gcc_except_table"];
/// Of a 64-bit file, bytes.
const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;
/// A program has some forty.
const SECTIONS_MAX: usize = 512;
const NAMES_BYTES_MAX: usize = 64 << 10;

/// Where they are in a 64-bit ELF file of this machine's byte order, in bytes from its beginning; nowhere if the file
/// does not say so.
pub fn unwind_tables(path: &Path) -> Vec<Range<u64>> {
    File::open(path)
        .ok()
        .and_then(|file| in_file(&file))
        .unwrap_or_default()
}

fn in_file(file: &File) -> Option<Vec<Range<u64>>> {
    let header = read(file, 0, HEADER_BYTES)?;
    // 2: 64 bits.
    if !header.starts_with(b"\x7fELF\x02") || usize::from(u16_at(&header, 58)?) != SECTION_BYTES {
        return None;
    }
    let count = usize::from(u16_at(&header, 60)?).min(SECTIONS_MAX);
    let sections = read(file, u64_at(&header, 40)?, count * SECTION_BYTES)?;
    let sections: Vec<&[u8]> = sections.chunks_exact(SECTION_BYTES).collect();
    let range = |section: &[u8]| {
        let offset = u64_at(section, 24)?;
        Some(offset..offset.checked_add(u64_at(section, 32)?)?)
    };
    let names = range(sections.get(usize::from(u16_at(&header, 62)?))?)?;
    let bytes = usize::try_from(names.end - names.start).ok()?;
    let names = read(file, names.start, bytes.min(NAMES_BYTES_MAX))?;
    let is_table = |section: &&&[u8]| {
        let name = u32_at(section, 0).and_then(|at| names.get(usize::try_from(at).ok()?..));
        let name = name.and_then(|name| name.split(|byte| *byte == 0).next());
        name.is_some_and(|name| TABLES.contains(&name))
    };
    let tables = sections.iter().filter(is_table);
    Some(tables.filter_map(|section| range(section)).collect())
}

/// What is left of a mapping of the file, addresses: without the pages that hold nothing but one of `tables`. `offset`:
/// of the mapping in the file.
pub fn without(
    mapping: Range<usize>,
    offset: u64,
    tables: &[Range<u64>],
    page_bytes: usize,
) -> Vec<Range<usize>> {
    let address = |at: u64| {
        let after = usize::try_from(at.checked_sub(offset)?).ok()?;
        Some(mapping.start.saturating_add(after))
    };
    let mut holes: Vec<Range<usize>> = tables
        .iter()
        .filter_map(|table| {
            let start = address(table.start.max(offset))?.checked_next_multiple_of(page_bytes)?;
            let end = address(table.end)?.min(mapping.end) / page_bytes * page_bytes;
            (start < end).then_some(start..end)
        })
        .collect();
    holes.sort_by_key(|hole| hole.start);
    let mut parts = Vec::new();
    let mut from = mapping.start;
    for hole in holes {
        if from < hole.start {
            parts.push(from..hole.start);
        }
        from = from.max(hole.end);
    }
    if from < mapping.end {
        parts.push(from..mapping.end);
    }
    parts
}

fn read(file: &File, offset: u64, bytes: usize) -> Option<Vec<u8>> {
    let mut buffer = vec![0; bytes];
    file.read_exact_at(&mut buffer, offset).ok()?;
    Some(buffer)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_this_program() {
        let path = std::env::current_exe().unwrap();
        let tables = unwind_tables(&path);
        assert_eq!(tables.len(), TABLES.len(), "{tables:?}");
        let length = std::fs::metadata(&path).unwrap().len();
        assert!(
            tables
                .iter()
                .all(|table| table.start < table.end && table.end <= length)
        );
    }

    #[test]
    fn what_is_no_elf_file_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for bytes in [&b""[..], &[0; 64], &program[..64], b"\x7fELF"] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(unwind_tables(&path), []);
        }
        assert_eq!(unwind_tables(&dir.path().join("none")), []);
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one part is meant")]
    fn only_pages_that_hold_nothing_else_are_left_out() {
        let parts = |tables: &[Range<u64>]| without(0x10000..0x20000, 0x4000, tables, 0x1000);
        assert_eq!(parts(&[]), [0x10000..0x20000]);
        // From 0x11010 to 0x14ff0: three whole pages less one.
        assert_eq!(
            parts(&[0x5010..0x8ff0]),
            [0x10000..0x12000, 0x14000..0x20000]
        );
        assert_eq!(
            parts(&[0x5010..0x5ff0]),
            [0x10000..0x20000],
            "no whole page"
        );
        // From before the mapping, and beyond it.
        assert_eq!(parts(&[0..0x5000, 0x13000..u64::MAX]), [0x11000..0x1f000]);
        assert_eq!(parts(&[0..0x100, 0x20000..0x30000]), [0x10000..0x20000]);
        assert_eq!(parts(&[0x4000..0x14000]), []);
        // Where no page can begin any more.
        assert_eq!(parts(&[u64::MAX - 16..u64::MAX - 8]), [0x10000..0x20000]);
        // In any order, and one beside the other.
        assert_eq!(
            parts(&[0x6000..0x7000, 0x5000..0x6000]),
            [0x10000..0x11000, 0x13000..0x20000]
        );
    }
}
