//! One target's load.

use std::{collections::BTreeMap, time::Duration};

use kv_blocks::Moment;

use super::{DispatchLoad, TargetLoad};
use crate::{ReplyMode, ReservationId, decaying_sum::DecayingSum};

/// Time for which dispatched prefill work counts towards utilisation.
const WORK_MEMORY: Duration = Duration::from_secs(30);

/// Time constant of a target's mean backlog.
const BACKLOG_MEMORY: Duration = Duration::from_secs(120);

/// Time for which cold tokens given to a target count towards its share.
const COLD_MEMORY: Duration = Duration::from_secs(300);

/// Delay added to the computed time of a backlog's fall, or rounding would find the backlog
/// slightly too long at that time.
const LATE_MS: f64 = 0.1;

/// A decaying mean over time.
#[derive(Clone, Copy, Debug, Default)]
struct TimeMean {
    value: f64,
    at: Moment,
}

impl TimeMean {
    /// Adds `value` for the time since the last call.
    fn note(&mut self, now: Moment, value: f64) {
        let kept = (-(now.since(self.at).as_secs_f64() / BACKLOG_MEMORY.as_secs_f64())).exp();
        *self = Self {
            value: self.value * kept + value * (1.0 - kept),
            at: now.max(self.at),
        };
    }
}

/// One target's load.
#[derive(Debug)]
pub(crate) struct TargetAccount {
    in_flight: u32,
    /// Prefills without a first token, in the order of dispatch.
    queue: BTreeMap<ReservationId, QueuedPrefill>,
    queued_tokens: u64,
    queued_us: u64,
    /// Number of prefills in `queue` whose first token is not reported.
    silent: usize,
    /// Estimated start of the first prefill in `queue`.
    head_since: Moment,
    decode_sequences: u32,
    decode_tokens: u64,
    /// Blocks of open reservations, shared ones once.
    blocks: u64,
    mean_backlog: TimeMean,
    last_dispatch: u64,
    work_ms: DecayingSum,
    cold_tokens: DecayingSum,
    /// The worker has been removed.
    pub(super) forgotten: bool,
}

#[derive(Clone, Copy, Debug)]
struct QueuedPrefill {
    tokens: u32,
    us: u64,
    answer: ReplyMode,
}

