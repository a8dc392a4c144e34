//! Takes apart what the API server streams, without holding it: the items of a list, the lines of a watch. Pure;
//! bounded whatever comes.

/// Bytes of one object at most: etcd takes 1.5 MiB of the API server's own encoding, and JSON has six bytes for some of
/// its characters.
pub const OBJECT_BYTES_MAX: usize = 10 << 20;
/// Bytes of a list outside of its items.
const REST_BYTES_MAX: usize = 64 << 10;

/// A piece of the stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// An item, or a line.
    Object(&'a [u8]),
    /// One that was longer than [`OBJECT_BYTES_MAX`].
    TooLarge,
}

/// The list is none: what stands outside of its items is longer than any list has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoList;

/// Finds the objects of the array `items` of a JSON object, and keeps the rest, with `items` empty.
#[derive(Debug, Default)]
pub struct Items {
    depth: u32,
    in_string: bool,
    is_escaped: bool,
    /// The last string at depth 1 that was complete: the key of what follows.
    key: Vec<u8>,
    in_items: bool,
    object: Vec<u8>,
    is_too_large: bool,
    rest: Vec<u8>,
}

impl Items {
    /// Takes the next bytes.
    ///
    /// # Errors
    /// [`NoList`].
    pub fn feed(&mut self, bytes: &[u8], mut take: impl FnMut(Piece<'_>)) -> Result<(), NoList> {
        for byte in bytes {
            self.byte(*byte, &mut take)?;
        }
        Ok(())
    }

    fn byte(&mut self, byte: u8, take: &mut impl FnMut(Piece<'_>)) -> Result<(), NoList> {
        if self.in_items && self.depth >= 2 {
            self.in_item(byte, take);
            return Ok(());
        }
        if self.rest.len() >= REST_BYTES_MAX {
            return Err(NoList);
        }
        self.rest.push(byte);
        if self.in_string {
            let ends = self.string(byte);
            if self.depth == 1 && !ends {
                self.key.push(byte);
            }
            return Ok(());
        }
        match byte {
            b'"' => {
                self.in_string = true;
                if self.depth == 1 {
                    self.key.clear();
                }
            }
            b'{' | b'[' => {
                self.in_items = self.depth == 1 && byte == b'[' && self.key == b"items";
                self.depth += 1;
            }
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        Ok(())
    }

    /// A byte within a string. Returns whether it ends there.
    const fn string(&mut self, byte: u8) -> bool {
        if self.is_escaped {
            self.is_escaped = false;
        } else if byte == b'\\' {
            self.is_escaped = true;
        } else if byte == b'"' {
            self.in_string = false;
            return true;
        }
        false
    }

    fn in_item(&mut self, byte: u8, take: &mut impl FnMut(Piece<'_>)) {
        let is_between = self.depth == 2 && !self.in_string;
        if is_between && matches!(byte, b',' | b']') {
            // What is no object has its end here: it must not take the next one with it.
            if self.is_too_large || !self.object.is_empty() {
                self.whole(take);
            }
            if byte == b']' {
                self.depth = 1;
                self.in_items = false;
                self.rest.push(byte);
            }
            return;
        }
        if is_between && byte.is_ascii_whitespace() {
            return;
        }
        if self.object.len() >= OBJECT_BYTES_MAX {
            self.is_too_large = true;
            self.object.clear();
        }
        if !self.is_too_large {
            self.object.push(byte);
        }
        if self.in_string {
            self.string(byte);
            return;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth -= 1,
            _ => {}
        }
        if self.depth == 2 && matches!(byte, b'}' | b']') {
            self.whole(take);
        }
    }

    fn whole(&mut self, take: &mut impl FnMut(Piece<'_>)) {
        take(if self.is_too_large {
            Piece::TooLarge
        } else {
            Piece::Object(&self.object)
        });
        self.is_too_large = false;
        self.object.clear();
        self.object.shrink_to(64 << 10);
    }

    /// What stood around the items; complete JSON if the list was.
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        &self.rest
    }
}

/// Finds the lines of a stream.
#[derive(Debug, Default)]
pub struct Lines {
    line: Vec<u8>,
    is_too_large: bool,
}

impl Lines {
    /// Takes the next bytes.
    pub fn feed(&mut self, bytes: &[u8], mut take: impl FnMut(Piece<'_>)) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = match part.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (part, false),
            };
            if self.line.len() + text.len() > OBJECT_BYTES_MAX {
                self.is_too_large = true;
                self.line.clear();
            } else if !self.is_too_large {
                self.line.extend_from_slice(text);
            }
            if ends {
                if self.is_too_large {
                    take(Piece::TooLarge);
                } else if !self.line.is_empty() {
                    take(Piece::Object(&self.line));
                }
                self.is_too_large = false;
                self.line.clear();
                self.line.shrink_to(64 << 10);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(text: &[u8], chunk: usize) -> Result<(Vec<String>, String), NoList> {
        let mut items = Items::default();
        let mut found = Vec::new();
        for part in text.chunks(chunk) {
            items.feed(part, |piece| {
                found.push(match piece {
                    Piece::Object(object) => String::from_utf8_lossy(object).into_owned(),
                    Piece::TooLarge => "too large".to_owned(),
                });
            })?;
        }
        Ok((found, String::from_utf8_lossy(items.rest()).into_owned()))
    }

    #[test]
    fn the_items_of_a_list_however_it_is_cut() {
        let text = br#"{"kind":"PodList","items_":["x"],"metadata":{"resourceVersion":"7","items":[1],"s":"a\"items"},"items":[{"a":"]}\"{","b":[{}]}, {"c":"\\"} ],"z":"items"}"#;
        for chunk in 1..text.len() {
            let (found, rest) = items(text, chunk).unwrap();
            assert_eq!(
                found,
                [r#"{"a":"]}\"{","b":[{}]}"#, r#"{"c":"\\"}"#],
                "{chunk}"
            );
            let rest: serde_json::Value = serde_json::from_str(&rest).unwrap();
            assert_eq!(
                (
                    &rest["metadata"]["resourceVersion"],
                    rest["items"].as_array().map(Vec::len)
                ),
                (&"7".into(), Some(0))
            );
        }
        let mixed = br#"{"items":["no, object", 7 ,{"a":1},null,[2],{"b":2}, true]}"#;
        let expected = [
            r#""no, object""#,
            "7",
            r#"{"a":1}"#,
            "null",
            "[2]",
            r#"{"b":2}"#,
            "true",
        ];
        assert_eq!(items(mixed, 5).unwrap().0, expected);
        assert_eq!(items(br#"{"items":null}"#, 3).unwrap().0.len(), 0);
    }

    #[test]
    fn a_large_list_takes_no_memory() {
        let mut list = Items::default();
        let mut found = 0;
        list.feed(br#"{"items":["#, |_| {}).unwrap();
        let item = format!("{{\"a\":\"{}\"}},", "x".repeat(100_000));
        for _ in 0..200 {
            list.feed(item.as_bytes(), |_| found += 1).unwrap();
        }
        assert_eq!(found, 200);
        assert!(list.object.capacity() < 256 << 10 && list.rest.len() < 100);
        // One item that does not end, and the one after it.
        list.feed(br#"{"a":""#, |_| {}).unwrap();
        for _ in 0..2 * (OBJECT_BYTES_MAX >> 20) {
            list.feed(&vec![b'x'; 1 << 20], |_| {}).unwrap();
        }
        assert!(list.object.capacity() <= 2 * OBJECT_BYTES_MAX);
        let mut pieces = Vec::new();
        list.feed(br#""},{"b":1}]}"#, |piece| {
            pieces.push(piece == Piece::TooLarge)
        })
        .unwrap();
        assert_eq!(pieces, [true, false]);
    }

    #[test]
    fn garbage_is_no_list() {
        assert_eq!(items(&vec![b'x'; 1 << 20], 4096), Err(NoList));
        assert_eq!(items(&vec![b'['; 1 << 20], 4096), Err(NoList));
        for garbage in [
            &b"]]]]"[..],
            b"{\"items\":[}}}}]]]",
            b"{\"items\":[1,2]}",
            b"\"",
            b"\\",
        ] {
            let _any = items(garbage, 1).unwrap();
        }
    }

    #[test]
    fn lines_are_bounded() {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for part in [
            &b"{\"a\""[..],
            b":1}\n\n{}\n",
            &vec![b'x'; OBJECT_BYTES_MAX],
            b"yz",
            b"\n{\"b\":2}\n",
            b"half",
        ] {
            lines.feed(part, |piece| {
                found.push(match piece {
                    Piece::Object(object) => String::from_utf8_lossy(object).into_owned(),
                    Piece::TooLarge => "too large".to_owned(),
                });
            });
        }
        assert_eq!(found, ["{\"a\":1}", "{}", "too large", "{\"b\":2}"]);
        assert!(lines.line.capacity() <= 64 << 10);
    }
}
