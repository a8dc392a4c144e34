//! What waits in the queues of sockets without being charged to a cgroup, as the tables of a network namespace list it
//! (`/proc/PID/net`).
//!
//! The kernel charges a cgroup for the queues of unix sockets, and on cgroup v2 for those of TCP and UDP. It charges
//! none for those of netlink, packet, raw and ping sockets, each of which holds up to `net.core.rmem_max`.

use std::fmt::Display;
use std::fs::File;
use std::io;

use super::HostRoot;
use super::Version;
use super::file::{parse_u64, read_text};

/// Of one table no more is read: some 100,000 sockets. Each costs whoever opens it a kilobyte that is charged.
const TABLE_BYTES_MAX: usize = 16 << 20;
/// At a time. A line has at most some 200 bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// What one socket holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queue {
    /// The socket's inode: `/proc/PID/fd` links to `socket:[INODE]`.
    pub inode: u64,
    /// Bytes.
    pub bytes: u64,
}

/// How a table has its figures.
#[derive(Debug, Clone, Copy)]
enum Columns {
    /// Bytes that wait to be received, in decimal digits, and the inode.
    Decimal { received: usize, inode: usize },
    /// `SENT:RECEIVED` in hexadecimal digits in column 4, and the inode in column 9 (net/ipv4/udp.c `udp4_format_sock`
    /// and its like).
    Inet,
    /// The same of TCP, of which only what is received counts: what is sent may be page cache (`sendfile`), and a peer
    /// that does not read decides how much waits.
    Received,
}

/// A file of `/proc/PID/net`.
type Table = (&'static str, Columns);

const NETLINK: Table = (
    "netlink",
    Columns::Decimal {
        received: 4,
        inode: 9,
    },
);
const PACKET: Table = (
    "packet",
    Columns::Decimal {
        received: 6,
        inode: 8,
    },
);

/// Those that no cgroup is charged for.
const NEVER_CHARGED: &[Table] = &[
    NETLINK,
    PACKET,
    ("raw", Columns::Inet),
    ("raw6", Columns::Inet),
    ("icmp", Columns::Inet),
    ("icmp6", Columns::Inet),
];

/// Those that cgroup v2 is charged for.
const CHARGED_ON_V2: &[Table] = &[
    ("tcp", Columns::Received),
    ("tcp6", Columns::Received),
    ("udp", Columns::Inet),
    ("udp6", Columns::Inet),
    ("udplite", Columns::Inet),
    ("udplite6", Columns::Inet),
];

/// Whether pods are charged for the queues of TCP and UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InetQueues {
    /// They are.
    Charged,
    /// They are not: cgroup v1, or `cgroup.memory=nosocket`.
    Uncharged,
}

impl InetQueues {
    /// For memory in a hierarchy of this version: v1 counts the queues of TCP by themselves, if at all
    /// (Documentation/admin-guide/cgroup-v1/memory.rst, 2.7).
    pub fn of(host: &HostRoot, memory: Version) -> Self {
        match memory {
            Version::V1 => Self::Uncharged,
            Version::V2 if is_booted_without_sockets(host) => Self::Uncharged,
            Version::V2 => Self::Charged,
        }
    }

    fn tables(self) -> impl Iterator<Item = &'static Table> {
        let more = match self {
            Self::Charged => &[],
            Self::Uncharged => CHARGED_ON_V2,
        };
        NEVER_CHARGED.iter().chain(more)
    }
}

/// Whether the kernel was booted with `cgroup.memory=nosocket`.
pub fn is_booted_without_sockets(host: &HostRoot) -> bool {
    let text = read_text(host.procfs("cmdline")).unwrap_or_default();
    let options = text.split_ascii_whitespace();
    let mut options = options.filter_map(|word| word.strip_prefix("cgroup.memory="));
    options.any(|list| list.split(',').any(|one| one == "nosocket"))
}

