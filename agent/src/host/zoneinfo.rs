//! `/proc/zoneinfo`: how little memory the kernel keeps free before it reclaims by itself.

use super::HostRoot;
use super::file::{FileError, read_text};

/// The sum of all zones' low watermarks, pages. Source: mm/vmstat.c `zoneinfo_show_print`.
///
/// # Errors
/// The file cannot be read.
pub fn low_watermarks(host: &HostRoot) -> Result<u64, FileError> {
    Ok(low_pages(&read_text(host.path("/proc/zoneinfo"))?))
}

fn low_pages(zoneinfo: &str) -> u64 {
    let numbers = zoneinfo.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some("low")).then(|| words.next()?.parse::<u64>().ok())?
    });
    numbers.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_watermarks_are_added_up() {
        let text = "Node 0, zone      DMA\n  per-node stats\n      nr_inactive_anon 12\n  pages free     3840\n        boost    0\n        min      66\n        low      82\n        high     98\n\
            Node 0, zone   Normal\n  pages free     100\n        min      500\n        low      600\n    cpu: 0\n              count:    1\n              high:     2\n";
        assert_eq!(low_pages(text), 682);
        assert_eq!(low_pages(""), 0);
    }
}
