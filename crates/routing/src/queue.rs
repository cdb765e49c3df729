//! Requests that wait for a target here rather than at one.
//!
//! An engine computes prompts in the order in which they come: a request that is bound to a busy engine waits behind a
//! long prompt though another engine may be free before. Held here it is bound when a target can begin, and the shortest
//! go first. The order, best first:
//!
//! 1. who has waited as long as it may, oldest first: it is bound whatever its target has to compute;
//! 2. the higher priority;
//! 3. the least estimated time to compute what is not cached, less a share of the time waited.
//!
//! **Invariant**: entries and bytes are bounded, and a ticket leaves exactly once: released or given up.

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc, time::Duration};

use kv_blocks::{Moment, PromptBlocks};

use crate::{
    Affinity, Answer, Candidate, Excluded, Job, NoStopwatch, Overrides, Policy, PrefixHolder, SessionKeys, Ticket,
};

/// How requests are held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueSettings {
    /// Whether any are. A job that may not wait ([`Job::patience`]) never is.
    pub enabled: bool,
    /// A target with more than this to compute before the request gets none that may wait. Less than the time between
    /// an engine's first token and the router's notice of it leaves engines idle.
    pub hold_above: Duration,
    /// Milliseconds of prefill that each millisecond waited makes up for.
    pub ageing: f64,
    /// Most requests held.
    pub max_entries: usize,
    /// Most bytes that they keep together.
    pub max_bytes: u64,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            hold_above: Duration::from_millis(50),
            ageing: 0.2,
            max_entries: 10_000,
            max_bytes: 512 * 1024 * 1024,
        }
    }
}

/// Candidates priced in one look at the queue, over all requests: a bound on the time that the lock is held, which is about
/// half a millisecond.
const PRICED: usize = 2048;
/// Requests looked at, however many candidates they have.
const LOOKED_AT: usize = 256;

/// All held requests.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// In the order of arrival.
    waiting: BTreeMap<Ticket, Waiting>,
    bytes: u64,
    issued: u64,
}

/// One held request.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// When it came.
    pub(crate) since: Moment,
    /// It is bound then at the latest.
    until: Moment,
    bytes: u64,
    pub(crate) job: OwnJob,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether one more fits.
    pub(crate) fn has_room(&self, settings: &QueueSettings, bytes: u64) -> bool {
        self.waiting.len() < settings.max_entries && self.bytes.saturating_add(bytes) <= settings.max_bytes
    }

    /// Holds `job`, which says that it may wait.
    pub(crate) fn push(&mut self, now: Moment, job: &Job<'_>, patience: Patience) -> Ticket {
        self.issued += 1;
        let ticket = Ticket(self.issued);
        let since = Moment::at(now.since_start().saturating_sub(patience.waited));
        self.bytes = self.bytes.saturating_add(patience.bytes);
        let waiting = Waiting { since, until: now + patience.limit, bytes: patience.bytes, job: OwnJob::of(job) };
        self.waiting.insert(ticket, waiting);
        ticket
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Waiting> {
        let waiting = self.waiting.remove(&ticket)?;
        self.bytes = self.bytes.saturating_sub(waiting.bytes);
        Some(waiting)
    }

    /// When the first of the oldest is bound at the latest: one that waited elsewhere before may be due before its elders.
    pub(crate) fn first_overdue(&self) -> Option<Moment> {
        self.waiting.values().take(LOOKED_AT).map(|waiting| waiting.until).min()
    }

    /// The oldest, as many as may be looked at.
    pub(crate) fn oldest(&self) -> impl Iterator<Item = (Ticket, &Waiting)> {
        let mut left = PRICED;
        self.waiting.iter().take(LOOKED_AT).enumerate().map_while(move |(place, (ticket, waiting))| {
            let priced = left.checked_sub(waiting.job.candidates.len());
            left = priced.unwrap_or(0);
            (place == 0 || priced.is_some()).then_some((*ticket, waiting))
        })
    }
}

impl Waiting {
    /// Whether it has waited as long as it may.
    pub(crate) fn is_overdue(&self, now: Moment) -> bool {
        now >= self.until
    }

    /// Its place in the order, given what computing it takes.
    pub(crate) fn place(&self, now: Moment, settings: &QueueSettings, prefill_ms: f64) -> Place {
        Place {
            overdue: self.is_overdue(now).then_some(self.since),
            priority: self.job.overrides.priority,
            key_ms: prefill_ms - settings.ageing * now.ms_since(self.since),
        }
    }
}

