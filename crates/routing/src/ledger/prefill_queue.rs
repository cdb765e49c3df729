//! The prefills of one target that have no first token yet.

use std::{collections::BTreeMap, time::Duration};

use kv_blocks::Moment;

use super::DispatchLoad;
use crate::{ReplyMode, ReservationId};

/// Delay added to the computed time of a backlog's fall, or rounding would find the backlog
/// slightly too long at that time.
const LATE_MS: f64 = 0.1;

/// The prefills of one target, which its engine computes in the order of dispatch.
#[derive(Debug)]
pub(super) struct PrefillQueue {
    prefills: BTreeMap<ReservationId, QueuedPrefill>,
    tokens: u64,
    us: u64,
    /// Number of prefills whose first token is not reported.
    silent: usize,
    /// Estimated start of the first prefill.
    head_since: Moment,
}

#[derive(Clone, Copy, Debug)]
struct QueuedPrefill {
    tokens: u32,
    us: u64,
    reply: ReplyMode,
}

impl Default for PrefillQueue {
    fn default() -> Self {
        Self {
            prefills: BTreeMap::new(),
            tokens: 0,
            us: 0,
            silent: 0,
            head_since: Moment::START,
        }
    }
}

impl PrefillQueue {
    /// Adds the prefill of a reservation; returns whether nothing was queued before it.
    pub(super) fn push(&mut self, now: Moment, id: ReservationId, load: &DispatchLoad) -> bool {
        let alone = self.prefills.is_empty();
        if alone {
            self.head_since = now;
        }
        let us = whole_us(load.prefill_ms);
        self.prefills.insert(
            id,
            QueuedPrefill {
                tokens: load.uncached_tokens,
                us,
                reply: load.reply,
            },
        );
        self.silent += usize::from(load.reply == ReplyMode::Whole);
        self.tokens += u64::from(load.uncached_tokens);
        self.us += us;
        alone
    }

    /// Returns the tokens to compute.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Returns the estimated time until all are computed. The time since the first one started
    /// counts, up to nearly all of its own estimate: its first token has not come yet.
    pub(super) fn backlog_ms(&self, now: Moment) -> f64 {
        self.us as f64 / 1e3 - self.ran_ms(now)
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
        let Some((_, head)) = self.prefills.first_key_value() else {
            return 0.0;
        };
        now.ms_since(self.head_since)
            .min(0.95 * head.us as f64 / 1e3)
    }

    /// Returns whether there are prefills whose end is not reported.
    pub(super) fn has_unannounced(&self) -> bool {
        self.silent > 0
    }

    /// Removes the prefills whose end is not reported, once their estimated time and that of all
    /// before them is over. A prefill whose expected report never came does not delay the ones
    /// behind it.
    pub(super) fn expire(&mut self, now: Moment) -> Vec<ReservationId> {
        if self.silent == 0 {
            return Vec::new();
        }
        let mut over = self.head_since;
        let over_by_now = |(id, queued): (&ReservationId, &QueuedPrefill)| {
            over = over + Duration::from_micros(queued.us);
            (over <= now).then_some((*id, *queued))
        };
        let passed = self
            .prefills
            .iter()
            .map_while(over_by_now)
            .filter(|(_, queued)| queued.reply == ReplyMode::Whole);
        let passed: Vec<_> = passed.collect();
        for (id, queued) in &passed {
            self.take(*id);
            // Its time was subtracted from the queued total: the end of the remaining prefills
            // stays where it was.
            self.head_since = self.head_since + Duration::from_micros(queued.us);
        }
        passed.into_iter().map(|(id, _)| id).collect()
    }

    /// Removes a prefill, if it is queued.
    pub(super) fn remove(&mut self, now: Moment, id: ReservationId) {
        if self.take(id) {
            // Whichever prefill ended, the engine is assumed to start the next one now.
            self.head_since = now;
        }
    }

    fn take(&mut self, id: ReservationId) -> bool {
        let Some(queued) = self.prefills.remove(&id) else {
            return false;
        };
        self.tokens -= u64::from(queued.tokens);
        self.us -= queued.us;
        self.silent -= usize::from(queued.reply == ReplyMode::Whole);
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
