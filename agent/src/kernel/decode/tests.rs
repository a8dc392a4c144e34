use plimsoll_abi::KINDS;
use zerocopy::IntoBytes;

use super::*;

fn header(kind: Kind) -> Header {
    Header {
        ts_ns: 7,
        cgroup_id: 42,
        kind: kind.number(),
        abi_version: ABI_VERSION,
        cpu: 3,
    }
}

/// One record of each kind.
fn samples() -> Vec<Vec<u8>> {
    let mut path = [0xffu8; PATH_BYTES];
    path[..5].copy_from_slice(b"/a/b\0");
    let mut comm = [0u8; 16];
    comm[..3].copy_from_slice(b"hog");
    vec![
        abi::CgroupMkdir {
            header: header(Kind::CgroupMkdir),
            level: 2,
            hierarchy_id: 0,
            path_len: 4,
            pad: 0,
            path,
        }
        .as_bytes()
        .to_vec(),
        abi::CgroupRmdir {
            header: header(Kind::CgroupRmdir),
            level: 2,
            hierarchy_id: 5,
        }
        .as_bytes()
        .to_vec(),
        abi::CgroupAttach {
            header: header(Kind::CgroupAttach),
            tgid: 77,
            hierarchy_id: 0,
        }
        .as_bytes()
        .to_vec(),
        abi::CgroupPopulated {
            header: header(Kind::CgroupPopulated),
            populated: 1,
            hierarchy_id: 0,
        }
        .as_bytes()
        .to_vec(),
        abi::OomKill {
            header: header(Kind::OomKill),
            limit_cgroup_id: 41,
            points: 1234,
            total_pages: 10,
            anon_pages: 9,
            tgid: 78,
            oom_score_adj: -997,
            comm,
        }
        .as_bytes()
        .to_vec(),
        abi::MemoryEvent {
            header: header(Kind::MemoryEvent),
            count: 4,
            pages: UNKNOWN_U64,
            event: memory_event::MAX,
            pad: 0,
        }
        .as_bytes()
        .to_vec(),
        abi::Throttle {
            header: header(Kind::Throttle),
            count: 5,
            sum_ns: 50,
            max_ns: 20,
            phase: throttle_phase::STOP,
            pad: 0,
        }
        .as_bytes()
        .to_vec(),
        abi::NodeReclaim {
            header: header(Kind::NodeReclaim),
            count: 6,
            phase: reclaim_phase::DIRECT_RECLAIM,
            node: UNKNOWN_U32,
            order: 0,
            pad: 0,
        }
        .as_bytes()
        .to_vec(),
        abi::ChargesReached {
            header: header(Kind::ChargesReached),
            charged_pages: 1000,
            generation: 12,
            node: abi::NodePages {
                free: 1,
                available: 2,
                anon: 3,
                file: 4,
                inactive_file: 5,
                active_file: 6,
                shmem: 7,
            },
        }
        .as_bytes()
        .to_vec(),
        abi::last_line::LastLineKill {
            header: header(Kind::LastLineKill),
            available_pages: UNKNOWN_U64,
            wanted_pages: 500,
            crossed_ns: 0,
            acked_ns: 5,
            kills: 2,
            uid: [u64::from_ne_bytes(*b"default_"), 0, 0, 0, 0],
            tgid: 77,
            reason: reason::EXHAUSTED,
            place: 1,
            pad: 0,
            comm,
        }
        .as_bytes()
        .to_vec(),
        abi::MemoryStall {
            header: header(Kind::MemoryStall),
            actor_cgroup_id: 43,
            count: 3,
            sum_ns: 60,
            max_ns: 30,
            pages: 32,
            cause: stall_cause::LIMIT,
            pad: 0,
        }
        .as_bytes()
        .to_vec(),
        abi::Refault {
            header: header(Kind::Refault),
            count: 2,
            pages: 16,
            what: refault::SWAP_IN,
            pad: 0,
        }
        .as_bytes()
        .to_vec(),
        abi::ProcessBirth {
            header: header(Kind::ProcessBirth),
            parent_cgroup_id: 1,
            tgid: 80,
            parent_tgid: 79,
        }
        .as_bytes()
        .to_vec(),
    ]
}

