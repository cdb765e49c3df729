//! Whether a request has room on a target, and what it waits for if it has none.

use std::time::Duration;

use kv_blocks::Target;

/// A request with more tokens to compute is cold: two steps of an engine's prefill.
pub(super) const COLD_TOKENS: u32 = 16_384;
/// Share of a cache that stays free. An engine that evicts in the order of last use would otherwise
/// drop blocks that count as live before newer ones that do not.
const HEADROOM: f64 = 0.05;

/// A request that does not fit on any target that may take it, and the target that lacks least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RoomShortage {
    pub(crate) target: Target,
    pub(crate) live_blocks: u64,
    pub(crate) capacity: u64,
    pub(crate) needed_blocks: u64,
    pub(crate) missing_blocks: f64,
    pub(crate) keep: Duration,
    /// Time to compute the whole prompt there.
    pub(crate) prefill_ms: f64,
    /// The number of targets that may take it.
    pub(crate) targets: usize,
    /// Its session stays with the target, and no other may take it.
    pub(crate) is_bound_to_target: bool,
}

/// Why a request waits for room, and how long it will.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoomWait {
    /// The target that lacks least room for it.
    pub target: Target,
    /// Blocks that the target used within `keep`.
    pub live_blocks: u64,
    /// Blocks that its cache holds.
    pub capacity: u64,
    /// Blocks of the request that are not among them.
    pub needed_blocks: u64,
    /// How long blocks count after their request ended.
    pub keep: Duration,
    /// Requests that wait for room before it.
    pub ahead: usize,
    /// Expected wait, at the rate at which requests are let in.
    pub expected: Duration,
}

impl RoomShortage {
    pub(super) fn wait(&self, ahead: usize, expected: Duration) -> RoomWait {
        RoomWait {
            target: self.target,
            live_blocks: self.live_blocks,
            capacity: self.capacity,
            needed_blocks: self.needed_blocks,
            keep: self.keep,
            ahead,
            expected,
        }
    }
}

impl RoomWait {
    /// Returns the reason as a sentence; `worker`: the name of the target's worker.
    pub fn sentence(&self, worker: &str) -> String {
        format!(
            "waiting for room: {worker} holds {} of {} blocks in use within {:.0} s, needs {}; {} ahead; \
             expected wait {:.0} s",
            self.live_blocks,
            self.capacity,
            self.keep.as_secs_f64(),
            self.needed_blocks,
            self.ahead,
            self.expected.as_secs_f64(),
        )
    }
}

/// Returns by how many blocks a request exceeds the room of a cache, if above zero; `live`: the
/// blocks in use that count.
pub(super) fn missing_blocks(live: f64, needed: f64, capacity: u64) -> f64 {
    let room = (1.0 - HEADROOM) * capacity as f64;
    // A prompt longer than the room fits where nothing else counts: no wait makes it shorter.
    live + needed.min(room) - room
}

#[cfg(test)]
mod tests {
    use kv_blocks::{DpRank, WorkerId};

    use super::*;

    #[test]
    fn a_request_fits_beside_the_live_blocks_less_the_headroom() {
        for (live, needed, capacity, fits) in [
            (0.0, 95.0, 100, true),
            (10.0, 85.0, 100, true),
            (11.0, 85.0, 100, false),
            (0.0, 500.0, 100, true),
            (1.0, 500.0, 100, false),
            (96.0, 0.0, 100, false),
        ] {
            let missing = missing_blocks(live, needed, capacity);
            assert_eq!(missing <= 1e-9, fits, "{live} {needed}: {missing}");
        }
    }

    #[test]
    fn the_reason_names_the_worker_and_every_number() {
        let wait = RoomWait {
            target: Target {
                worker: WorkerId(3),
                rank: DpRank(0),
            },
            live_blocks: 890,
            capacity: 922,
            needed_blocks: 86,
            keep: Duration::from_secs(81),
            ahead: 4,
            expected: Duration::from_secs(95),
        };
        assert_eq!(
            wait.sentence("engine-3"),
            "waiting for room: engine-3 holds 890 of 922 blocks in use within 81 s, needs 86; 4 ahead; \
             expected wait 95 s"
        );
    }
}
