//! What replicas tell each other.

use std::sync::Arc;

use kv_blocks::Target;

use crate::{DispatchLoad, ReservationId, SessionBinding, SpeedSample};

/// Another replica, by this process's number for it. A restarted replica is another peer: its
/// reservations are numbered from 1 again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// A change of a router's own load or of what it learned, for its peers. Changes are valid in their
/// order.
#[derive(Clone, Debug, PartialEq)]
pub enum LoadChange {
    /// A decision was made: its load counts from now on.
    Opened(OpenLoad),
    /// The prompt of a reservation is computed.
    FirstToken {
        /// The reservation.
        id: ReservationId,
    },
    /// A reservation is freed.
    Closed {
        /// The reservation.
        id: ReservationId,
        /// Whether its target received the prompt; if not, no blocks are predicted there because of
        /// it.
        prompt_received: bool,
        /// Whether the attempt counts as a success of its worker; `None`: it does not count.
        succeeded: Option<bool>,
    },
    /// A reply showed its worker's speed.
    Sample(SpeedSample),
    /// A session belongs to a target.
    Session(SessionBinding),
    /// A complete reply had this many tokens.
    ReplyLength(u32),
}

/// An open reservation.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenLoad {
    /// Its number; ids of one router ascend and are never reused.
    pub id: ReservationId,
    /// Its target. `None`: the worker is not known here; the reservation is part of the digest and
    /// counts nowhere.
    pub target: Option<Target>,
    /// Its load.
    pub load: Arc<DispatchLoad>,
    /// Whether its first token was reported.
    pub first_token: bool,
    /// Time since the decision.
    pub age_ms: f64,
}

/// A part of a router's open reservations: those with ids from a range.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadPage {
    /// The range begins after this id; 0 for the first page.
    pub after: ReservationId,
    /// The range ends with this id, and the next page begins after it. `None`: the range has no
    /// end; this is the last page.
    pub through: Option<ReservationId>,
    /// All open reservations in the range, in the order of their ids.
    pub loads: Vec<OpenLoad>,
}

/// What a feed was when changes were taken from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedState {
    /// Changes were lost since the last call, because nobody took them in time: the peers need
    /// every page.
    pub lost: bool,
    /// The digest after the changes that were taken: a peer that applied them has the same.
    pub digest: LoadDigest,
}

/// A summary of a router's own open reservations, to compare what a peer knows of them. It does not
/// depend on the order of changes or on the numbers of workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadDigest {
    /// Number of open reservations.
    pub open: u64,
    /// The sum of a hash of each of them and of whether its first token was reported.
    pub sum: u64,
}

impl LoadDigest {
    pub(crate) fn add(&mut self, id: ReservationId, first_token: bool) {
        self.open = self.open.wrapping_add(1);
        self.sum = self.sum.wrapping_add(hash(id, first_token));
    }

    /// Records the first token of a reservation.
    pub(crate) fn advance(&mut self, id: ReservationId) {
        let difference = hash(id, true).wrapping_sub(hash(id, false));
        self.sum = self.sum.wrapping_add(difference);
    }

    pub(crate) fn remove(&mut self, id: ReservationId, first_token: bool) {
        self.open = self.open.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(hash(id, first_token));
    }
}

/// Splitmix64's output function: every bit of the input changes half of the result.
fn hash(id: ReservationId, first_token: bool) -> u64 {
    let value = (id.0 << 1 | u64::from(first_token)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
