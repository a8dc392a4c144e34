//! Where the running kernel counts its pages, for the last line: the addresses of global counters.
//!
//! The kernel looks up the addresses of the arrays ([`symbols`]), BTF has the index of each counter. Where it does not,
//! `/proc/kallsyms` lists them, slowly. The kernel shows addresses to who has CAP_SYSLOG, unless `kernel.kptr_restrict`
//! is 2; variables are there only in kernels with CONFIG_KALLSYMS_ALL, which distributions set.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

use plimsoll_abi::last_line::Counters;

use rustix::io::Errno;

use super::btf::Btf;
use super::symbols;

const KALLSYMS: &str = "/proc/kallsyms";

/// Why the counters cannot be found.
#[derive(Debug, thiserror::Error)]
pub(super) enum CountersError {
    /// The list cannot be read.
    #[error("{KALLSYMS}: {0}")]
    Read(#[from] io::Error),
    /// The addresses are zeros.
    #[error("{KALLSYMS} hides addresses: CAP_SYSLOG is needed, and kernel.kptr_restrict below 2")]
    Hidden,
    /// A variable is not listed.
    #[error("{KALLSYMS} does not list {}: this kernel was built without CONFIG_KALLSYMS_ALL", symbol.to_string_lossy())]
    NoSymbol {
        /// Which one.
        symbol: &'static CStr,
    },
    /// A counter has no number.
    #[error("this kernel's BTF has no {enumerator}")]
    NoEnumerator {
        /// Which one.
        enumerator: &'static str,
    },
}

/// Symbols that are looked for. The last is absent from a kernel without swap.
const SYMBOLS: [&CStr; 4] = [
    c"vm_zone_stat",
    c"vm_node_stat",
    c"totalreserve_pages",
    c"nr_swap_pages",
];

/// Finds them.
pub(super) fn find(btf: &Btf<'_>) -> Result<Counters, CountersError> {
    let found = match symbols::addresses(&SYMBOLS) {
        Ok(answers) => looked_up(answers)?,
        // A kernel before 5.16, or one that refuses such a program: the same addresses, some tens of milliseconds
        // later.
        Err(_) => addresses(BufReader::with_capacity(1 << 16, File::open(KALLSYMS)?))?,
    };
    counters(found, |name| btf.enumerator(name))
}

type Found = [Option<u64>; SYMBOLS.len()];

fn looked_up(answers: [Result<u64, Errno>; SYMBOLS.len()]) -> Result<Found, CountersError> {
    if answers.contains(&Err(Errno::PERM)) {
        return Err(CountersError::Hidden);
    }
    Ok(answers.map(Result::ok))
}

fn addresses(mut text: impl BufRead) -> Result<Found, CountersError> {
    let mut found = [None; SYMBOLS.len()];
    let mut line = String::new();
    while found.contains(&None) {
        line.clear();
        if text.read_line(&mut line)? == 0 {
            break;
        }
        let mut words = line.split_ascii_whitespace();
        let (Some(address), Some(_), Some(name)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let Some(at) = SYMBOLS
            .iter()
            .position(|symbol| symbol.to_bytes() == name.as_bytes())
        else {
            continue;
        };
        match u64::from_str_radix(address, 16) {
            Ok(0) => return Err(CountersError::Hidden),
            Ok(address) => found[at] = Some(address),
            Err(_) => {}
        }
    }
    Ok(found)
}

fn counters(found: Found, index: impl Fn(&str) -> Option<u32>) -> Result<Counters, CountersError> {
    let symbol = |at: usize| {
        let symbol = SYMBOLS[at];
        found[at].ok_or(CountersError::NoSymbol { symbol })
    };
    let (zone, node) = (symbol(0)?, symbol(1)?);
    // Arrays of atomic_long_t.
    let of = |array: u64, enumerator: &'static str| {
        let index = index(enumerator).ok_or(CountersError::NoEnumerator { enumerator })?;
        Ok::<u64, CountersError>(array + u64::from(index) * 8)
    };
    Ok(Counters {
        free: of(zone, "NR_FREE_PAGES")?,
        active_file: of(node, "NR_ACTIVE_FILE")?,
        inactive_file: of(node, "NR_INACTIVE_FILE")?,
        file_pages: of(node, "NR_FILE_PAGES")?,
        shmem: of(node, "NR_SHMEM")?,
        // Only with swap.
        swap_cached: of(node, "NR_SWAPCACHE").unwrap_or(0),
        slab_reclaimable: of(node, "NR_SLAB_RECLAIMABLE_B")?,
        misc_reclaimable: of(node, "NR_KERNEL_MISC_RECLAIMABLE")?,
        reserve: symbol(2)?,
        swap: found[3].unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "ffffffff81000000 T _stext\nffffffff82000100 D totalreserve_pages\n\
        ffffffff82000800 B vm_zone_stat\nffffffff82000900 B vm_node_stat\n";

    fn index(name: &str) -> Option<u32> {
        let names = [
            "NR_FREE_PAGES",
            "NR_INACTIVE_FILE",
            "NR_ACTIVE_FILE",
            "NR_SLAB_RECLAIMABLE_B",
            "NR_KERNEL_MISC_RECLAIMABLE",
            "NR_FILE_PAGES",
            "NR_SHMEM",
        ];
        let at = names.iter().position(|known| *known == name)?;
        u32::try_from(at).ok()
    }

    #[test]
    fn counters_are_found_by_symbol_and_number() {
        let found = counters(addresses(TEXT.as_bytes()).unwrap(), index).unwrap();
        assert_eq!(
            found,
            Counters {
                free: 0xffff_ffff_8200_0800,
                inactive_file: 0xffff_ffff_8200_0908,
                active_file: 0xffff_ffff_8200_0910,
                file_pages: 0xffff_ffff_8200_0928,
                shmem: 0xffff_ffff_8200_0930,
                swap_cached: 0,
                slab_reclaimable: 0xffff_ffff_8200_0918,
                misc_reclaimable: 0xffff_ffff_8200_0920,
                reserve: 0xffff_ffff_8200_0100,
                swap: 0,
            }
        );
    }

    #[test]
    fn what_the_kernel_looks_up_is_taken_as_from_its_list() {
        let answers = [Ok(1), Ok(2), Ok(3), Err(Errno::NOENT)];
        assert_eq!(
            looked_up(answers).unwrap(),
            [Some(1), Some(2), Some(3), None]
        );
        let hidden = looked_up([Err(Errno::PERM); 4]).unwrap_err();
        assert!(hidden.to_string().contains("CAP_SYSLOG"));
    }

    #[test]
    fn what_is_hidden_or_absent_is_named() {
        let of = |text: &str| {
            addresses(text.as_bytes())
                .and_then(|found| counters(found, index))
                .unwrap_err()
                .to_string()
        };
        assert!(of("").contains("does not list vm_zone_stat"));
        assert!(of(&TEXT.replace("vm_node_stat", "other")).contains("vm_node_stat"));
        assert!(of("0000000000000000 B vm_zone_stat\n").contains("kptr_restrict"));
        let missing = counters(addresses(TEXT.as_bytes()).unwrap(), |_| None);
        assert!(missing.unwrap_err().to_string().contains("NR_FREE_PAGES"));
    }
}
