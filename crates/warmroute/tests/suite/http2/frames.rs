//! An HTTP/2 client that writes frames as it is told, also invalid ones.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    time::Duration,
};

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GO_AWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;

/// The error code ENHANCE_YOUR_CALM.
pub(super) const CALM: u32 = 11;

/// A frame as received.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Frame {
    /// The error code of a reset or of the connection's end.
    pub(super) fn code(&self) -> u32 {
        let at = if self.kind == GO_AWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

/// One connection, after the preface and empty settings, with a large window.
pub(super) struct FrameClient {
    stream: TcpStream,
    next: u32,
}

impl FrameClient {
    pub(super) fn connect(address: &str) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let limit = Some(Duration::from_secs(120));
        stream.set_read_timeout(limit).unwrap();
        stream.set_write_timeout(limit).unwrap();
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .unwrap();
        let mut client = Self { stream, next: 1 };
        let window = frame(WINDOW_UPDATE, 0, 0, &(1u32 << 30).to_be_bytes());
        assert!(client.offer(&[frame(SETTINGS, 0, 0, &[]), window].concat()));
        client
    }

    /// The number of the next stream.
    pub(super) fn next_stream(&mut self) -> u32 {
        self.next += 2;
        self.next - 2
    }

    /// Sends as much as the other side accepts; false if it closed.
    pub(super) fn offer(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Begins a request with these fields and no other.
    pub(super) fn request(&mut self, fields: &[(&str, &str)], flags: u8) -> u32 {
        let stream = self.next_stream();
        self.offer(&frame(HEADERS, flags | END_HEADERS, stream, &block(fields)));
        stream
    }

    /// Returns the next frame; `None` when the connection is closed.
    pub(super) fn frame(&mut self) -> Option<Frame> {
        let mut header = [0; 9];
        match self.stream.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) => {
                let waited = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                assert!(!waited, "the router sends nothing and does not close");
                return None;
            }
        }
        let [a, b, c, kind, _, stream @ ..] = header;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).ok()?;
        let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
        Some(Frame {
            kind,
            stream,
            payload,
        })
    }

    /// Returns the next frame of one of these kinds; `None` when the connection is closed.
    pub(super) fn frame_of(&mut self, kinds: &[u8]) -> Option<Frame> {
        std::iter::from_fn(|| self.frame()).find(|frame| kinds.contains(&frame.kind))
    }
}

/// A frame in bytes.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Fields in HPACK, each as a literal that enters no table.
pub(super) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        for text in [name, value] {
            bytes.push(u8::try_from(text.len()).unwrap());
            assert!(text.len() < 127, "a longer length has another form");
            bytes.extend(text.as_bytes());
        }
    }
    bytes
}

/// The fields of a chat.
pub(super) fn chat_head(host: &str) -> Vec<(&'static str, String)> {
    vec![
        (":method", "POST".to_owned()),
        (":scheme", "http".to_owned()),
        (":authority", host.to_owned()),
        (":path", "/v1/chat/completions".to_owned()),
        ("content-type", "application/json".to_owned()),
    ]
}

/// The same fields, borrowed.
pub(super) fn borrowed<'a>(fields: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    fields
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect()
}
