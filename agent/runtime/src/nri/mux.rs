//! What goes over the socket of NRI: frames of its multiplexer, and in them messages of ttrpc. No I/O.
//!
//! **Problem.** Two connections share one socket (containerd/nri, pkg/net/multiplex): on one the runtime calls the
//! plugin, on the other the plugin the runtime. A length comes before what it counts, in each of two layers, and may be
//! a lie. **Approach.** [`Mux::take`] is given bytes as they come, however they are cut. A length is compared with its
//! bound before a byte after it is kept, and memory is taken only for bytes that have come.
//!
//! **Terms.** *frame*: eight bytes (connection, length; big endian), then so many bytes of that connection. *message*:
//! ten bytes (length, stream, kind, flags; big endian), then so many bytes (containerd/ttrpc, channel.go); it may begin
//! and end anywhere in a frame.

/// Bytes of a message at most, its header not counted: ttrpc's own bound (`messageLengthMax`).
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
const MESSAGE_HEADER_BYTES: usize = 10;
const FRAME_HEADER_BYTES: usize = 8;
/// Bytes of a frame that is read, at most: the multiplexer's own bound (`maxPayloadSize`).
const FRAME_BYTES_MAX: usize = MESSAGE_HEADER_BYTES + MESSAGE_BYTES_MAX;
/// Bytes of a frame that is written, at most. The other end's reader has a buffer of so many bytes (Go's `bufio`) and
/// fails on a frame that is longer than what it offers.
const WRITTEN_BYTES_MAX: usize = 4096;

/// One of the two connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection {
    /// The runtime calls the plugin.
    Plugin,
    /// The plugin calls the runtime.
    Runtime,
}

impl Connection {
    /// As in pkg/net/multiplex/ttrpc.go.
    const fn id(self) -> u32 {
        match self {
            Self::Plugin => 1,
            Self::Runtime => 2,
        }
    }

    fn of(id: u32) -> Option<Self> {
        [Self::Plugin, Self::Runtime]
            .into_iter()
            .find(|connection| connection.id() == id)
    }
}

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A call.
    Request,
    /// Its answer.
    Response,
    /// What unary calls do not use. It is passed over, as ttrpc's server does.
    Other(u8),
}

impl Kind {
    const fn byte(self) -> u8 {
        match self {
            Self::Request => 1,
            Self::Response => 2,
            Self::Other(byte) => byte,
        }
    }

    const fn of(byte: u8) -> Self {
        match byte {
            1 => Self::Request,
            2 => Self::Response,
            other => Self::Other(other),
        }
    }
}

/// A whole message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Where it came.
    pub connection: Connection,
    /// Which call it belongs to.
    pub stream: u32,
    /// What it is.
    pub kind: Kind,
    /// A `ttrpc.Request` or `ttrpc.Response`.
    pub body: Vec<u8>,
}

/// Something has announced more than its bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a {what} of {bytes} bytes, and {most} are the most")]
pub struct TooLong {
    what: &'static str,
    bytes: usize,
    most: usize,
}

fn bounded(what: &'static str, bytes: u32, most: usize) -> Result<usize, TooLong> {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    match bytes <= most {
        true => Ok(bytes),
        false => Err(TooLong { what, bytes, most }),
    }
}

fn big_endian(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0, |number, byte| (number << 8) | u32::from(*byte))
}

impl Message {
    /// As it goes over the socket.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        let length = u32::try_from(self.body.len()).unwrap_or(u32::MAX);
        bounded("message", length, MESSAGE_BYTES_MAX)?;
        let mut message = Vec::with_capacity(MESSAGE_HEADER_BYTES + self.body.len());
        message.extend(length.to_be_bytes());
        message.extend(self.stream.to_be_bytes());
        message.extend([self.kind.byte(), 0]);
        message.extend(&self.body);
        let mut frames = Vec::with_capacity(FRAME_HEADER_BYTES + message.len());
        for part in message.chunks(WRITTEN_BYTES_MAX) {
            frames.extend(self.connection.id().to_be_bytes());
            // At most WRITTEN_BYTES_MAX.
            frames.extend(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
            frames.extend(part);
        }
        Ok(frames)
    }

    /// Takes the first message out of a connection's bytes; `None`: it is not whole.
    fn first(connection: Connection, bytes: &mut Vec<u8>) -> Result<Option<Self>, TooLong> {
        let Some(header) = bytes.first_chunk::<MESSAGE_HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = bounded("message", big_endian(&header[..4]), MESSAGE_BYTES_MAX)?;
        let (stream, kind) = (big_endian(&header[4..8]), Kind::of(header[8]));
        let end = MESSAGE_HEADER_BYTES + length;
        if bytes.len() < end {
            return Ok(None);
        }
        let later = bytes.split_off(end);
        let mut body = std::mem::replace(bytes, later);
        body.drain(..MESSAGE_HEADER_BYTES);
        Ok(Some(Self {
            connection,
            stream,
            kind,
            body,
        }))
    }
}

/// The reading end of a socket.
#[derive(Debug, Default)]
pub struct Mux {
    /// Of a frame, as far as it has come.
    header: Vec<u8>,
    /// The connection of the frame that is under way, and how many of its bytes are to come.
    connection: Option<Connection>,
    left: usize,
    /// Of each connection, what is no whole message yet.
    plugin: Vec<u8>,
    runtime: Vec<u8>,
}

