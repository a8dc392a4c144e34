//! Frames on a socket between two programs of a node: four bytes of length (little endian), then so many bytes of JSON.
//!
//! **Problem.** Either end may lie: a length takes memory before a byte of it has come, and a short text can be parsed
//! to many times its size. **Approach.** Both ends of a protocol share one [`Framing`]. It alone reads and writes a
//! length, and it bounds what is taken before it is read ([`announced`](Framing::announced)) and before it is parsed
//! ([`body`](Framing::body)). It does no I/O: each end reads as it can.

/// Bytes of a frame's length.
pub const LENGTH_BYTES: usize = 4;

/// The bounds of one protocol's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Framing {
    /// Bytes of one frame at most, its length not counted.
    pub bytes_max: usize,
    /// Values in one frame at most. A value takes up to a hundred bytes of memory and three of a frame.
    pub values_max: usize,
}

/// Why a frame is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It has too many bytes.
    #[error("a frame of {bytes} bytes, and {bytes_max} are the most")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// [`Framing::bytes_max`].
        bytes_max: usize,
    },
    /// It has too many values.
    #[error("a frame of more than {values_max} values")]
    TooManyValues {
        /// [`Framing::values_max`].
        values_max: usize,
    },
}

impl Framing {
    /// A text as it goes over the socket.
    ///
    /// # Errors
    /// [`FrameError::TooLong`].
    pub fn frame(&self, json: &[u8]) -> Result<Vec<u8>, FrameError> {
        let bytes = json.len();
        let length = u32::try_from(bytes).map_err(|_| self.too_long(bytes))?;
        self.announced(length.to_le_bytes())?;
        Ok([&length.to_le_bytes(), json].concat())
    }

    /// How many bytes follow this length.
    ///
    /// # Errors
    /// [`FrameError::TooLong`].
    pub fn announced(&self, length: [u8; LENGTH_BYTES]) -> Result<usize, FrameError> {
        let bytes = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if bytes > self.bytes_max {
            return Err(self.too_long(bytes));
        }
        Ok(bytes)
    }

    /// The bytes of the first frame in what has come, with its length; `None`: it is not whole.
    ///
    /// # Errors
    /// [`FrameError::TooLong`], as soon as the length is there.
    pub fn first(&self, input: &[u8]) -> Result<Option<usize>, FrameError> {
        let Some(length) = input.first_chunk() else {
            return Ok(None);
        };
        let end = LENGTH_BYTES + self.announced(*length)?;
        Ok((input.len() >= end).then_some(end))
    }

    /// A frame without its length, if it may be parsed.
    ///
    /// # Errors
    /// [`FrameError::TooManyValues`].
    pub fn body<'a>(&self, frame: &'a [u8]) -> Result<&'a [u8], FrameError> {
        let values_max = self.values_max;
        let (mut separators, mut is_in_string, mut is_escaped) = (0, false, false);
        for byte in frame {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = is_in_string,
                b'"' => is_in_string = !is_in_string,
                b',' | b'{' | b'[' if !is_in_string => separators += 1,
                _ => {}
            }
        }
        if separators > values_max {
            return Err(FrameError::TooManyValues { values_max });
        }
        Ok(frame)
    }

    fn too_long(&self, bytes: usize) -> FrameError {
        FrameError::TooLong {
            bytes,
            bytes_max: self.bytes_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FRAMING: Framing = Framing {
        bytes_max: 16,
        values_max: 3,
    };

    #[test]
    fn the_bound_is_the_last_length_that_is_taken() {
        assert_eq!(FRAMING.announced([16, 0, 0, 0]), Ok(16));
        let too_long = |bytes| {
            Err(FrameError::TooLong {
                bytes,
                bytes_max: 16,
            })
        };
        assert_eq!(FRAMING.announced([17, 0, 0, 0]), too_long(17));
        assert_eq!(FRAMING.announced([0xff; 4]), too_long(u32::MAX as usize));
        assert_eq!(
            FRAMING.frame(&[b' '; 17]),
            too_long(17).map(|_: usize| vec![])
        );
        // Known before a byte of it has come.
        assert_eq!(FRAMING.first(&[17, 0, 0, 0]), too_long(17).map(Some));
    }

    #[test]
    fn values_are_counted_before_they_are_parsed() {
        assert_eq!(FRAMING.body(b"[{},7]"), Ok(&b"[{},7]"[..]));
        let too_many = Err(FrameError::TooManyValues { values_max: 3 });
        assert_eq!(FRAMING.body(b"[{},7,8]"), too_many);
    }

    proptest! {
        #[test]
        fn frames_come_back_however_they_are_cut(texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..=16), 0..4), cut in 0..80_usize) {
            let sent: Vec<u8> = texts.iter().flat_map(|text| FRAMING.frame(text).unwrap()).collect();
            let (now, later) = sent.split_at(cut.min(sent.len()));
            let (mut input, mut taken) = (now.to_vec(), Vec::new());
            for more in [&[][..], later] {
                input.extend_from_slice(more);
                while let Some(end) = FRAMING.first(&input).unwrap() {
                    taken.push(input[LENGTH_BYTES..end].to_vec());
                    input.drain(..end);
                }
            }
            prop_assert_eq!(taken, texts);
            prop_assert!(input.is_empty());
        }
    }
}
