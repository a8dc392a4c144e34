use aya_obj::btf::BtfKind;

use super::*;

/// Writes BTF the way the kernel's build does.
#[derive(Default)]
struct Writer {
    types: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

impl Writer {
    fn new() -> Self {
        Writer {
            strings: vec![0],
            ..Writer::default()
        }
    }

    fn name(&mut self, name: &str) -> u32 {
        if name.is_empty() {
            return 0;
        }
        let offset = self.strings.len() as u32;
        self.strings.extend_from_slice(name.as_bytes());
        self.strings.push(0);
        offset
    }

    /// A record and its tail; returns its type id.
    fn add(
        &mut self,
        kind: u8,
        has_bitfields: bool,
        name: &str,
        third: u32,
        length: usize,
        tail: &[u32],
    ) -> u32 {
        let info = u32::from(has_bitfields) << 31 | u32::from(kind) << 24 | length as u32;
        let name = self.name(name);
        for word in [name, info, third].iter().chain(tail) {
            self.types.extend_from_slice(&word.to_ne_bytes());
        }
        self.count += 1;
        self.count
    }

    fn structure(&mut self, kind: u8, name: &str, bytes: u32, members: &[(&str, u32, u32)]) -> u32 {
        let tail: Vec<u32> = members
            .iter()
            .flat_map(|(name, type_id, bits)| [self.name(name), *type_id, *bits])
            .collect();
        self.add(kind, false, name, bytes, members.len(), &tail)
    }

