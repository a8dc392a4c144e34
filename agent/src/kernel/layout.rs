//! Which member of which kernel struct fills which field of [`Layout`], and what to do where kernels differ.
//!
//! A member that the running kernel does not have leaves its field unresolved; the hooks that need it are then not
//! loaded, and say which member they miss.

use std::borrow::Cow;

use plimsoll_abi::Layout;

use super::btf::Btf;

/// [`Layout`] for the running kernel, and the members it lacks (by their names in [`Layout::MEMBERS`]).
pub(super) struct Resolved {
    pub(super) layout: Layout,
    pub(super) missing: Vec<&'static str>,
}

/// Looks up every member.
pub(super) fn resolve(btf: &Btf<'_>) -> Resolved {
    let mut layout = Layout::UNRESOLVED;
    let mut missing = Vec::new();
    for member in Layout::MEMBERS {
        match (find(btf, member), layout.field_mut(member)) {
            (Some(offset), Some(field)) => *field = offset,
            _ => missing.push(*member),
        }
    }
    Resolved { layout, missing }
}

fn find(btf: &Btf<'_>, member: &str) -> Option<u32> {
    match member {
        // Atomic counters in a struct up to 6.1, an array of per-CPU counters since 6.2.
        "mm_struct.rss_stat[MM_ANONPAGES]" => {
            let index = btf.enumerator("MM_ANONPAGES")?;
            btf.offset(&format!("mm_struct.rss_stat.count[{index}]"))
                .or_else(|| btf.offset(&format!("mm_struct.rss_stat[{index}].count")))
        }
        "task_struct.in_memstall" => btf.bit("task_struct", "in_memstall"),
        // Renamed in 6.14.
        "folio.nr_pages" => btf
            .offset("folio._nr_pages")
            .or_else(|| btf.offset("folio._folio_nr_pages")),
        "PG_head" | "PG_swapbacked" => btf.enumerator(member),
        // The tracepoint's own prototype has no names, the function that calls its probes does; its first parameter is
        // not passed on. The program handles the first two positions.
        "mm_vmscan_direct_reclaim_begin(order)" => btf
            .parameter("__traceiter_mm_vmscan_direct_reclaim_begin", "order")?
            .checked_sub(1)
            .filter(|position| *position < 2),
        member => btf.offset(&numbered(btf, member)?),
    }
}

/// A path whose array's index is a number: a name there is a constant of this kernel's configuration.
fn numbered<'path>(btf: &Btf<'_>, path: &'path str) -> Option<Cow<'path, str>> {
    let index = path
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    match index {
        Some((name, _)) if name.starts_with(|first: char| first.is_ascii_alphabetic()) => {
            let number = btf.enumerator(name)?;
            Some(path.replace(name, &number.to_string()).into())
        }
        _ => Some(path.into()),
    }
}