impl Default for TargetAccount {
    fn default() -> Self {
        Self {
            in_flight: 0,
            queue: BTreeMap::new(),
            queued_tokens: 0,
            queued_us: 0,
            silent: 0,
            head_since: Moment::START,
            decode_sequences: 0,
            decode_tokens: 0,
            blocks: 0,
            last_dispatch: 0,
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
        let alone = self.queue.is_empty();
        if alone {
            self.head_since = now;
        }
        self.in_flight += 1;
        let us = whole_us(load.prefill_ms);
        self.queue.insert(
            id,
            QueuedPrefill {
                tokens: load.uncached_tokens,
                us,
                answer: load.answer,
            },
        );
        self.silent += usize::from(load.answer == ReplyMode::Whole);
        self.queued_tokens += u64::from(load.uncached_tokens);
        self.queued_us += us;
        self.last_dispatch = id.0;
        self.work_ms.add(now, load.prefill_ms);
        self.cold_tokens.add(now, f64::from(load.uncached_tokens));
        self.blocks += blocks;
        alone
    }

    /// Moves a reservation from prefill to decode.
    pub(super) fn decode(&mut self, load: &DispatchLoad) {
        self.decode_sequences += 1;
        self.decode_tokens += u64::from(load.prompt_tokens);
    }

    /// Frees a reservation whose prompt has left the queue, with this many blocks.
    pub(super) fn close(&mut self, load: &DispatchLoad, decoding: bool, blocks: u64) {
        self.in_flight -= 1;
        if decoding {
            self.decode_sequences -= 1;
            self.decode_tokens -= u64::from(load.prompt_tokens);
        }
        self.blocks -= blocks;
    }

    /// Returns whether the worker was removed and nothing is in flight any more.
    pub(super) fn is_removable(&self) -> bool {
        self.forgotten && self.in_flight == 0
    }

    pub(crate) fn load(&self) -> TargetLoad {
        TargetLoad {
            in_flight: self.in_flight,
            queued_prefill_tokens: self.queued_tokens,
            decode_sequences: self.decode_sequences,
            decode_blocks: self.blocks,
        }
    }

    /// Returns the estimated time until the queued prefills are computed. Prefills run in order, so
    /// the time since the first one started counts, up to nearly all of its own estimate: its first
    /// token has not come yet.
    pub(crate) fn backlog_ms(&self, now: Moment) -> f64 {
        self.queued_us as f64 / 1e3 - self.ran_ms(now)
    }

    /// Returns when the backlog falls to this value, if it is higher now; `None`: not before a
    /// first token.
    pub(super) fn falls_below_at(&self, now: Moment, most_ms: f64) -> Option<Moment> {
        let excess_ms = self.backlog_ms(now) - most_ms;
        let then = now + Duration::from_secs_f64((excess_ms.max(0.0) + LATE_MS) / 1e3);
        (excess_ms > 0.0 && self.backlog_ms(then) <= most_ms).then_some(then)
    }

    /// Returns the time for which the first prefill is assumed to have run.
    fn ran_ms(&self, now: Moment) -> f64 {
        let Some((_, head)) = self.queue.first_key_value() else {
            return 0.0;
        };
        now.ms_since(self.head_since)
            .min(0.95 * head.us as f64 / 1e3)
    }

    /// Returns whether there are prefills whose end is not reported.
    pub(super) fn has_unannounced_prefills(&self) -> bool {
        self.silent > 0
    }

    /// Removes the prefills whose end is not reported, once their estimated time and that of all
    /// before them is over. A prefill whose expected report never came does not delay the ones
    /// behind it.
    pub(super) fn expire_prefills(&mut self, now: Moment) -> Vec<ReservationId> {
        if self.silent == 0 {
            return Vec::new();
        }
        let mut over = self.head_since;
        let over_by_now = |(id, queued): (&ReservationId, &QueuedPrefill)| {
            over = over + Duration::from_micros(queued.us);
            (over <= now).then_some((*id, *queued))
        };
        let passed = self
            .queue
            .iter()
            .map_while(over_by_now)
            .filter(|(_, queued)| queued.answer == ReplyMode::Whole);
        let passed: Vec<_> = passed.collect();
        for (id, queued) in &passed {
            self.unqueue(*id);
            // Its time was subtracted from the queued total: the end of the remaining prefills
            // stays where it was.
            self.head_since = self.head_since + Duration::from_micros(queued.us);
        }
        passed.into_iter().map(|(id, _)| id).collect()
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

    /// Returns the prefill time dispatched recently.
    pub(crate) fn work_ms(&self, now: Moment) -> f64 {
        self.work_ms.at(now)
    }

    /// Returns the uncached tokens dispatched recently.
    pub(crate) fn cold_tokens(&self, now: Moment) -> f64 {
        self.cold_tokens.at(now)
    }

    pub(super) fn dequeue(&mut self, now: Moment, id: ReservationId) {
        if self.unqueue(id) {
            // Whichever prefill ended, the engine is assumed to start the next one now.
            self.head_since = now;
        }
    }

    fn unqueue(&mut self, id: ReservationId) -> bool {
        let Some(queued) = self.queue.remove(&id) else {
            return false;
        };
        self.queued_tokens -= u64::from(queued.tokens);
        self.queued_us -= queued.us;
        self.silent -= usize::from(queued.answer == ReplyMode::Whole);
        true
    }
}

fn whole_us(ms: f64) -> u64 {
    // Bounded on both sides, so the cast is exact enough; an hour is longer than any prefill.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to an hour"
    )]
    let us = (ms * 1e3).clamp(0.0, 3.6e9) as u64;
    us
}
