//! Commands: a name with its length, then data.

use std::time::Duration;

use super::ProtocolError;

/// A command, borrowed from its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command<'a> {
    /// End of the handshake, with properties.
    Ready(&'a [u8]),
    /// The peer closes the session, with a reason.
    Error(&'a [u8]),
    Subscribe(&'a [u8]),
    Cancel(&'a [u8]),
    Ping {
        /// Time without traffic after which the peer considers the connection dead; the same
        /// applies here.
        time_to_live: Option<Duration>,
        context: &'a [u8],
    },
    Pong,
    /// Reserved for later versions.
    Unknown,
}

/// Longest context of a PING; the PONG returns it.
const CONTEXT: usize = 16;

pub(super) fn read(body: &[u8]) -> Result<Command<'_>, ProtocolError> {
    let broken = ProtocolError::Command;
    let (&length, rest) = body.split_first().ok_or(broken.clone())?;
    let (name, data) = rest
        .split_at_checked(usize::from(length))
        .ok_or(broken.clone())?;
    Ok(match name {
        b"READY" => Command::Ready(data),
        b"ERROR" => Command::Error(error_reason(data)),
        b"SUBSCRIBE" => Command::Subscribe(data),
        b"CANCEL" => Command::Cancel(data),
        b"PING" => {
            let (ttl, context) = data.split_first_chunk().ok_or(broken.clone())?;
            if context.len() > CONTEXT {
                return Err(broken);
            }
            let tenths = u16::from_be_bytes(*ttl);
            let time_to_live = (tenths > 0).then(|| Duration::from_millis(100) * u32::from(tenths));
            Command::Ping {
                time_to_live,
                context,
            }
        }
        b"PONG" => Command::Pong,
        _ => Command::Unknown,
    })
}

fn error_reason(data: &[u8]) -> &[u8] {
    let Some((&length, rest)) = data.split_first() else {
        return data;
    };
    rest.get(..usize::from(length)).unwrap_or(rest)
}
