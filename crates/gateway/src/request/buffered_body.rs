//! A request's body, with its share of the body budget.
//!
//! **Invariant**: the bytes of a body and of its copies count for as long as they exist.

use bytes::Bytes;

use super::body_budget::BodyPermit;

/// The bytes, with their permit.
#[derive(Debug)]
pub(crate) struct BufferedBody {
    bytes: Bytes,
    permit: BodyPermit,
}

impl BufferedBody {
    /// Creates a body whose permit is granted.
    pub(crate) fn new(bytes: Bytes, mut room: BodyPermit) -> Self {
        room.set(bytes.len() as u64);
        Self {
            bytes,
            permit: room,
        }
    }

    /// Returns a second body with these bytes, counted beside the first.
    pub(crate) fn with_extra(&self, bytes: Bytes) -> Self {
        let room = self.permit.reserve_extra(bytes.len() as u64);
        Self {
            bytes,
            permit: room,
        }
    }

    /// Returns the client's bytes; a clone shares them.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Replaces the client's bytes.
    pub(crate) fn replace(&mut self, bytes: Bytes) {
        self.permit.set(bytes.len() as u64);
        self.bytes = bytes;
    }
}

impl Clone for BufferedBody {
    fn clone(&self) -> Self {
        self.with_extra(self.bytes.clone())
    }
}

#[cfg(test)]
mod tests {
    use net::server::PeerAddress;
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;
    use crate::request::body_budget::{BodyBudget, BodyLimits};

    #[test]
    fn a_body_is_counted_by_its_bytes_and_not_by_its_announced_length() {
        let gauge: Gauge = Gauge::default();
        let budget = BodyBudget::new(gauge.clone());
        let limits = BodyLimits {
            max_held: 100,
            max_body: 100,
        };
        let room = budget
            .reserve(PeerAddress::Local, Some(9), limits)
            .expect("there is room");
        assert_eq!(gauge.get(), 9);
        let mut body = BufferedBody::new(Bytes::from_static(b"12345"), room);
        assert_eq!(gauge.get(), 5);
        body.replace(Bytes::from_static(b"12"));
        let beside = body.with_extra(Bytes::from_static(b"123"));
        assert_eq!(gauge.get(), 2 + 3);
        drop((body.clone(), body, beside));
        assert_eq!(gauge.get(), 0);
    }
}
