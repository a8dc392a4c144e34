//! Names in files that containers make on purpose, by the real binary as the child that reads them.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use plimsoll_trace::names::{Found, NAME_BYTES_MAX, Names, NoNames, Reader, Share, child};
use rustix::fs::OFlags;
use tempfile::NamedTempFile;

/// Where functions begin in a file of [`elf`], and how far apart they are.
const CODE: u64 = 0x200;
const FUNCTION_BYTES: u64 = 0x10;
/// Where its symbols begin: not in its first page.
const SYMBOLS: usize = 0x2000;

/// An ELF file of some functions with these names.
fn elf(names: &[&str]) -> Vec<u8> {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let (mut symbols, mut strings) = (vec![0; 24], vec![0]);
    for (place, name) in names.iter().enumerate() {
        symbols.extend((strings.len() as u32).to_le_bytes());
        symbols.extend([0x12, 0, 1, 0]); // a global function of the first section
        let start = CODE + place as u64 * FUNCTION_BYTES;
        let place: Vec<u8> = words(&[start, FUNCTION_BYTES]);
        symbols.extend(place);
        strings.extend(name.bytes().chain([0]));
    }
    let section_names = b"\0.text\0.symtab\0.strtab\0.shstrtab\0";
    let strings_at = SYMBOLS + symbols.len();
    let section_names_at = strings_at + strings.len();
    let sections_at = (section_names_at + section_names.len()).next_multiple_of(8);

    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    elf.extend([3, 0, 62, 0, 1, 0, 0, 0]); // shared object, x86-64, version 1
    let headers: Vec<u8> = words(&[CODE, 64, sections_at as u64]);
    elf.extend(headers); // entry, program headers, section headers
    elf.extend([0; 4]);
    for half in [64_u16, 56, 1, 64, 5, 4] {
        elf.extend(half.to_le_bytes()); // sizes and numbers of the headers, where the names of sections are
    }
    elf.extend([1, 0, 0, 0, 5, 0, 0, 0]); // PT_LOAD, readable and executable
    let code_bytes = SYMBOLS as u64 - CODE;
    let segment: Vec<u8> = words(&[CODE, CODE, CODE, code_bytes, code_bytes, 16]);
    elf.extend(segment); // offset, addresses, sizes in file and memory, alignment
    elf.resize(SYMBOLS, 0);
    elf.extend(&symbols);
    elf.extend(&strings);
    elf.extend(section_names);
    elf.resize(sections_at, 0);
    // Name, type, flags, address, place, size, link, info, alignment, size of an entry.
    for (name, kind, at, bytes, link, entry) in [
        (0_u32, 0_u32, 0, 0, 0_u32, 0),
        (1, 1, CODE as usize, code_bytes as usize, 0, 0),
        (7, 2, SYMBOLS, symbols.len(), 3, 24),
        (15, 3, strings_at, strings.len(), 0, 0),
        (23, 3, section_names_at, section_names.len(), 0, 0),
    ] {
        elf.extend([name.to_le_bytes(), kind.to_le_bytes()].concat());
        let place: Vec<u8> = words(&[0, CODE * u64::from(kind == 1), at as u64, bytes as u64]);
        elf.extend(place);
        elf.extend([link.to_le_bytes(), 1_u32.to_le_bytes()].concat());
        let sizes: Vec<u8> = words(&[1, entry]);
        elf.extend(sizes);
    }
    elf
}

fn file_of(bytes: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// The names of the first `functions`, as a session asks for them: by a descriptor that cannot be read.
fn look_up(file: &NamedTempFile, functions: u64) -> Result<Found, NoNames> {
    let place: File = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::PATH.bits() as i32)
        .open(file.path())
        .unwrap();
    let offsets: Vec<u64> = (0..functions)
        .map(|place| CODE + place * FUNCTION_BYTES + 1)
        .collect();
    let share = Share {
        time: Duration::from_secs(120),
        bytes: 1 << 20,
    };
    let mut reader = Reader::of(env!("CARGO_BIN_EXE_plimsoll-trace"), [child::ARGUMENT]);
    reader.look_up(&place, &offsets, share, &mut Names::default())
}

fn names(found: &Found) -> Vec<Option<&str>> {
    found.names.iter().map(Option::as_deref).collect()
}