#[test]
fn every_kind_is_read_field_by_field() {
    let wanted = [
        Body::CgroupMkdir {
            level: 2,
            hierarchy_id: 0,
            path: b"/a/b",
            is_cut: false,
        },
        Body::CgroupRmdir {
            level: 2,
            hierarchy_id: 5,
        },
        Body::CgroupAttach {
            tgid: 77,
            hierarchy_id: 0,
        },
        Body::CgroupPopulated {
            is_populated: true,
            hierarchy_id: 0,
        },
        Body::OomKill {
            limit: OomLimit::Cgroup(41),
            tgid: 78,
            oom_score_adj: -997,
            points: Some(1234),
            total_pages: 10,
            anon_pages: 9,
            comm: b"hog",
        },
        Body::MemoryEvent {
            event: MemoryLimitEvent::Max,
            count: 4,
            pages: None,
        },
        Body::Throttle {
            phase: ThrottlePhase::Stop,
            count: 5,
            sum_ns: 50,
            max_ns: 20,
        },
        Body::NodeReclaim {
            phase: ReclaimPhase::DirectReclaim,
            count: 6,
            node: None,
            order: 0,
        },
        Body::ChargesReached {
            charged_bytes: bytes_of_pages(1000),
            generation: Generation(12),
            node: Some(NodeCounters {
                free_bytes: bytes_of_pages(1),
                available_bytes: bytes_of_pages(2),
                anon_bytes: bytes_of_pages(3),
                file_bytes: bytes_of_pages(4),
                inactive_file_bytes: bytes_of_pages(5),
                active_file_bytes: bytes_of_pages(6),
                shmem_bytes: bytes_of_pages(7),
            }),
        },
        Body::LastLineKill {
            why: LastLineReason::Exhausted,
            tgid: 77,
            comm: b"hog",
            uid: b"default_\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            place: 1,
            kills: 2,
            available_pages: None,
            wanted_pages: 500,
            crossed_ns: None,
            acked_ns: 5,
        },
        Body::MemoryStall {
            cause: StallCause::Limit,
            actor_cgroup_id: 43,
            count: 3,
            sum_ns: 60,
            max_ns: 30,
            pages: Some(32),
        },
        Body::Refault {
            what: RefaultKind::SwapIn,
            count: 2,
            pages: 16,
        },
        Body::ProcessBirth {
            tgid: 80,
            parent_tgid: 79,
            parent_cgroup_id: 1,
        },
    ];
    assert_eq!(samples().len(), KINDS.len());
    assert_eq!(wanted.len(), KINDS.len());
    for ((kind, bytes), body) in KINDS.into_iter().zip(samples()).zip(wanted) {
        let (of, record) = decode(&bytes).expect("a whole record");
        assert_eq!(
            record,
            Record {
                ts_ns: 7,
                cgroup_id: 42,
                cpu: 3,
                body
            }
        );
        assert_eq!((of, record.body.kind()), (kind, kind));
        // Nothing about alignment is assumed.
        let mut shifted = vec![0u8];
        shifted.extend_from_slice(&bytes);
        assert_eq!(decode(&shifted[1..]), Ok((kind, record)));
    }
}

#[test]
fn a_cut_record_is_an_error_at_every_length() {
    for bytes in samples() {
        for length in 0..bytes.len() {
            assert!(
                matches!(
                    decode(&bytes[..length]),
                    Err(DecodeError::Truncated { got, wanted }) if got == length && wanted > length
                ),
                "{length} bytes of {}",
                bytes.len()
            );
        }
    }
}

#[test]
fn other_versions_and_kinds_are_distinguished() {
    let mut bytes = samples().remove(0);
    bytes[offset_of!(Header, kind)..][..2].copy_from_slice(&999u16.to_le_bytes());
    assert_eq!(
        decode(&bytes),
        Err(DecodeError::UnknownKind { number: 999 })
    );
    bytes[offset_of!(Header, abi_version)..][..2].copy_from_slice(&1u16.to_le_bytes());
    assert_eq!(decode(&bytes), Err(DecodeError::AbiMismatch { got: 1 }));
}

#[test]
fn a_number_outside_its_enumeration_names_the_field() {
    let mut bytes = samples().remove(5);
    bytes[offset_of!(abi::MemoryEvent, event)..][..4].copy_from_slice(&8u32.to_le_bytes());
    let error = decode(&bytes).expect_err("event 8");
    assert_eq!(
        error.to_string(),
        "a memory-event record with event = 8, which this plimsoll does not know"
    );
}

#[test]
fn an_absurd_path_length_stays_inside_the_record() {
    let mut bytes = samples().remove(0);
    bytes[offset_of!(abi::CgroupMkdir, path_len)..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let Ok((
        _,
        Record {
            body: Body::CgroupMkdir { path, is_cut, .. },
            ..
        },
    )) = decode(&bytes)
    else {
        panic!("not a mkdir record");
    };
    assert_eq!(path.len(), PATH_BYTES);
    assert!(is_cut);
}

#[test]
fn any_bytes_decode_or_are_refused() {
    // A small deterministic generator is enough: what is tested is that no input panics.
    let mut state = 0x1234_5678_9abc_def0u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let samples = samples();
    let mut decoded = 0;
    // Miri takes a millisecond for each.
    let rounds = if cfg!(miri) { 300 } else { 50_000 };
    for _ in 0..rounds {
        let mut bytes = samples[(next() as usize) % samples.len()].clone();
        for _ in 0..next() % 8 {
            let at = (next() as usize) % bytes.len();
            bytes[at] = next() as u8;
        }
        bytes.truncate((next() as usize) % (bytes.len() + 64));
        decoded += usize::from(decode(&bytes).is_ok());
    }
    assert!(decoded > 0);
}