    fn finish(self) -> Vec<u8> {
        let mut data = 0xeb9fu16.to_ne_bytes().to_vec();
        data.extend_from_slice(&[1, 0]);
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        for word in [24, 0, types, types, strings] {
            data.extend_from_slice(&word.to_ne_bytes());
        }
        data.extend_from_slice(&self.types);
        data.extend_from_slice(&self.strings);
        data
    }
}

/// A small kernel: typedefs, an anonymous union, arrays, a bitfield, an enum, a function, a tracepoint.
fn kernel() -> Vec<u8> {
    let mut writer = Writer::new();
    let long = writer.add(kind::INT, false, "long", 8, 0, &[64]);
    let index = writer.add(kind::INT, false, "int", 4, 0, &[32]);
    let counter = writer.structure(kind::STRUCT, "", 8, &[("counter", long, 0)]);
    let atomic = writer.add(kind::TYPEDEF, false, "atomic_long_t", counter, 0, &[]);
    let constant = writer.add(kind::CONST, false, "", atomic, 0, &[]);
    let array = writer.add(kind::ARRAY, false, "", 0, 0, &[constant, index, 4]);
    let anonymous = writer.structure(
        kind::UNION,
        "",
        40,
        &[("parent", long, 0), ("stat", array, 64)],
    );
    let page_counter = writer.structure(
        kind::STRUCT,
        "page_counter",
        64,
        &[("usage", atomic, 0), ("", anonymous, 128)],
    );
    writer.structure(
        kind::STRUCT,
        "mem_cgroup",
        128,
        &[("id", index, 0), ("memory", page_counter, 64)],
    );
    let name = writer.name("throttled");
    writer.add(
        kind::STRUCT,
        true,
        "cfs_rq",
        8,
        1,
        &[name, index, 1 << 24 | 3],
    );
    let (first, second) = (writer.name("memory_cgrp_id"), writer.name("pids_cgrp_id"));
    writer.add(
        kind::ENUM,
        false,
        "cgroup_subsys_id",
        4,
        2,
        &[first, 4, second, 8],
    );
    let (data, order) = (writer.name("__data"), writer.name("order"));
    let prototype = writer.add(
        kind::FUNC_PROTO,
        false,
        "",
        0,
        2,
        &[data, long, order, index],
    );
    writer.add(kind::FUNC, false, "__traceiter_x", prototype, 1, &[]);
    writer.add(kind::TYPEDEF, false, "btf_trace_x", long, 0, &[]);
    // A typedef of itself, and a struct that holds itself without a name: no real compiler writes them.
    let id = writer.count + 1;
    writer.add(kind::TYPEDEF, false, "loop_t", id, 0, &[]);
    let id = writer.count + 1;
    writer.structure(kind::STRUCT, "loop", 8, &[("", id, 0), ("t", id - 1, 0)]);
    writer.finish()
}

fn questions(btf: &Btf<'_>) -> Vec<Option<u32>> {
    let paths = [
        "page_counter.usage",
        "page_counter.parent",
        "page_counter.stat[3].counter",
        "mem_cgroup.memory",
        "mem_cgroup.memory.stat[1]",
        "mem_cgroup.absent",
        "page_counter.stat[4]",
        "page_counter.usage[0]",
        "page_counter.stat[x]",
        "cfs_rq.throttled",
        "loop.absent",
        "loop.t.x",
        "absent.x",
        "",
    ];
    paths
        .iter()
        .map(|path| btf.offset(path))
        .chain([
            btf.enumerator("memory_cgrp_id"),
            btf.enumerator("absent"),
            btf.parameter("__traceiter_x", "order"),
            btf.parameter("__traceiter_x", "absent"),
            btf.parameter("absent", "order"),
            Some(u32::from(btf.has_function("__traceiter_x"))),
            Some(u32::from(btf.has_tracepoint("x"))),
            Some(u32::from(btf.has_tracepoint("y"))),
            btf.bit("cfs_rq", "throttled"),
            btf.bit("mem_cgroup", "id"),
            btf.bit("absent", "x"),
        ])
        .collect()
}

#[test]
fn members_are_found_through_anonymous_members_arrays_and_typedefs() {
    let data = kernel();
    let btf = Btf::parse(&data).expect("well-formed");
    assert_eq!(
        questions(&btf),
        [
            Some(0),
            Some(16),
            Some(48),
            Some(8),
            Some(40),
            None,
            None,
            None,
            None,
            // A bitfield has no byte offset.
            None,
            None,
            None,
            None,
            None,
            Some(4),
            None,
            Some(1),
            None,
            None,
            Some(1),
            Some(1),
            Some(0),
            Some(3),
            // No bitfield.
            None,
            None,
        ]
    );
}

#[test]
fn what_is_left_of_it_has_the_same_numbers() {
    let data = kernel();
    let btf = Btf::parse(&data).expect("well-formed");
    let function = "__traceiter_x";
    let tracepoint = tracepoint("x");
    let functions = btf.with_functions([function, "absent"].into_iter());
    let typedefs = btf.with_typedefs([tracepoint.as_str(), "absent"].into_iter());
    let typedefs = aya::Btf::parse(&typedefs, aya::Endianness::default()).expect("well-formed");
    for (few, number, kind, name) in [
        (functions, BtfKind::Func, kind::FUNC, function),
        (typedefs, BtfKind::Typedef, kind::TYPEDEF, &tracepoint),
    ] {
        let there = btf.id(kind, name);
        assert!(there.is_some_and(|id| id > 1));
        assert_eq!(few.id_by_type_name_kind(name, number).ok(), there);
        assert!(few.id_by_type_name_kind("absent", number).is_err());
        assert!(
            few.id_by_type_name_kind("mem_cgroup", BtfKind::Struct)
                .is_err()
        );
    }
}

#[test]
fn a_tag_is_of_a_name_and_not_of_what_follows() {
    let names = [
        "",
        "a",
        "page_co",
        "page_cou",
        "page_coun",
        "page_counter_try_charge",
    ];
    for (index, name) in names.into_iter().enumerate() {
        for after in [
            "\0",
            "\0\0other",
            "\0page_counter_try_charge\0",
            "\0\u{1}\0",
        ] {
            let bytes = format!("{name}{after}");
            assert_eq!(tag(bytes.as_bytes()), tag(name.as_bytes()), "{bytes:?}");
        }
        let others = &names[..index];
        assert!(
            others
                .iter()
                .all(|other| tag(other.as_bytes()) != tag(name.as_bytes()))
        );
    }
}

#[test]
fn of_names_that_share_a_tag_the_right_one_is_found_and_of_equal_names_the_first() {
    let mut writer = Writer::new();
    let index = writer.add(kind::INT, false, "int", 4, 0, &[32]);
    for (name, bits) in [("one", 8), ("two", 16), ("two", 32)] {
        writer.structure(kind::STRUCT, name, 8, &[("member", index, bits)]);
    }
    let data = writer.finish();
    let mut btf = Btf::parse(&data).expect("well-formed");
    assert_eq!(btf.offset("two.member"), Some(2));
    // As if all names had the tag of "two".
    let entries = btf.names.0.iter();
    let same = entries.map(|entry| Index::entry(tag(b"two"), *entry as u32));
    btf.names = Index::new(same.collect());
    assert_eq!(btf.offset("two.member"), Some(2));
}

#[test]
fn what_is_wrong_is_said() {
    let data = kernel();
    assert_eq!(Btf::parse(b"").err(), Some(BtfError::Magic));
    assert_eq!(Btf::parse(b"\x7fELF and more").err(), Some(BtfError::Magic));
    assert!(matches!(
        Btf::parse(&data[..10]).err(),
        Some(BtfError::Truncated { part: "header", .. })
    ));
    assert!(matches!(
        Btf::parse(&data[..data.len() - 1]).err(),
        Some(BtfError::Truncated {
            part: "string section",
            ..
        })
    ));
    let mut unknown = data.clone();
    // The kind of the first record: the top byte of its second word.
    let top = if cfg!(target_endian = "little") { 7 } else { 4 };
    unknown[24 + top] = 31;
    assert_eq!(
        Btf::parse(&unknown).err(),
        Some(BtfError::Kind { id: 1, kind: 31 })
    );
}

#[test]
fn a_cut_or_damaged_file_is_an_answer_or_an_error_but_no_panic() {
    let data = kernel();
    for length in 0..data.len() {
        if let Ok(btf) = Btf::parse(&data[..length]) {
            questions(&btf);
        }
    }
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    let mut parsed = 0;
    for _ in 0..20_000 {
        let mut damaged = data.clone();
        for _ in 0..1 + next() % 6 {
            let at = next() % damaged.len();
            damaged[at] = match next() % 3 {
                0 => 0xff,
                1 => 0,
                _ => next() as u8,
            };
        }
        if let Ok(btf) = Btf::parse(&damaged) {
            parsed += 1;
            questions(&btf);
        }
    }
    assert!(parsed > 100, "only {parsed} damaged files were parsed");
}

/// As PREEMPT_RT, other kernels, and PREEMPT_RT from 6.12 on have it.
#[test]
fn only_a_ring_whose_lock_is_a_mutex_is_refused() {
    use crate::kernel::BpfError;
    use crate::kernel::loader::check_ring_lock;
    let kernel = |lock: fn(&mut Writer, u32) -> u32| {
        let mut writer = Writer::new();
        let int = writer.add(kind::INT, false, "int", 4, 0, &[32]);
        let lock = lock(&mut writer, int);
        let lock = writer.add(kind::TYPEDEF, false, "lock_t", lock, 0, &[]);
        writer.structure(
            kind::STRUCT,
            "bpf_ringbuf",
            8,
            &[("x", int, 0), ("spinlock", lock, 32)],
        );
        writer.finish()
    };
    let mutex = kernel(|writer, int| {
        let base = writer.structure(kind::STRUCT, "rt_mutex_base", 4, &[("owner", int, 0)]);
        writer.structure(kind::STRUCT, "spinlock", 4, &[("lock", base, 0)])
    });
    let spinning = kernel(|writer, int| {
        let raw = writer.structure(kind::STRUCT, "raw_spinlock", 4, &[("raw_lock", int, 0)]);
        let either = writer.structure(kind::UNION, "", 4, &[("rlock", raw, 0)]);
        writer.structure(kind::STRUCT, "spinlock", 4, &[("", either, 0)])
    });
    let raw = kernel(|writer, int| {
        writer.structure(kind::STRUCT, "raw_spinlock", 4, &[("raw_lock", int, 0)])
    });
    let checked = |bytes: &[u8]| check_ring_lock(&Btf::parse(bytes).unwrap());
    assert!(matches!(checked(&mutex), Err(BpfError::SleepingRing)));
    assert!(checked(&spinning).is_ok() && checked(&raw).is_ok());
}
