//! Frames: a flag byte, a length of one or eight bytes, a body.

use bytes::{BufMut, BytesMut};

use super::ProtocolError;

const MORE: u8 = 0b001;
const LONG: u8 = 0b010;
const COMMAND: u8 = 0b100;

/// A parsed frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: FrameKind,
    /// Length of the body.
    pub(super) body: u64,
    /// Length of the header itself.
    pub(super) length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    Command,
    /// A frame of a message, with more to follow.
    Part,
    /// The last frame of a message.
    Last,
}

/// Reads a header; `None` if it is incomplete. Checks the flags, not the length.
pub(super) fn header(bytes: &[u8]) -> Result<Option<Header>, ProtocolError> {
    let Some((&flags, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    let kind = match flags & !LONG {
        0 => FrameKind::Last,
        MORE => FrameKind::Part,
        COMMAND => FrameKind::Command,
        _ => return Err(ProtocolError::Flags { flags }),
    };
    if flags & LONG == 0 {
        return Ok(rest.first().map(|&body| Header {
            kind,
            body: u64::from(body),
            length: 2,
        }));
    }
    Ok(rest.first_chunk().map(|body| Header {
        kind,
        body: u64::from_be_bytes(*body),
        length: 9,
    }))
}

/// Appends a message; a message without frames appends nothing.
pub fn encode_message<F: AsRef<[u8]>>(frames: &[F], out: &mut BytesMut) {
    let Some((last, parts)) = frames.split_last() else {
        return;
    };
    out.reserve(frames.iter().map(|frame| frame.as_ref().len() + 9).sum());
    for part in parts {
        encode(MORE, part.as_ref(), out);
    }
    encode(0, last.as_ref(), out);
}

/// Appends a command with its name and data.
pub(super) fn encode_command(name: &str, data: &[u8], out: &mut BytesMut) {
    let mut body = Vec::with_capacity(1 + name.len() + data.len());
    body.push(u8::try_from(name.len()).expect("command names are ours and short"));
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(data);
    encode(COMMAND, &body, out);
}

fn encode(flags: u8, body: &[u8], out: &mut BytesMut) {
    match u8::try_from(body.len()) {
        Ok(length) => {
            out.put_u8(flags);
            out.put_u8(length);
        }
        Err(_) => {
            out.put_u8(flags | LONG);
            out.put_u64(body.len() as u64);
        }
    }
    out.put_slice(body);
}
