//! The HTTP listener of `plimsoll run --listen`: metrics, statistics and health for programs. Read-only.
//!
//! **Problem.** Scrapers come often and from elsewhere, some are slow or hostile, and each answer is a page of text
//! over all pods. The agent's loop must not notice. **Approach.** As the control socket ([`crate::serve::control`]): a
//! thread of ordinary priority owns the listener and does all the work, from the same snapshots of the loop; files of
//! cgroups are read on that thread. HTTP itself is `hyper`'s. Everything that a client can take is bounded
//! ([`Bounds`]): connections, bytes of a request, time; one request per connection. Clients that hold connections and
//! send nothing do not keep a probe from its answer ([`crate::serve::listener`]). **Not here.** TLS and authentication:
//! the listener is off unless asked for and meant for loopback, and any other address is accepted with a warning
//! ([`exposed`]).

mod answers;
mod server;

pub use answers::{Answers, PATHS, Reply};
pub use server::{Asked, Bounds, Pages, Server};

use std::io::{self, ErrorKind};
use std::net::{Ipv6Addr, SocketAddr, TcpListener};

/// Why the agent does not listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another program does.
    #[error(
        "--listen {address}: the port is in use; give another, or find the process that has it with: ss -ltnp 'sport = :{port}'", port = .address.port()
    )]
    InUse {
        /// Where.
        address: SocketAddr,
    },
    /// The address is not this host's.
    #[error(
        "--listen {address}: this host does not have that address; `ip address` shows those it has"
    )]
    NotOurs {
        /// Where.
        address: SocketAddr,
    },
    /// The kernel refuses.
    #[error("--listen {address}: {what}: {source}; give another address, or leave the option out")]
    Io {
        /// Where.
        address: SocketAddr,
        /// Which step.
        what: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// Takes the address, so that a bad one is found before anything on the host is changed.
///
/// # Errors
/// [`ListenError`].
pub fn bind(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).map_err(|source| match source.kind() {
        ErrorKind::AddrInUse => ListenError::InUse { address },
        ErrorKind::AddrNotAvailable => ListenError::NotOurs { address },
        _ => ListenError::Io {
            address,
            what: "bind",
            source,
        },
    })
}

/// What to say of an address that others can reach.
pub fn exposed(address: SocketAddr) -> Option<String> {
    (!address.ip().is_loopback()).then(|| {
        format!(
            "--listen {address} is not loopback: everyone who can reach it can read names and usage of pods, without password or encryption"
        )
    })
}

/// Reads `--listen`. The port is behind the last colon also of an IPv6 address without brackets, as `$(HOST_IP):9186`
/// in a pod has it.
///
/// # Errors
/// What to write instead.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let without_brackets = || {
        let (ip, port) = text.rsplit_once(':')?;
        let ip: Ipv6Addr = ip.parse().ok()?;
        Some(SocketAddr::from((ip, port.parse().ok()?)))
    };
    text.parse()
        .ok()
        .or_else(without_brackets)
        .ok_or_else(|| "write an IP address and a port, as 127.0.0.1:9186 or [::1]:9186".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_numbers() {
        assert!(address("127.0.0.1:9186").unwrap().ip().is_loopback());
        assert!(address("[::1]:9186").is_ok());
        // A node's address where a pod's argument has $(HOST_IP):9186.
        assert_eq!(address("fd00::10:9186"), address("[fd00::10]:9186"));
        assert_eq!(
            address("2001:db8:1:2:3:4:5:6:9186"),
            address("[2001:db8:1:2:3:4:5:6]:9186")
        );
        for bad in [
            "",
            "9186",
            ":9186",
            "localhost:9186",
            "127.0.0.1",
            "127.0.0.1:99999",
        ] {
            assert!(
                address(bad).unwrap_err().contains("127.0.0.1:9186"),
                "{bad}"
            );
        }
    }

    #[test]
    fn only_loopback_goes_without_a_word() {
        assert_eq!(exposed(address("127.0.0.2:1").unwrap()), None);
        assert_eq!(exposed(address("[::1]:1").unwrap()), None);
        for open in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1"] {
            let text = exposed(address(open).unwrap()).unwrap();
            assert!(text.contains("not loopback"), "{text}");
        }
    }

    #[test]
    fn a_port_in_use_is_said_with_the_next_step() {
        let first = bind(address("127.0.0.1:0").unwrap()).unwrap();
        let error = bind(first.local_addr().unwrap()).unwrap_err().to_string();
        assert!(
            error.contains("in use") && error.contains("ss -ltnp"),
            "{error}"
        );
        // TEST-NET-1: no machine has it.
        let error = bind(address("192.0.2.1:9186").unwrap()).unwrap_err();
        assert!(error.to_string().contains("ip address"), "{error}");
    }
}
