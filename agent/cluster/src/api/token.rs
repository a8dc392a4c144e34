//! The token in a file, which a kubeconfig or a service account names. kube-rs sends such a file as it is, and refuses
//! one that ends in a newline; client-go trims white space, so that what kubectl takes is taken here.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http::HeaderValue;

/// Source: `cachingTokenSource` of a file in client-go's transport/token_source.go.
const READ_EVERY: Duration = Duration::from_secs(60);
/// Bytes of a file. A service account's token has some 1 KiB.
const BYTES_MAX: u64 = 64 << 10;

/// The token of a file, and when it was read.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    header: HeaderValue,
    read: Instant,
}

impl TokenFile {
    /// Reads it.
    ///
    /// # Errors
    /// It cannot be read, is empty or too long, or has bytes that no header may have.
    pub(super) fn new(path: PathBuf) -> io::Result<Self> {
        Ok(Self {
            header: read(&path)?,
            path,
            read: Instant::now(),
        })
    }

    /// What `Authorization` says. The file is read again after a minute; while that fails the token is the one that was
    /// read last, as in client-go.
    pub(super) fn header(&mut self) -> HeaderValue {
        if self.read.elapsed() >= READ_EVERY {
            self.read = Instant::now();
            if let Ok(header) = read(&self.path) {
                self.header = header;
            }
        }
        self.header.clone()
    }
}

fn read(path: &Path) -> io::Result<HeaderValue> {
    let mut text = String::new();
    let wrong = |why: &'static str| io::Error::new(io::ErrorKind::InvalidData, why);
    let length = File::open(path)?
        .take(BYTES_MAX + 1)
        .read_to_string(&mut text)?;
    if length as u64 > BYTES_MAX {
        return Err(wrong("it is longer than 64 KiB"));
    }
    let token = text.trim();
    if token.is_empty() {
        return Err(wrong("it is empty"));
    }
    let header = HeaderValue::try_from(format!("Bearer {token}"));
    let mut header = header.map_err(|_| wrong("it has characters that no token has"))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_around_a_token_is_no_part_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for text in ["abc", "abc\n", " abc\r\n\n"] {
            std::fs::write(&path, text).unwrap();
            let mut token = TokenFile::new(path.clone()).unwrap();
            assert_eq!(token.header(), "Bearer abc", "{text:?}");
        }
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let why = |text: &str| {
            std::fs::write(&path, text).unwrap();
            TokenFile::new(path.clone()).unwrap_err().to_string()
        };
        assert_eq!(why(" \n"), "it is empty");
        assert_eq!(why("a\nb"), "it has characters that no token has");
        assert_eq!(why(&"a".repeat(65_537)), "it is longer than 64 KiB");
        std::fs::remove_file(&path).unwrap();
        let missing = TokenFile::new(path.clone()).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_token_is_read_again_after_a_minute_and_kept_while_there_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "first\n").unwrap();
        let mut token = TokenFile::new(path.clone()).unwrap();
        std::fs::write(&path, "second\n").unwrap();
        assert_eq!(token.header(), "Bearer first");
        token.read = token.read.checked_sub(READ_EVERY).unwrap();
        assert_eq!(token.header(), "Bearer second");
        std::fs::remove_file(&path).unwrap();
        token.read = token.read.checked_sub(READ_EVERY).unwrap();
        assert_eq!(token.header(), "Bearer second");
    }
}
