//! Addresses of the kernel's symbols, asked of the kernel by a program.
//!
//! Problem: `/proc/kallsyms` is a list of 150,000 lines that the kernel makes for whoever reads it, and four are
//! wanted: a sixth of an agent's start. Approach: a program of type `BPF_PROG_TYPE_SYSCALL` (Linux 5.14) runs once and
//! calls `bpf_kallsyms_lookup_name` (Linux 5.16), which searches. It is made here instruction by instruction: it has no
//! source, no map and no relocation, and is gone before its answer is used. The kernel asks for the right to see
//! addresses as it does for the list.

#![expect(
    unsafe_code,
    reason = "bpf(2), which aya has for its own types of programs only"
)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use rustix::io::Errno;

/// Numbers of `include/uapi/linux/bpf.h`.
mod uapi {
    pub(super) const PROG_LOAD: u32 = 5;
    pub(super) const PROG_RUN: u32 = 10;
    pub(super) const PROG_TYPE_SYSCALL: u32 = 31;
    pub(super) const F_SLEEPABLE: u32 = 1 << 4;
    pub(super) const FUNC_KALLSYMS_LOOKUP_NAME: i32 = 179;
}

/// Bytes of the stack for a name with its end: all of it less what the address takes.
const NAME_BYTES_MAX: usize = 512 - 8;
/// Where the address is put, below the top of the stack.
const ADDRESS: i16 = -8;

/// What the kernel says to one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Answer {
    address: u64,
    /// 0, or an error's number below zero.
    result: i64,
}

/// `union bpf_attr` as `BPF_PROG_LOAD` reads it, as far as that.
#[derive(Debug, Default)]
#[repr(C)]
struct Load {
    program_type: u32,
    instructions_len: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

/// `union bpf_attr` as `BPF_PROG_RUN` reads it.
#[derive(Debug, Default)]
#[repr(C)]
struct Run {
    program: u32,
    result: u32,
    data_in_len: u32,
    data_out_len: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_in_len: u32,
    context_out_len: u32,
    context_in: u64,
    context_out: u64,
}

/// The address of each symbol; ENOENT for one that the kernel does not list, EPERM where it shows us none.
///
/// # Errors
/// The kernel has no such programs, or refuses this one, or does not know what it asks for.
pub(super) fn addresses<const N: usize>(names: &[&CStr; N]) -> io::Result<[Result<u64, Errno>; N]> {
    let mut answers = [Answer::default(); N];
    run(&instructions(names)?, &mut answers)?;
    let mut addresses = [Err(Errno::NOENT); N];
    for (address, answer) in addresses.iter_mut().zip(answers) {
        *address = match -answer.result {
            0 => Ok(answer.address),
            result if result == i64::from(Errno::NOENT.raw_os_error()) => Err(Errno::NOENT),
            result if result == i64::from(Errno::PERM.raw_os_error()) => Err(Errno::PERM),
            result => {
                return Err(io::Error::other(format!(
                    "bpf_kallsyms_lookup_name: {result}"
                )));
            }
        };
    }
    Ok(addresses)
}

/// `struct bpf_insn`.
const fn instruction(code: u8, target: u8, source: u8, offset: i16, immediate: i32) -> u64 {
    let registers = target | source << 4;
    let ([o0, o1], [i0, i1, i2, i3]) = (offset.to_ne_bytes(), immediate.to_ne_bytes());
    u64::from_ne_bytes([code, registers, o0, o1, i0, i1, i2, i3])
}

/// For each name: it is put on the stack, looked up, and what is said goes to the context, which is ours.
fn instructions(names: &[&CStr]) -> io::Result<Vec<u64>> {
    const CONTEXT: u8 = 6;
    const FRAME: u8 = 10;
    let copy = |target, source| instruction(0xbf, target, source, 0, 0);
    let set = |target, value| instruction(0xb7, target, 0, 0, value);
    let add = |target, value: i16| instruction(0x07, target, 0, 0, i32::from(value));
    let store = |target, offset, source| instruction(0x7b, target, source, offset, 0);
    let too_long = || io::Error::from(io::ErrorKind::InvalidInput);

    let mut code = vec![copy(CONTEXT, 1)];
    for (index, name) in names.iter().enumerate() {
        let name = name.to_bytes_with_nul();
        let words = name.chunks(8);
        let below = i16::try_from(words.len() * 8).map_err(|_| too_long())?;
        if name.len() > NAME_BYTES_MAX {
            return Err(too_long());
        }
        let start = ADDRESS - below;
        for (offset, chunk) in (start..).step_by(8).zip(words) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let half = |at: usize| {
                i32::from_ne_bytes([word[at], word[at + 1], word[at + 2], word[at + 3]])
            };
            // A constant of 64 bits takes two.
            code.push(instruction(0x18, 2, 0, 0, half(0)));
            code.push(instruction(0, 0, 0, 0, half(4)));
            code.push(store(FRAME, offset, 2));
        }
        // Kernels before 6.12 want something there already.
        code.push(instruction(0x7a, FRAME, 0, ADDRESS, 0));
        let len = i32::try_from(name.len()).map_err(|_| too_long())?;
        code.extend([copy(1, FRAME), add(1, start), set(2, len), set(3, 0)]);
        code.extend([copy(4, FRAME), add(4, ADDRESS)]);
        code.push(instruction(0x85, 0, 0, 0, uapi::FUNC_KALLSYMS_LOOKUP_NAME));
        let answer = i16::try_from(index * size_of::<Answer>()).map_err(|_| too_long())?;
        code.push(instruction(0x79, 1, FRAME, ADDRESS, 0));
        code.extend([store(CONTEXT, answer, 1), store(CONTEXT, answer + 8, 0)]);
    }
    code.extend([set(0, 0), instruction(0x95, 0, 0, 0, 0)]);
    Ok(code)
}

