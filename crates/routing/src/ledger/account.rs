//! One target's load.

use std::time::Duration;

use kv_blocks::Moment;

use super::{DispatchLoad, TargetLoad, decode_clock::DecodeClock, prefill_queue::PrefillQueue};
use crate::{ReservationId, decaying_sum::DecayingSum};

/// Time for which dispatched prefill work counts towards utilisation.
const WORK_MEMORY: Duration = Duration::from_secs(30);

/// Time constant of a target's mean backlog.
const BACKLOG_MEMORY: Duration = Duration::from_secs(120);

/// Time for which cold tokens given to a target count towards its share.
const COLD_MEMORY: Duration = Duration::from_secs(300);

/// A decaying mean over time.
#[derive(Clone, Copy, Debug, Default)]
struct TimeMean {
    value: f64,
    at: Moment,
}

impl TimeMean {
    /// Adds `value` for the time since the last call.
    fn note(&mut self, now: Moment, value: f64) {
        let retained = (-(now.since(self.at).as_secs_f64() / BACKLOG_MEMORY.as_secs_f64())).exp();
        *self = Self {
            value: self.value * retained + value * (1.0 - retained),
            at: now.max(self.at),
        };
    }
}

/// One target's load.
#[derive(Debug)]
pub(crate) struct TargetAccount {
    in_flight: u32,
    /// Requests in flight of other replicas.
    peer_in_flight: u32,
    prefills: PrefillQueue,
    decode_sequences: u32,
    decode_tokens: u64,
    /// What it did while it generated, up to the last change of these two.
    decode_clock: DecodeClock,
    /// Blocks of open reservations, shared ones once.
    blocks: u64,
    mean_backlog: TimeMean,
    last_dispatch: u64,
    /// The latest reservation that met no queued prefill.
    last_alone: ReservationId,
    work_ms: DecayingSum,
    cold_tokens: DecayingSum,
    /// The worker has been removed.
    pub(super) forgotten: bool,
}

impl Default for TargetAccount {
    fn default() -> Self {
        Self {
            in_flight: 0,
            peer_in_flight: 0,
            prefills: PrefillQueue::default(),
            decode_sequences: 0,
            decode_tokens: 0,
            decode_clock: DecodeClock::default(),
            blocks: 0,
            last_dispatch: 0,
            last_alone: ReservationId::default(),
            mean_backlog: TimeMean::default(),
            work_ms: DecayingSum::over(WORK_MEMORY),
            cold_tokens: DecayingSum::over(COLD_MEMORY),
            forgotten: false,
        }
    }
}

impl TargetAccount {
    /// Creates the account of a new target, with this much cold work.
    pub(super) fn with_cold_tokens(now: Moment, cold_tokens: f64) -> Self {
        let mut account = Self::default();
        account.cold_tokens.add(now, cold_tokens);
        account
    }

    /// Records the backlog for its mean.
    pub(super) fn record_backlog(&mut self, now: Moment) {
        let backlog_ms = self.backlog_ms(now);
        self.mean_backlog.note(now, backlog_ms);
    }

    /// Counts a reservation with this many new blocks; returns whether nothing was queued before
    /// it.
    pub(super) fn open(
        &mut self,
        now: Moment,
        id: ReservationId,
        load: &DispatchLoad,
        blocks: u64,
    ) -> bool {
        let alone = self.prefills.push(now, id, load);
        if alone {
            self.last_alone = id;
        }
        self.in_flight += 1;
        self.last_dispatch = id.0;
        self.work_ms.add(now, load.prefill_ms);
        self.cold_tokens.add(now, f64::from(load.uncached_tokens));
        self.blocks += blocks;
        alone
    }

    /// Moves a reservation from prefill to decode.
    pub(super) fn decode(&mut self, now: Moment, load: &DispatchLoad) {
        self.advance_clock(now);
        self.decode_clock.record_prefill(load.prefill_ms);
        self.decode_sequences += 1;
        self.decode_tokens += u64::from(load.prompt_tokens);
    }

    /// Frees a reservation whose prompt has left the queue, with this many blocks.
    pub(super) fn close(&mut self, now: Moment, load: &DispatchLoad, decoding: bool, blocks: u64) {
        self.in_flight -= 1;
        if decoding {
            self.advance_clock(now);
            self.decode_sequences -= 1;
            self.decode_tokens -= u64::from(load.prompt_tokens);
        }
        self.blocks -= blocks;
    }

    /// Counts the decode steps until `now`.
    pub(super) fn advance_clock(&mut self, now: Moment) {
        let (sequences, tokens) = (self.decode_sequences, self.decode_tokens);
        self.decode_clock.advance(now, sequences, tokens);
    }

    pub(super) fn decode_clock(&self) -> DecodeClock {
        self.decode_clock
    }

    /// Records that one more, or one less, of the counted reservations is a peer's.
    pub(super) fn peer_in_flight_mut(&mut self) -> &mut u32 {
        &mut self.peer_in_flight
    }

    /// Returns whether the worker was removed and nothing is in flight any more.
    pub(super) fn is_removable(&self) -> bool {
        self.forgotten && self.in_flight == 0
    }

    pub(crate) fn load(&self) -> TargetLoad {
        TargetLoad {
            in_flight: self.in_flight,
            queued_prefill_tokens: self.prefills.tokens(),
            decode_sequences: self.decode_sequences,
            decode_blocks: self.blocks,
            peer_in_flight: self.peer_in_flight,
        }
    }

    /// Returns the estimated time until the queued prefills are computed.
    pub(crate) fn backlog_ms(&self, now: Moment) -> f64 {
        self.prefills.backlog_ms(now)
    }

    pub(super) fn prefills(&self) -> &PrefillQueue {
        &self.prefills
    }

    pub(super) fn prefills_mut(&mut self) -> &mut PrefillQueue {
        &mut self.prefills
    }

    /// Returns the prompt tokens of the generating sequences.
    pub(crate) fn decode_tokens(&self) -> u64 {
        self.decode_tokens
    }

    /// Returns the recent mean backlog, weighted by time.
    pub(crate) fn mean_backlog_ms(&self) -> f64 {
        self.mean_backlog.value
    }

    /// Returns the number of the latest reservation here; 0 if there was none.
    pub(crate) fn last_dispatch(&self) -> u64 {
        self.last_dispatch
    }

    /// Returns the latest reservation that met no queued prefill.
    pub(super) fn last_alone(&self) -> ReservationId {
        self.last_alone
    }

    /// Returns the prefill time dispatched recently.
    pub(crate) fn work_ms(&self, now: Moment) -> f64 {
        self.work_ms.at(now)
    }

    /// Returns the uncached tokens dispatched recently.
    pub(crate) fn cold_tokens(&self, now: Moment) -> f64 {
        self.cold_tokens.at(now)
    }
}
