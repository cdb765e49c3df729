//! One target's load.

use std::{collections::BTreeMap, time::Duration};

use kv_blocks::Moment;

use super::{DispatchLoad, TargetLoad};
use crate::{ReplyMode, ReservationId, decaying_sum::DecayingSum};

/// Dispatched prefill work counts towards utilisation this long.
const WORK_MEMORY: Duration = Duration::from_secs(30);

/// A target's mean backlog reaches back this far.
const BACKLOG_MEMORY: Duration = Duration::from_secs(120);

/// Cold tokens given to a target count towards its share this long.
const COLD_MEMORY: Duration = Duration::from_secs(300);

/// A moment at which a backlog has shrunk to some length is told so much late, or rounding would find it a little longer.
const LATE_MS: f64 = 0.1;

/// A mean over time that forgets.
#[derive(Clone, Copy, Debug, Default)]
struct TimeMean {
    value: f64,
    at: Moment,
}

impl TimeMean {
    /// It was `value` since it was noted last.
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
    /// Those of `queue` whose first token nobody will see.
    silent: usize,
    /// When the first of `queue` is believed to have started.
    head_since: Moment,
    decode_sequences: u32,
    decode_tokens: u64,
    /// Blocks of open reservations, shared ones once.
    blocks: u64,
    mean_backlog: TimeMean,
    last_dispatch: u64,
    work_ms: DecayingSum,
    cold_tokens: DecayingSum,
    /// Its worker is gone.
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
    /// Of a target not seen before, with so much cold work behind it.
    pub(super) fn with_cold_tokens(now: Moment, cold_tokens: f64) -> Self {
        let mut account = Self::default();
        account.cold_tokens.add(now, cold_tokens);
        account
    }

    /// Takes note of the backlog, for its mean.
    pub(super) fn record_backlog(&mut self, now: Moment) {
        let backlog_ms = self.backlog_ms(now);
        self.mean_backlog.note(now, backlog_ms);
    }

    /// Counts a reservation that brings so many new blocks; returns whether nothing was queued before it.
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

    /// A prompt is computed, and its sequence generates.
    pub(super) fn decode(&mut self, load: &DispatchLoad) {
        self.decode_sequences += 1;
        self.decode_tokens += u64::from(load.prompt_tokens);
    }

    /// A reservation is over whose prompt is out of the queue, and so many blocks with it.
    pub(super) fn close(&mut self, load: &DispatchLoad, decoding: bool, blocks: u64) {
        self.in_flight -= 1;
        if decoding {
            self.decode_sequences -= 1;
            self.decode_tokens -= u64::from(load.prompt_tokens);
        }
        self.blocks -= blocks;
    }

    /// Whether its worker is gone, and nothing of it is in flight any more.
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

    /// Estimated time until the queued prefills are computed. Prefills run in order, so what passed since the first one
    /// started counts, up to nearly all of its own estimate: it has not answered yet.
    pub(crate) fn backlog_ms(&self, now: Moment) -> f64 {
        self.queued_us as f64 / 1e3 - self.ran_ms(now)
    }

    /// When the backlog will be no more than this, if it is more now; `None`: not before a first token.
    pub(super) fn falls_below_at(&self, now: Moment, most_ms: f64) -> Option<Moment> {
        let excess_ms = self.backlog_ms(now) - most_ms;
        let then = now + Duration::from_secs_f64((excess_ms.max(0.0) + LATE_MS) / 1e3);
        (excess_ms > 0.0 && self.backlog_ms(then) <= most_ms).then_some(then)
    }

    /// What is taken to be computed of the first prefill.
    fn ran_ms(&self, now: Moment) -> f64 {
        let Some((_, head)) = self.queue.first_key_value() else {
            return 0.0;
        };
        now.ms_since(self.head_since)
            .min(0.95 * head.us as f64 / 1e3)
    }

    /// Whether it has prefills whose end nobody will announce.
    pub(super) fn has_unannounced_prefills(&self) -> bool {
        self.silent > 0
    }

    /// Takes out the prefills whose end nobody will announce, once their estimated time and that of all before them is
    /// over. One that was to be announced and never was does not keep back those behind it.
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
            // Its time was taken from what was queued with it: the rest is to end when it was to end before.
            self.head_since = self.head_since + Duration::from_micros(queued.us);
        }
        passed.into_iter().map(|(id, _)| id).collect()
    }

    /// Prompt tokens of the sequences that are generating.
    pub(crate) fn decode_tokens(&self) -> u64 {
        self.decode_tokens
    }

    /// Mean backlog lately, by time.
    pub(crate) fn mean_backlog_ms(&self) -> f64 {
        self.mean_backlog.value
    }

    /// Number of the latest reservation here; 0 if there was none.
    pub(crate) fn last_dispatch(&self) -> u64 {
        self.last_dispatch
    }

    /// Prefill time dispatched lately.
    pub(crate) fn work_ms(&self, now: Moment) -> f64 {
        self.work_ms.at(now)
    }

    /// Uncached tokens dispatched lately.
    pub(crate) fn cold_tokens(&self, now: Moment) -> f64 {
        self.cold_tokens.at(now)
    }

    pub(super) fn dequeue(&mut self, now: Moment, id: ReservationId) {
        if self.unqueue(id) {
            // Whoever ended, the engine is believed to be at the start of the next one.
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