/// Passes each queue that is not empty and not charged, of the network namespace of a process (`PID`) or a thread
/// (`PID/task/TID`), to `found`. A table that this kernel lacks has none, and one of more than 16 MiB is read no
/// further.
///
/// # Errors
/// When the process is gone, or a table cannot be read.
pub fn each_queue(
    host: &HostRoot,
    task: impl Display,
    inet: InetQueues,
    found: &mut dyn FnMut(Queue),
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    for (name, columns) in inet.tables() {
        match File::open(host.procfs(format!("{task}/net/{name}"))) {
            Ok(file) => read(file, *columns, &mut chunk, found)?,
            // Each namespace has this one; modules bring the others.
            Err(error) if *name == NETLINK.0 => return Err(error),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read(
    mut file: impl io::Read,
    columns: Columns,
    chunk: &mut [u8],
    found: &mut dyn FnMut(Queue),
) -> io::Result<()> {
    let (mut kept, mut read_bytes) = (0, 0);
    while read_bytes < TABLE_BYTES_MAX {
        let bytes = match file.read(&mut chunk[kept..]) {
            Ok(0) => break,
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        read_bytes += bytes;
        let filled = kept + bytes;
        let mut begin = 0;
        while let Some(length) = chunk[begin..filled].iter().position(|byte| *byte == b'\n') {
            let queue = columns.queue(&chunk[begin..begin + length]);
            queue.filter(|queue| queue.bytes > 0).map(&mut *found);
            begin += length + 1;
        }
        chunk.copy_within(begin..filled, 0);
        kept = filled - begin;
        // No line of the kernel is as long.
        if kept == chunk.len() {
            break;
        }
    }
    Ok(())
}

impl Columns {
    /// Of a line; `None` for a heading.
    fn queue(self, line: &[u8]) -> Option<Queue> {
        let mut words = line
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty());
        let (amount, inode) = match self {
            Self::Decimal { received, inode } => (
                parse_u64(words.nth(received)?)?,
                words.nth(inode - received - 1)?,
            ),
            Self::Inet | Self::Received => {
                let queues = std::str::from_utf8(words.nth(4)?).ok()?;
                let (sent, received) = queues.split_once(':')?;
                let hex = |text| u64::from_str_radix(text, 16).ok();
                let (sent, received) = (hex(sent)?, hex(received)?);
                let bytes = match self {
                    Self::Received => received,
                    _ => sent.checked_add(received)?,
                };
                (bytes, words.nth(4)?)
            }
        };
        Some(Queue {
            inode: parse_u64(inode)?,
            bytes: amount,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETLINK_TEXT: &str = "\
sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
0000000037804536 0   3280201963 00000000 211968   0        0     2        416      215942  
0000000023d0acaa 0   1          00000000 0        0        0     2        0        217184  
";
    const PACKET_TEXT: &str = "\
sk               RefCnt Type Proto  Iface R Rmem   User   Inode
00000000e1f2a3b4 3      3    0003   2     1 4096   0      777
";
    const RAW_TEXT: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
    1: 00000000:0001 00000000:0000 07 00000010:00000A00 00:00000000 00000000     0        0 4711 2 00000000abcdef12 0
";

    fn queues(text: &[u8], columns: Columns, chunk_bytes: usize) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        let mut chunk = vec![0; chunk_bytes];
        read(text, columns, &mut chunk, &mut |queue| {
            all.push((queue.inode, queue.bytes));
        })
        .unwrap();
        all
    }

    #[test]
    fn each_kind_of_table_is_read_and_its_heading_is_not() {
        for chunk_bytes in [200, 256, CHUNK_BYTES] {
            let of = |text: &str, columns| queues(text.as_bytes(), columns, chunk_bytes);
            assert_eq!(of(NETLINK_TEXT, NETLINK.1), [(215_942, 211_968)]);
            assert_eq!(of(PACKET_TEXT, PACKET.1), [(777, 4096)]);
            assert_eq!(of(RAW_TEXT, Columns::Inet), [(4711, 0xA10)]);
            assert_eq!(of(RAW_TEXT, Columns::Received), [(4711, 0xA00)]);
        }
    }

    #[test]
    fn foreign_bytes_end_a_reading_and_hurt_nobody() {
        for text in [
            &b"\n\n \n"[..],
            b"1 2 3 4 x 6\n",
            b"\xff\xfe 1:1\n",
            &[b'7'; 999],
        ] {
            for columns in [NETLINK.1, PACKET.1, Columns::Inet] {
                assert_eq!(queues(text, columns, 256), []);
            }
        }
    }

    #[test]
    fn a_table_is_read_no_further_than_its_bound() {
        let line = NETLINK_TEXT.lines().nth(1).unwrap();
        let lines = 2 * TABLE_BYTES_MAX / line.len();
        let text = format!("{line}\n").repeat(lines);
        let read = queues(text.as_bytes(), NETLINK.1, CHUNK_BYTES).len();
        assert!(
            read > lines / 3 && read < lines * 2 / 3,
            "{read} of {lines}"
        );
    }

    #[test]
    fn this_process_s_netlink_socket_is_there_with_what_waits_in_it() {
        use rustix::net::{AddressFamily, SocketType};
        let family = AddressFamily::NETLINK;
        let socket = rustix::net::socket(family, SocketType::RAW, None).unwrap();
        // RTM_GETLINK of the first interface, with NLM_F_REQUEST; the answer is not received.
        let mut request = [0_u8; 32];
        request[..4].copy_from_slice(&32_u32.to_ne_bytes());
        request[4..6].copy_from_slice(&18_u16.to_ne_bytes());
        request[6..8].copy_from_slice(&1_u16.to_ne_bytes());
        request[20..24].copy_from_slice(&1_u32.to_ne_bytes());
        rustix::net::send(&socket, &request, rustix::net::SendFlags::empty()).unwrap();
        let inode = rustix::fs::fstat(&socket).unwrap().st_ino;
        let mut bytes = None;
        each_queue(
            &HostRoot::default(),
            std::process::id(),
            InetQueues::Uncharged,
            &mut |queue| {
                if queue.inode == inode {
                    bytes = Some(queue.bytes);
                }
            },
        )
        .unwrap();
        assert!(bytes.is_some_and(|bytes| bytes > 256), "{bytes:?}");
    }
}
