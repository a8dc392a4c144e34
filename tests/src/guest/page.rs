//! Pages of the agent's HTTP listener.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, ensure};

/// Where an agent that these programs start listens.
pub const ADDRESS: &str = "127.0.0.1:9186";

/// Reads a page and returns its body.
///
/// # Errors
/// Nobody listens there, or the answer is no page.
pub fn get(page: &str) -> anyhow::Result<String> {
    let mut stream =
        TcpStream::connect(ADDRESS).with_context(|| format!("connecting to {ADDRESS}"))?;
    write!(
        stream,
        "GET {page} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .with_context(|| page.to_owned())?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .with_context(|| format!("{page}: half an answer"))?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{page}: {head}");
    Ok(body.to_owned())
}