/// Loads a program, runs it once with `context`, and lets it go.
fn run(instructions: &[u64], context: &mut [Answer]) -> io::Result<()> {
    let mut attributes = Load {
        program_type: uapi::PROG_TYPE_SYSCALL,
        instructions_len: u32::try_from(instructions.len()).map_err(io::Error::other)?,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        flags: uapi::F_SLEEPABLE,
        ..Load::default()
    };
    // SAFETY: the kernel reads the instructions in their number and the text to its end; both outlive the call.
    let fd = unsafe { bpf(uapi::PROG_LOAD, &mut attributes) }?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else has it.
    let program = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut attributes = Run {
        program: program.as_raw_fd().cast_unsigned(),
        context_in_len: u32::try_from(size_of_val(context)).map_err(io::Error::other)?,
        context_in: context.as_mut_ptr() as u64,
        ..Run::default()
    };
    // SAFETY: the kernel reads `context` in its length, and writes it back when the program has run. It is ours alone
    // meanwhile, and every value of its fields is a value.
    unsafe { bpf(uapi::PROG_RUN, &mut attributes) }.map(drop)
}

/// `bpf(2)`. The result of a command that makes a descriptor is that.
///
/// # Safety
/// `attributes` is laid out as the command has it, and what it points to is there as the command uses it.
unsafe fn bpf<T>(command: u32, attributes: &mut T) -> io::Result<i32> {
    let bytes = size_of::<T>();
    // SAFETY: the kernel reads and writes `attributes` within its length; what it points to, the caller vouches for.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, bytes) };
    match i32::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        // libc::syscall leaves the error number in this thread's errno.
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes;

    #[test]
    fn a_name_goes_to_the_stack_whole_with_its_end() {
        // Eight bytes with the end of the text, and nine.
        for (name, words) in [(c"seven_b", 1), (c"eight_by", 2)] {
            let code = instructions(&[name]).unwrap();
            let loads = code.iter().filter(|it| it.to_ne_bytes()[0] == 0x18);
            assert_eq!(loads.count(), words, "{name:?}");
        }
        let long = std::ffi::CString::new("x".repeat(600)).unwrap();
        assert!(instructions(&[&long]).is_err());
    }

    #[test]
    fn the_kernel_gives_what_its_list_has() {
        let names = [
            c"nr_swap_pages",
            c"no_such_symbol_as_this",
            c"totalreserve_pages",
        ];
        let found = match addresses(&names) {
            Ok(found) => found,
            // Only root may, and only where the host lets such programs in.
            Err(error) => return notes::left_out(error),
        };
        let list = std::fs::read_to_string("/proc/kallsyms").unwrap();
        for (name, found) in names.iter().zip(found) {
            let ends = format!(" {}", name.to_str().unwrap());
            let line = list.lines().find(|line| line.ends_with(&ends));
            let listed = line.map(|line| u64::from_str_radix(&line[..16], 16).unwrap());
            match found {
                Ok(address) => assert_eq!(Some(address), listed, "{name:?}"),
                Err(error) => assert!(
                    matches!(
                        (error, listed),
                        (Errno::NOENT, None) | (Errno::PERM, Some(0) | None)
                    ),
                    "{name:?}: {error}, and listed is {listed:?}"
                ),
            }
        }
    }
}
