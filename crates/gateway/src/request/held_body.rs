//! A request's body, counted while it is held.
//!
//! **Invariant**: bodies are counted before their bytes are: by the announced length, or else as they grow.

use bytes::Bytes;
use dialect::{ApiError, ErrorCode};
use prometheus_client::metrics::gauge::Gauge;

use crate::metrics::HELD_BYTES;

/// When to come back if bodies have too many bytes together.
const RETRY_S: u32 = 1;

/// Room for a body. Dropping it gives the room back.
#[derive(Debug)]
pub(crate) struct Room {
    bytes: u64,
    /// The bytes of all bodies: what is shown is what is counted by.
    all: Gauge,
}

impl Room {
    /// Room for so many bytes, if with those of all others they are within `most`.
    pub(crate) fn take(all: &Gauge, bytes: u64, most: u64) -> Result<Self, ApiError> {
        let mut room = Self { bytes: 0, all: all.clone() };
        room.grow(bytes, most).map(|()| room)
    }

    /// The same for so many bytes more.
    pub(crate) fn grow(&mut self, bytes: u64, most: u64) -> Result<(), ApiError> {
        let before = self.all.inc_by(signed(bytes));
        self.bytes += bytes;
        // Room for nothing is always there.
        if bytes == 0 || before.saturating_add(signed(bytes)) <= signed(most) {
            return Ok(());
        }
        Err(ApiError::new(
            ErrorCode::Overloaded,
            format!(
                "the bodies of all running requests may have {most} bytes together (server.max_held_bytes), and {} more do \
                 not fit: try again",
                self.bytes
            ),
        )
        .with_retry_after(RETRY_S)
        .because(HELD_BYTES))
    }

    /// The room is for so many bytes from now on, whether they fit or not: they are there.
    fn set(&mut self, bytes: u64) {
        self.all.inc_by(signed(bytes).saturating_sub(signed(self.bytes)));
        self.bytes = bytes;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.all.dec_by(signed(self.bytes));
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The bytes, with the room that they take.
#[derive(Debug)]
pub(crate) struct HeldBody {
    bytes: Bytes,
    room: Room,
}

impl HeldBody {
    /// A body for which there was room.
    pub(crate) fn new(bytes: Bytes, mut room: Room) -> Self {
        room.set(bytes.len() as u64);
        Self { bytes, room }
    }

    /// Without any.
    pub(crate) fn none(all: &Gauge) -> Self {
        Self { bytes: Bytes::new(), room: Room { bytes: 0, all: all.clone() } }
    }

    /// Other bytes beside these.
    pub(crate) fn beside(&self, bytes: Bytes) -> Self {
        Self::new(bytes, Room { bytes: 0, all: self.room.all.clone() })
    }

    /// The client's bytes; sharing them copies nothing.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Other bytes take the place of the client's.
    pub(crate) fn replace(&mut self, bytes: Bytes) {
        self.room.set(bytes.len() as u64);
        self.bytes = bytes;
    }
}

impl Clone for HeldBody {
    fn clone(&self) -> Self {
        self.beside(self.bytes.clone())
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("F76", "I7")]
    fn bodies_have_room_up_to_the_limit_and_give_it_back() {
        let all = Gauge::default();
        let first = Room::take(&all, 60, 100).expect("there is room");
        let refused = Room::take(&all, 41, 100).expect_err("one byte too many");
        assert_eq!((refused.status, refused.counted_as(), refused.retry_after()), (503, "held_bytes", Some(1)));
        assert_eq!(all.get(), 60, "what was refused holds nothing");
        let mut second = Room::take(&all, 0, 100).expect("nothing always fits");
        assert!(second.grow(40, 100).is_ok() && second.grow(1, 100).is_err());
        drop(second);
        drop(HeldBody::new(Bytes::from_static(b"{}"), first).clone());
        assert_eq!(all.get(), 0);
    }

    #[test]
    fn a_body_is_counted_by_what_it_is_and_not_by_what_was_announced() {
        let all = Gauge::default();
        let mut body = HeldBody::new(Bytes::from_static(b"12345"), Room::take(&all, 9, 100).expect("there is room"));
        assert_eq!(all.get(), 5);
        body.replace(Bytes::from_static(b"12"));
        let beside = body.beside(Bytes::from_static(b"123"));
        assert_eq!(all.get(), 2 + 3);
        drop((body, beside));
        assert_eq!(all.get(), 0);
    }
}
