//! A guest's serial console: bytes to lines, and the line in which PID 1 says the command's exit status.

/// What [`super::INIT`] writes around the status.
const MARKER_START: &str = "@@PLIMSOLL-STATUS ";
const MARKER_END: &str = "@@";

/// Bytes of one line that are kept; a guest that never ends its line must not fill this machine's memory.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// The exit status in a console line. Kernel messages may share the line.
pub(crate) fn status_in(line: &str) -> Option<u8> {
    let (_, after) = line.split_once(MARKER_START)?;
    let (status, _) = after.split_once(MARKER_END)?;
    status.trim().parse().ok()
}

/// Cuts the console's bytes into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    /// Takes the next bytes and returns the lines that they complete, without line ends.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for byte in bytes {
            match byte {
                b'\n' => lines.push(self.take()),
                b'\r' => {}
                _ => self.partial.push(*byte),
            }
            if self.partial.len() >= LINE_BYTES_MAX {
                lines.push(self.take());
            }
        }
        lines
    }

    /// The last line when the console closed in the middle of it.
    pub(crate) fn rest(&mut self) -> Option<String> {
        (!self.partial.is_empty()).then(|| self.take())
    }

    fn take(&mut self) -> String {
        let line = String::from_utf8_lossy(&self.partial).into_owned();
        self.partial.clear();
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_found_anywhere_in_a_line() {
        assert_eq!(status_in("@@PLIMSOLL-STATUS 0@@"), Some(0));
        assert_eq!(
            status_in("[ 3.1] printk@@PLIMSOLL-STATUS 139@@[ 3.2] more"),
            Some(139)
        );
        for line in [
            "",
            "@@PLIMSOLL-STATUS @@",
            "@@PLIMSOLL-STATUS 300@@",
            "@@PLIMSOLL-STATUS 1",
            "STATUS 1@@",
        ] {
            assert_eq!(status_in(line), None, "{line}");
        }
    }

    #[test]
    fn lines_survive_any_cut() {
        let text = b"one\r\ntwo\n\nthr\xc3\xa9e";
        for cut in 0..text.len() {
            let mut lines = Lines::default();
            let mut all = lines.push(&text[..cut]);
            all.extend(lines.push(&text[cut..]));
            all.extend(lines.rest());
            assert_eq!(all, ["one", "two", "", "thrée"], "cut at {cut}");
        }
    }

    #[test]
    fn endless_lines_are_cut() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(&vec![b'x'; 2 * LINE_BYTES_MAX + 1]).len(), 2);
        assert_eq!(lines.rest().as_deref(), Some("x"));
    }
}