/// Milliseconds that one step of priority makes up for in an engine's queue: at the default ageing those of two months.
const PRIORITY_MS: f64 = 1e9;

/// The same order as one number for an engine that compares it with those of all others it has: who came later has
/// waited less, and goes on having waited less.
pub(crate) fn turn(priority: i32, since: Moment, settings: &QueueSettings, prefill_ms: f64) -> i64 {
    let ms = prefill_ms + settings.ageing * since.since_start().as_secs_f64() * 1e3 - PRIORITY_MS * f64::from(priority);
    // A float's cast ends at the ends of the range.
    #[allow(clippy::cast_possible_truncation, reason = "milliseconds are exact enough")]
    let turn = ms as i64;
    turn
}

/// A request's place in the order: the lesser goes first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Place {
    overdue: Option<Moment>,
    priority: i32,
    key_ms: f64,
}

impl Place {
    pub(crate) fn goes_before(&self, other: &Self) -> bool {
        let overdue = match (self.overdue, other.overdue) {
            (Some(one), Some(other)) => one.cmp(&other),
            (one, other) => other.is_some().cmp(&one.is_some()),
        };
        let order = overdue.then(other.priority.cmp(&self.priority)).then(self.key_ms.total_cmp(&other.key_ms));
        order == Ordering::Less
    }
}

/// How long a job may be held, and what that keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// From now on. After that it is bound, whatever its target has to compute before it.
    pub limit: Duration,
    /// What it has waited already.
    pub waited: Duration,
    /// Bytes that are kept for it while it waits.
    pub bytes: u64,
}

/// A job that outlives its caller.
#[derive(Debug)]
pub(crate) struct OwnJob {
    policy: Option<Policy>,
    blocks: Option<Arc<PromptBlocks>>,
    affinity: Affinity,
    session: Option<Arc<SessionKeys>>,
    prefix_holders: Option<Vec<PrefixHolder>>,
    prompt_tokens: u32,
    expected_output_tokens: Option<u32>,
    answer: Answer,
    candidates: Vec<Candidate>,
    excluded: Vec<Excluded>,
    random: u64,
    overrides: Overrides,
}

impl OwnJob {
    fn of(job: &Job<'_>) -> Self {
        Self {
            policy: job.policy,
            blocks: job.blocks.cloned(),
            affinity: job.affinity,
            session: job.session.cloned(),
            prefix_holders: job.prefix_holders.map(<[_]>::to_vec),
            prompt_tokens: job.prompt_tokens,
            expected_output_tokens: job.expected_output_tokens,
            answer: job.answer,
            candidates: job.candidates.to_vec(),
            excluded: job.excluded.to_vec(),
            random: job.random,
            overrides: job.overrides,
        }
    }

    /// As it was asked, but that it does not wait again.
    pub(crate) fn job(&self) -> Job<'_> {
        Job {
            policy: self.policy,
            // Who asks for a worker by name is not held.
            pin: None,
            blocks: self.blocks.as_ref(),
            affinity: self.affinity,
            session: self.session.as_ref(),
            prefix_holders: self.prefix_holders.as_deref(),
            prompt_tokens: self.prompt_tokens,
            expected_output_tokens: self.expected_output_tokens,
            answer: self.answer,
            patience: None,
            candidates: &self.candidates,
            excluded: &self.excluded,
            // One with two pools is not held either.
            prefill: None,
            random: self.random,
            overrides: self.overrides,
            stopwatch: &NoStopwatch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_told_the_order_that_the_queue_keeps_whenever_it_is_told() {
        let settings = QueueSettings::default();
        let told =
            |priority, at_s, prefill_ms| turn(priority, Moment::at(Duration::from_secs(at_s)), &settings, prefill_ms);
        assert!(told(0, 10, 20.0) < told(0, 10, 300.0), "the shorter first");
        // Each second waited makes up for 200 ms.
        assert!(told(0, 10, 300.0) < told(0, 12, 20.0), "who has waited long enough first");
        assert!(told(0, 11, 20.0) < told(0, 10, 300.0));
        assert!(told(1, 1_000_000, 1e6) < told(0, 0, 0.0), "priority before all");
        assert!(told(-1, 0, 0.0) > told(0, 1_000_000, 1e6));
    }
}