impl Mux {
    /// Takes bytes that have come, and returns the messages that end in them.
    ///
    /// # Errors
    /// [`TooLong`]: after it nothing that comes has a meaning.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<Vec<Message>, TooLong> {
        let mut messages = Vec::new();
        while !bytes.is_empty() {
            if self.left == 0 {
                let missing = FRAME_HEADER_BYTES.saturating_sub(self.header.len());
                let (header, later) = bytes.split_at(missing.min(bytes.len()));
                self.header.extend(header);
                bytes = later;
                if let Some(header) = self.header.first_chunk::<FRAME_HEADER_BYTES>() {
                    self.left = bounded("frame", big_endian(&header[4..]), FRAME_BYTES_MAX)?;
                    self.connection = Connection::of(big_endian(&header[..4]));
                    self.header.clear();
                }
                continue;
            }
            let (part, later) = bytes.split_at(self.left.min(bytes.len()));
            self.left -= part.len();
            bytes = later;
            // Others are not for us: the other end passes them over, too.
            let Some(connection) = self.connection else {
                continue;
            };
            let kept = match connection {
                Connection::Plugin => &mut self.plugin,
                Connection::Runtime => &mut self.runtime,
            };
            kept.extend(part);
            while let Some(message) = Message::first(connection, kept)? {
                messages.push(message);
            }
        }
        Ok(messages)
    }

    /// Whether something has begun to come and is not whole.
    pub fn is_partial(&self) -> bool {
        self.left > 0
            || [&self.header, &self.plugin, &self.runtime]
                .iter()
                .any(|bytes| !bytes.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(connection: Connection, bytes: usize) -> Message {
        Message {
            connection,
            stream: 7,
            kind: Kind::Request,
            body: vec![b'x'; bytes],
        }
    }

    /// Byte for byte as pkg/net/multiplex/mux.go and ttrpc's channel.go write it.
    #[test]
    fn the_bytes_are_those_of_the_published_code() {
        let mut one = message(Connection::Runtime, 2);
        one.body = b"hi".to_vec();
        let bytes = [
            &[0, 0, 0, 2, 0, 0, 0, 12][..],
            &[0, 0, 0, 2, 0, 0, 0, 7, 1, 0],
            b"hi",
        ]
        .concat();
        assert_eq!(one.encode(), Ok(bytes.clone()));
        assert_eq!(Mux::default().take(&bytes), Ok(vec![one]));
    }

    #[test]
    fn messages_come_back_however_they_are_cut() {
        let sent = [
            message(Connection::Runtime, 0),
            message(Connection::Plugin, 10_000),
            message(Connection::Runtime, 4086),
            message(Connection::Plugin, 4087),
        ];
        let bytes: Vec<u8> = sent
            .iter()
            .flat_map(|message| message.encode().unwrap())
            .collect();
        for portion in [1, 2, 3, 7, 8, 9, 17, 4096, bytes.len()] {
            let mut mux = Mux::default();
            let mut taken = Vec::new();
            for part in bytes.chunks(portion) {
                taken.extend(mux.take(part).unwrap());
            }
            assert_eq!(taken, sent, "{portion}");
            assert!(!mux.is_partial());
        }
    }

    #[test]
    fn messages_of_two_connections_may_be_entangled() {
        let (plugin, runtime) = (
            message(Connection::Plugin, 5000),
            message(Connection::Runtime, 5000),
        );
        let cut = |message: &Message| {
            let bytes = message.encode().unwrap();
            let (first, second) = bytes.split_at(FRAME_HEADER_BYTES + WRITTEN_BYTES_MAX);
            (first.to_vec(), second.to_vec())
        };
        let ((p1, p2), (r1, r2)) = (cut(&plugin), cut(&runtime));
        let mut mux = Mux::default();
        let taken = mux.take(&[p1, r1, r2, p2].concat());
        assert_eq!(taken, Ok(vec![runtime, plugin]));
    }

    #[test]
    fn a_length_above_its_bound_is_refused_before_what_it_counts() {
        let frame = |length: u32| [&1_u32.to_be_bytes()[..], &length.to_be_bytes()].concat();
        let most = u32::try_from(FRAME_BYTES_MAX).unwrap();
        assert_eq!(Mux::default().take(&frame(most)), Ok(vec![]));
        for length in [most + 1, u32::MAX] {
            assert!(Mux::default().take(&frame(length)).is_err());
        }
        let announced = |length: usize| {
            let length = u32::try_from(length).unwrap().to_be_bytes();
            [frame(10), length.to_vec(), vec![0, 0, 0, 1, 1, 0]].concat()
        };
        assert_eq!(
            Mux::default().take(&announced(MESSAGE_BYTES_MAX)),
            Ok(vec![])
        );
        let refused = Mux::default()
            .take(&announced(MESSAGE_BYTES_MAX + 1))
            .unwrap_err();
        assert_eq!(
            refused.to_string(),
            "a message of 4194305 bytes, and 4194304 are the most"
        );
        assert!(
            message(Connection::Plugin, MESSAGE_BYTES_MAX + 1)
                .encode()
                .is_err()
        );
    }

    #[test]
    fn a_connection_that_is_not_ours_is_passed_over() {
        let other = [&9_u32.to_be_bytes()[..], &3_u32.to_be_bytes(), b"abc"].concat();
        let ours = message(Connection::Plugin, 1);
        let mut mux = Mux::default();
        let taken = mux.take(&[other, ours.encode().unwrap()].concat());
        assert_eq!(taken, Ok(vec![ours]));
    }
}
