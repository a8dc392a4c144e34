//! Bytes from the ring of a tracing session → [`Sample`]. Pure: no I/O, no panic on any input.
//!
//! As in [`decode`](crate::kernel::decode), the bytes are not trusted: a sample says how long its stacks are, and is
//! read only as far as it goes.

use plimsoll_abi::sampling::{FRAME_BYTES, SAMPLING_VERSION, Sample as Head, SampleEvent};
use zerocopy::FromBytes;

/// Why bytes are not a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// Shorter than it says.
    #[error("a sample of {got} bytes is shorter than the {wanted} bytes that it should have")]
    Truncated {
        /// Bytes there.
        got: usize,
        /// Bytes needed.
        wanted: usize,
    },
    /// Written by programs of another version.
    #[error(
        "a sample of version {got}, but this plimsoll reads version {SAMPLING_VERSION}: build the agent and its BPF objects from the \
         same source"
    )]
    Version {
        /// The sample's version.
        got: u16,
    },
    /// An event that this version does not know.
    #[error("a sample of event {number}, which this plimsoll does not know")]
    UnknownEvent {
        /// Its number.
        number: u16,
    },
    /// A stack that is no whole number of addresses.
    #[error("a sample with a stack of {bytes} bytes, which is no whole number of addresses")]
    Torn {
        /// Its length.
        bytes: u16,
    },
}

/// A sample of a perf event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'bytes> {
    /// When, `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// What was sampled.
    pub event: SampleEvent,
    /// How much it stands for: nanoseconds of [`SampleEvent::CpuClock`], else occurrences.
    pub weight: u64,
    /// The task's memory cgroup.
    pub cgroup_id: u64,
    /// The selected cgroup that it is in or below; `None` where none is selected.
    pub wanted_id: Option<u64>,
    /// Process id in the initial namespace.
    pub tgid: u32,
    /// Thread id in the initial namespace.
    pub tid: u32,
    /// On which CPU.
    pub cpu: u32,
    /// The thread's command name, without padding.
    pub comm: &'bytes [u8],
    kernel: &'bytes [u8],
    user: &'bytes [u8],
}

impl Sample<'_> {
    /// Addresses in the kernel, innermost first.
    pub fn kernel_stack(&self) -> impl DoubleEndedIterator<Item = u64> {
        addresses(self.kernel)
    }

    /// Addresses in user space, innermost first.
    pub fn user_stack(&self) -> impl DoubleEndedIterator<Item = u64> {
        addresses(self.user)
    }
}

fn addresses(bytes: &[u8]) -> impl DoubleEndedIterator<Item = u64> {
    let (words, _) = bytes.as_chunks::<FRAME_BYTES>();
    words.iter().map(|word| u64::from_ne_bytes(*word))
}

/// Reads one sample. Bytes after it are ignored.
///
/// # Errors
/// See [`SampleError`].
pub fn decode(bytes: &[u8]) -> Result<Sample<'_>, SampleError> {
    let truncated = |wanted| SampleError::Truncated {
        got: bytes.len(),
        wanted,
    };
    let (head, stacks) = Head::read_from_prefix(bytes).map_err(|_| truncated(size_of::<Head>()))?;
    if head.version != SAMPLING_VERSION {
        return Err(SampleError::Version { got: head.version });
    }
    let event =
        SampleEvent::try_from(head.event).map_err(|number| SampleError::UnknownEvent { number })?;
    for length in [head.kernel_bytes, head.user_bytes] {
        if !usize::from(length).is_multiple_of(FRAME_BYTES) {
            return Err(SampleError::Torn { bytes: length });
        }
    }
    let (kernel_bytes, user_bytes) = (usize::from(head.kernel_bytes), usize::from(head.user_bytes));
    let wanted = || truncated(size_of::<Head>() + kernel_bytes + user_bytes);
    let (kernel, rest) = stacks.split_at_checked(kernel_bytes).ok_or_else(wanted)?;
    let (user, _) = rest.split_at_checked(user_bytes).ok_or_else(wanted)?;
    let comm_at = std::mem::offset_of!(Head, comm);
    let comm = &bytes[comm_at..comm_at + head.comm.len()];
    let comm = comm.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(Sample {
        ts_ns: head.ts_ns,
        event,
        weight: head.weight,
        cgroup_id: head.cgroup_id,
        wanted_id: (head.wanted_id != 0).then_some(head.wanted_id),
        tgid: head.tgid,
        tid: head.tid,
        cpu: head.cpu,
        comm,
        kernel,
        user,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    fn bytes(kernel: &[u64], user: &[u64]) -> Vec<u8> {
        let mut comm = [0; plimsoll_abi::COMM_BYTES];
        comm[..4].copy_from_slice(b"work");
        let head = Head {
            ts_ns: 1,
            cgroup_id: 2,
            wanted_id: 0,
            weight: 3,
            tgid: 4,
            tid: 5,
            cpu: 6,
            kernel_bytes: u16::try_from(size_of_val(kernel)).unwrap(),
            user_bytes: u16::try_from(size_of_val(user)).unwrap(),
            version: SAMPLING_VERSION,
            event: SampleEvent::PageFaults.number(),
            pad: 0,
            comm,
        };
        [head.as_bytes(), kernel.as_bytes(), user.as_bytes()].concat()
    }

    #[test]
    fn a_sample_is_read_with_both_stacks() {
        let bytes = bytes(&[10, 11], &[20, 21, 22]);
        let sample = decode(&bytes).unwrap();
        assert_eq!(sample.kernel_stack().collect::<Vec<_>>(), [10, 11]);
        assert_eq!(sample.user_stack().collect::<Vec<_>>(), [20, 21, 22]);
        assert_eq!((sample.event, sample.weight), (SampleEvent::PageFaults, 3));
        assert_eq!((sample.comm, sample.wanted_id), (&b"work"[..], None));
        assert_eq!((sample.tgid, sample.tid, sample.cpu), (4, 5, 6));
    }

    #[test]
    fn every_cut_is_an_error_and_no_panic() {
        let whole = bytes(&[10, 11], &[20]);
        for length in 0..whole.len() {
            let error = decode(&whole[..length]).unwrap_err();
            assert!(matches!(error, SampleError::Truncated { got, .. } if got == length));
        }
    }

    #[test]
    fn what_is_not_known_is_said() {
        let mut other = bytes(&[], &[]);
        let at = std::mem::offset_of!(Head, version);
        other[at] = 77;
        assert_eq!(decode(&other), Err(SampleError::Version { got: 77 }));
        let mut other = bytes(&[], &[]);
        other[std::mem::offset_of!(Head, event)] = 9;
        assert_eq!(decode(&other), Err(SampleError::UnknownEvent { number: 9 }));
        let mut other = bytes(&[], &[]);
        other[std::mem::offset_of!(Head, user_bytes)] = 3;
        assert_eq!(decode(&other), Err(SampleError::Torn { bytes: 3 }));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_sample_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(sample) = decode(&bytes) {
                prop_assert!(sample.user_stack().count() <= bytes.len() / 8);
            }
        }
    }
}
