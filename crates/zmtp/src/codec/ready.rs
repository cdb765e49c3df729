//! The READY command: it carries the peer's socket type.

use bytes::Bytes;

use super::{ProtocolError, SocketType};

/// Longest routing id that the protocol allows.
const IDENTITY: usize = 255;

/// The properties of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    /// Its routing id; empty if the router assigns one.
    pub(super) identity: Bytes,
}

/// Returns the data of our READY.
pub(super) fn ours(socket: SocketType, identity: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    property("Socket-Type", socket.as_str().as_bytes(), &mut data);
    if socket == SocketType::Dealer {
        property("Identity", identity, &mut data);
    }
    data
}

/// Reads the data of the peer's READY and checks that the two socket types are compatible.
pub(super) fn read(mut data: &[u8], ours: SocketType) -> Result<Ready, ProtocolError> {
    let mut socket = None;
    let mut identity = Bytes::new();
    while !data.is_empty() {
        let (name, value, rest) = next_property(data).ok_or(ProtocolError::Command)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            socket = Some(value);
        } else if name.eq_ignore_ascii_case(b"Identity") {
            // A leading zero is reserved for ids that a router assigns.
            if value.len() > IDENTITY || value.first() == Some(&0) {
                return Err(ProtocolError::Command);
            }
            identity = Bytes::copy_from_slice(value);
        }
        data = rest;
    }
    let socket = socket.unwrap_or_default();
    if ours.talks_to(socket) {
        Ok(Ready { identity })
    } else {
        let peer = String::from_utf8_lossy(&socket[..socket.len().min(32)])
            .escape_debug()
            .to_string();
        Err(ProtocolError::Socket {
            peer,
            ours: ours.as_str(),
            expected: ours.partners(),
        })
    }
}

fn property(name: &str, value: &[u8], out: &mut Vec<u8>) {
    out.push(u8::try_from(name.len()).expect("property names are ours and short"));
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(
        &u32::try_from(value.len())
            .expect("property values are short")
            .to_be_bytes(),
    );
    out.extend_from_slice(value);
}

fn next_property(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (&length, rest) = data.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(length))?;
    let (length, rest) = rest.split_first_chunk()?;
    let (value, rest) =
        rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    (!name.is_empty()).then_some((name, value, rest))
}
