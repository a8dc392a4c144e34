//! Memory in the queues of sockets.

use std::io;
use std::os::fd::OwnedFd;

use anyhow::Context as _;
use plimsoll::host::HostRoot;
use plimsoll::host::protect::raise_open_files;
use rustix::io::Errno;
use rustix::net::netlink::{SocketAddrNetlink, USERSOCK};
use rustix::net::{AddressFamily, SendFlags, SocketType, bind, sendto, socket};

use super::{Go, Growth, Log};

/// What is sent at a time: less than a socket may have on its way.
static MESSAGE: [u8; 30_000] = [1; 30_000];

/// Sockets that send to themselves until the kernel takes no more, and never receive.
pub(crate) fn fill(growth: &Growth, go: &Go, log: &Log) -> anyhow::Result<()> {
    raise_open_files(&HostRoot::default()).context("more open files")?;
    let mut full = Vec::new();
    growth.run(go, log, |made| {
        full.push(filled(made)?);
        Ok(())
    });
    // Open for as long as the process is.
    std::mem::forget(full);
    Ok(())
}

fn filled(number: u64) -> io::Result<OwnedFd> {
    let sender = socket(AddressFamily::NETLINK, SocketType::RAW, Some(USERSOCK))?;
    let port = u32::try_from(number).map_err(io::Error::other)? + 1;
    let address = SocketAddrNetlink::new((std::process::id() << 16) | port, 0);
    bind(&sender, &address)?;
    loop {
        match sendto(&sender, &MESSAGE, SendFlags::DONTWAIT, &address) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(sender),
            Err(errno) => return Err(errno.into()),
        }
    }
}
