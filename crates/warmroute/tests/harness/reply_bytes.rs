//! The bytes of an engine's reply.

/// The framing of a reply's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Length,
    Chunked,
    /// The connection closes at the end.
    Close,
}

/// A complete JSON reply. `head` has more header lines, each with its CRLF.
pub fn json_reply(status: &str, head: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{head}content-length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

/// The head of a chunked event stream.
pub fn stream_head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n".to_vec()
}

/// One chunk of a chunked body.
pub fn chunk(data: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}

/// A complete chunked body of these pieces; none may be empty.
pub fn chunked(pieces: &[&[u8]]) -> Vec<u8> {
    pieces
        .iter()
        .flat_map(|piece| chunk(piece))
        .chain(*b"0\r\n\r\n")
        .collect()
}

/// A complete event stream, each piece a chunk.
pub fn stream_reply(pieces: &[&[u8]]) -> Vec<u8> {
    [stream_head(), chunked(pieces)].concat()
}