#[test]
fn functions_of_c_cpp_and_rust_have_the_names_that_their_source_has() {
    let file = file_of(&elf(&[
        "main",
        "_ZN5space3fooEibc",
        "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
    ]));
    let found = look_up(&file, 4).unwrap();
    let expected = [
        Some("main"),
        Some("space::foo(int, bool, char)"),
        Some("core::fmt::Write::write_fmt"),
        None,
    ];
    assert_eq!(names(&found), expected);
    assert!(!found.is_cut);
    // More than one message of the socket, and than are looked up at one time.
    let many: Vec<String> = (0..400)
        .map(|number| format!("function_{number}"))
        .collect();
    let file = file_of(&elf(&many.iter().map(String::as_str).collect::<Vec<_>>()));
    let found = look_up(&file, 400).unwrap();
    assert!(names(&found).into_iter().flatten().eq(&many));
}

#[test]
fn a_symbol_that_stands_for_megabytes_or_has_megabytes_costs_only_its_own_end() {
    let mut bomb = "_Z1f1A1BIS_S_E".to_owned();
    for number in "123456789ABCDEFG".chars() {
        bomb += &format!("S0_IS{number}_S{number}_E");
    }
    let long = "long_".repeat(1 << 20);
    let file = file_of(&elf(&[&bomb, "main", &long]));
    let start = Instant::now();
    let found = look_up(&file, 3).unwrap();
    let took = start.elapsed();
    let [Some(bomb), Some("main"), Some(long)] = names(&found)[..] else {
        panic!("{found:?}");
    };
    assert!(bomb.starts_with("f(A, B<A, A>, ") && long.starts_with("long_long_"));
    for name in [bomb, long] {
        assert!(
            name.len() <= NAME_BYTES_MAX && name.ends_with('…'),
            "{name}"
        );
    }
    assert!(took < Duration::from_secs(60), "{took:?}");
}

/// Unless a child reads it, this ends the test by SIGBUS.
#[test]
fn a_file_that_is_cut_while_it_is_mapped_has_no_names() {
    let bytes = elf(&["main"]);
    let file = file_of(&bytes);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                file.as_file().set_len(SYMBOLS as u64 / 2).unwrap();
                std::thread::sleep(Duration::from_micros(100));
                // In one piece: a reader sees all of it, or a part of it gone.
                std::os::unix::fs::FileExt::write_all_at(file.as_file(), &bytes, 0).unwrap();
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let start = Instant::now();
        let mut seen = Vec::new();
        while !seen.contains(&NoNames::Changed) && start.elapsed() < Duration::from_secs(300) {
            seen.extend(look_up(&file, 1).err());
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(seen.contains(&NoNames::Changed), "{seen:?}");
    });
}

/// An ELF file of one segment, which would end beyond the largest offset: what `cargo xtask fuzz-parsers symbols` found
/// in blazesym 0.2.7.
#[test]
fn a_file_that_makes_the_reader_panic_has_no_names() {
    let mut elf = elf(&["main"]);
    elf[64 + 8..64 + 16].copy_from_slice(&u64::MAX.to_le_bytes());
    elf[64 + 32..64 + 40].copy_from_slice(&2_u64.to_le_bytes());
    match look_up(&file_of(&elf), 2) {
        // With checks of its numbers.
        Err(why) => assert_eq!(why, NoNames::Panicked),
        Ok(found) => assert_eq!(names(&found), [None, None]),
    }
}

#[test]
fn what_is_no_program_and_what_is_too_large_is_said() {
    let script = file_of(b"#!/bin/sh\n");
    assert_eq!(look_up(&script, 1), Err(NoNames::Unreadable));
    assert_eq!(look_up(&file_of(b""), 1), Err(NoNames::Unreadable));
    let large = file_of(&elf(&["main"]));
    large.as_file().set_len(513 << 20).unwrap();
    assert_eq!(look_up(&large, 1), Err(NoNames::TooLarge));
}

/// Symbols of a sparse file, which takes no disk: more than a child has memory for.
#[test]
fn a_file_of_more_symbols_than_there_is_memory_for_has_no_names() {
    let mut elf = elf(&["main"]);
    let (symbols_at, bytes) = (elf.len() as u64, 24 * (20 << 20));
    let sections_at = u64::from_le_bytes(elf[40..48].try_into().unwrap()) as usize;
    let of_symbols = sections_at + 2 * 64;
    elf[of_symbols + 24..of_symbols + 32].copy_from_slice(&symbols_at.to_le_bytes());
    elf[of_symbols + 32..of_symbols + 40].copy_from_slice(&u64::to_le_bytes(bytes));
    let file = file_of(&elf);
    file.as_file().set_len(symbols_at + bytes).unwrap();
    assert_eq!(look_up(&file, 1), Err(NoNames::Memory));
}
