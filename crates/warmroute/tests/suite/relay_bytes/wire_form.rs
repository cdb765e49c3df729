//! Splits and frames bytes for the wire; the other side must not see any of it.

use std::time::Duration;

use proptest::prelude::*;

use crate::harness::{Framing, chunk};

/// The cuts of a body and the pauses between its pieces.
#[derive(Clone, Debug)]
pub(crate) struct Cuts {
    /// Each in 0..=1 of the rest.
    shares: Vec<f64>,
    pub(crate) pause: Duration,
}

pub(crate) fn cuts() -> impl Strategy<Value = Cuts> {
    let shares = prop::collection::vec(prop_oneof![Just(0.0), 0.0..0.1f64, 0.0..1.0f64], 0..10);
    // The longest pause exceeds the time for which the relay holds the start of an event.
    let pause =
        prop_oneof![4 => Just(0u64), 4 => Just(1), 1 => Just(70)].prop_map(Duration::from_millis);
    (shares, pause).prop_map(|(shares, pause)| Cuts { shares, pause })
}

impl Cuts {
    /// One piece.
    pub(crate) fn none() -> Self {
        Self {
            shares: Vec::new(),
            pause: Duration::ZERO,
        }
    }

    /// The pieces, none of them empty.
    pub(crate) fn pieces<'a>(&self, mut bytes: &'a [u8]) -> Vec<&'a [u8]> {
        let mut pieces = Vec::new();
        for share in &self.shares {
            if bytes.len() < 2 {
                break;
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share of a length is one"
            )]
            let at = ((bytes.len() as f64 * share) as usize).clamp(1, bytes.len() - 1);
            let (piece, rest) = bytes.split_at(at);
            pieces.push(piece);
            bytes = rest;
        }
        pieces.push(bytes);
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }

    /// A framed message body in pieces: the head lines of the framing, and the writes that send it.
    pub(crate) fn framed(&self, framing: Framing, body: &[u8]) -> (String, Vec<Vec<u8>>) {
        let pieces = self.pieces(body);
        match framing {
            Framing::Length => (
                format!("content-length: {}\r\n", body.len()),
                owned(&pieces),
            ),
            Framing::Close => ("connection: close\r\n".to_owned(), owned(&pieces)),
            Framing::Chunked => {
                let mut writes: Vec<_> = pieces.iter().map(|piece| chunk(piece)).collect();
                writes.push(b"0\r\n\r\n".to_vec());
                ("Transfer-Encoding: chunked\r\n".to_owned(), writes)
            }
        }
    }
}

fn owned(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
    pieces.iter().map(|piece| piece.to_vec()).collect()
}

pub(crate) fn reply_framing() -> impl Strategy<Value = Framing> {
    prop_oneof![
        Just(Framing::Length),
        Just(Framing::Chunked),
        Just(Framing::Close)
    ]
}
