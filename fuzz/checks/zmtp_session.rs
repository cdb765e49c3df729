//! What a peer sends, from its first byte on.

use bytes::BytesMut;
use zmtp::{
    Limits,
    codec::{Incoming, ProtocolError, SocketType, ZmtpSession},
};

/// The first byte chooses our socket and how the rest is cut into pieces.
///
/// # Panics
///
/// If it matters how the bytes are cut, if a message breaks a limit, or if the answer is longer than what it answers.
pub(crate) fn check(bytes: &[u8]) {
    let Some((setup, bytes)) = bytes.split_first() else {
        return;
    };
    let socket = [
        SocketType::Sub,
        SocketType::Pub,
        SocketType::Dealer,
        SocketType::Router,
    ][usize::from(setup & 3)];
    let whole = feed(socket, [bytes]);
    let pieces = feed(socket, bytes.chunks(usize::from(setup >> 2) + 1));
    assert_eq!(whole, pieces);
}

const LIMITS: (usize, usize) = (4096, 4);

fn feed<'a>(
    socket: SocketType,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Incoming>, Option<ProtocolError>, Vec<u8>) {
    let (max_message, max_frames) = LIMITS;
    let mut session = ZmtpSession::new(
        socket,
        b"me",
        &Limits {
            max_message,
            max_frames,
            ..Limits::default()
        },
    );
    let greeting = 200;
    let (mut buffer, mut came, mut fed) = (BytesMut::new(), Vec::new(), 0);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        fed += piece.len();
        loop {
            match session.receive(&mut buffer) {
                Ok(Some(incoming)) => {
                    if let Incoming::Message(frames) = &incoming {
                        assert!(!frames.is_empty() && frames.len() <= max_frames);
                        assert!(
                            frames.iter().map(|frame| frame.len()).sum::<usize>() <= max_message
                        );
                    }
                    came.push(incoming);
                }
                Ok(None) => break,
                Err(error) => return (came, Some(error), session.outgoing().to_vec()),
            }
        }
        assert!(session.outgoing().len() <= greeting + fed);
    }
    (came, None, session.outgoing().to_vec())
}
