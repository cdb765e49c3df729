//! Sessions: requests that belong together, and the target that holds their history.
//!
//! A request is matched by the name that its client gives its session, or by growth: its messages
//! begin with all messages of an earlier request and continue with a reply. Both are hashes; this
//! module reads no headers or bodies. A session is bound to the target of its last request.
//!
//! **Invariant**: the table changes where load is counted and when a worker is forgotten, never in
//! a lookup, and holds at most [`SessionTable::MOST`] entries.

mod growth;
mod learned;

use std::{collections::HashMap, mem, time::Duration};

use kv_blocks::{Moment, Target, WorkerId};

pub use self::growth::{GrowingChat, PromptGrowth, PromptTail, SessionKeys};
pub(crate) use self::learned::{LearnedSession, SESSION_PARTS};
use crate::{Job, Policy, SessionMode, SessionNote, SessionState, choice::Choice};

impl SessionMode {
    /// Returns the effect under this policy: costs are times only under `warm`, so only there can
    /// they be about equal.
    pub(crate) fn effective_under(self, policy: Policy) -> Self {
        if self == Self::Soft && policy != Policy::Warm {
            Self::Off
        } else {
            self
        }
    }
}

/// The keys by which the next request of a session is recognised, and the session's target. The
/// keys are equal in all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionBinding {
    /// The session's first key.
    pub id: u64,
    /// Its target.
    pub target: Target,
    /// Hash of the name that the client gave the session.
    pub name: Option<u64>,
    /// Hash of the whole request, less its rest, and the rest.
    pub growth: Option<(u64, PromptTail)>,
}

impl SessionKeys {
    /// Returns the binding of a session with these keys, whose first key is `id`, to `target`.
    pub(crate) fn binding(&self, id: u64, target: Target) -> SessionBinding {
        SessionBinding {
            id,
            target,
            name: self.name,
            growth: self.growth.as_ref().map(PromptGrowth::insert_key),
        }
    }
}

/// The last target of a session, by one of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SessionEntry {
    target: Target,
    /// The session's first key.
    id: u64,
    /// The bytes that must follow the key's beginning in a request that continues this one.
    rest: Option<PromptTail>,
    used: Moment,
}

/// The last target of every session, in two generations: used entries move to the young one, and
/// when that reaches half of the limit the old one is dropped.
#[derive(Debug, Default)]
pub(crate) struct SessionTable {
    young: HashMap<u64, SessionEntry>,
    old: HashMap<u64, SessionEntry>,
}

impl SessionTable {
    /// Most keys: some 6 MB, and half an hour of 18 new turns a second.
    pub(crate) const MOST: usize = 65_536;
    /// A session that was idle this long has most likely nothing left in any cache.
    const IDLE: Duration = Duration::from_secs(30 * 60);

    /// Returns the binding of the session of `keys`. A name decides alone.
    fn find(&self, now: Moment, keys: &SessionKeys) -> Option<SessionEntry> {
        let known = |key: u64| {
            let binding = self.young.get(&key).or_else(|| self.old.get(&key))?;
            (now.since(binding.used) < Self::IDLE).then_some(*binding)
        };
        if let Some(name) = keys.name {
            return known(name);
        }
        let growth = keys.growth.as_ref()?;
        let is_before = |position, binding: &SessionEntry| {
            binding
                .rest
                .is_some_and(|rest| growth.has_tail_after(position, rest))
        };
        growth
            .lookup_keys()
            .find_map(|(position, key)| known(key).filter(|binding| is_before(position, binding)))
    }

    /// Moves the choice of a policy to the target that the request's session prefers, if it has one.
    pub(crate) fn apply(
        &self,
        now: Moment,
        job: &Job<'_>,
        mode: SessionMode,
        choice: &mut Choice<'_>,
    ) {
        let mode = mode.effective_under(choice.policy);
        let Some(keys) = job.affinity.session.filter(|_| mode != SessionMode::Off) else {
            return;
        };
        let binding = self.find(now, keys);
        let own = keys.growth.as_ref().map(|growth| growth.insert_key().0);
        let Some(id) = keys.name.or(binding.map(|found| found.id)).or(own) else {
            return;
        };
        let previous = binding.and_then(|found| {
            (0..choice.order.len())
                .find(|position| choice.candidate(*position).target() == found.target)
        });
        let by_policy = |state| (choice.position, state, false);
        let (position, state, decided) = match previous {
            _ if binding.is_none() => by_policy(SessionState::New),
            Some(previous) if job.pin.is_some() && previous == choice.position => {
                by_policy(SessionState::Same)
            }
            _ if job.pin.is_some() => by_policy(SessionState::MovedByPin),
            None => by_policy(SessionState::MovedGone),
            Some(previous) if mode == SessionMode::Hard => route_hard(choice, previous),
            Some(previous) => route_soft(choice, previous),
        };
        (choice.position, choice.by_session) = (position, decided);
        choice.session = Some(SessionNote { id, state });
        if state == SessionState::MovedFull {
            for price in &mut choice.prices {
                price.terms = price.terms.of_full_session();
            }
        }
    }

    /// Binds a session to its target.
    pub(crate) fn bind(&mut self, now: Moment, binding: &SessionBinding) {
        let SessionBinding { id, target, .. } = *binding;
        let name = binding.name.map(|key| (key, None));
        let growth = binding.growth.map(|(key, rest)| (key, Some(rest)));
        for (key, rest) in [name, growth].into_iter().flatten() {
            if self.young.len() >= Self::MOST / 2 && !self.young.contains_key(&key) {
                self.old = mem::take(&mut self.young);
            }
            self.old.remove(&key);
            self.young.insert(
                key,
                SessionEntry {
                    target,
                    id,
                    rest,
                    used: now,
                },
            );
        }
    }

    pub(crate) fn forget(&mut self, worker: WorkerId) {
        for generation in [&mut self.young, &mut self.old] {
            generation.retain(|_, binding| binding.target.worker != worker);
        }
    }

    /// Returns the number of keys.
    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

/// Routes a request whose session stays on its target, the candidate at `previous`, while that
/// has capacity. Returns the position, the session's state, and whether the session decided.
fn route_hard(choice: &Choice<'_>, previous: usize) -> (usize, SessionState, bool) {
    let most = max_requests(choice);
    let has_capacity =
        |position: usize| f64::from(choice.candidate(position).state.load.in_flight) + 1.0 <= most;
    if has_capacity(previous) {
        return (previous, SessionState::Same, true);
    }
    // The policy chooses again, among targets that have capacity too; otherwise two full ones would
    // alternate.
    let position = if has_capacity(choice.position) {
        choice.position
    } else {
        (0..choice.order.len())
            .find(|position| has_capacity(*position))
            .unwrap_or(choice.position)
    };
    if position == previous {
        (position, SessionState::Same, false)
    } else {
        (position, SessionState::MovedFull, false)
    }
}

/// Routes a request whose session stays on its target where that costs about the same; returns as
/// [`route_hard`].
fn route_soft(choice: &Choice<'_>, previous: usize) -> (usize, SessionState, bool) {
    let cost = choice.cost(choice.position);
    if choice.cost(previous) - cost > ABOUT_EQUAL * cost.abs() {
        return (choice.position, SessionState::MovedByPolicy, false);
    }
    (previous, SessionState::Same, choice.position != previous)
}

/// Costs that differ by at most this share of the lower one do not count against a soft session's
/// target. With complete views this cost no workload in the simulator more than 0.2 %, while a
/// twentieth cost `agents` 4 %.
const ABOUT_EQUAL: f64 = 0.005;

/// Returns how many requests a target may have with one more of a session bound to it: a quarter
/// above the mean, as in consistent hashing with bounded loads, so that under load no target gets
/// farther ahead of the others. A few requests are no load to an engine that batches, whatever the
/// mean is: a session that left because of them would lose its cache for nothing. In the simulator,
/// under `warm` at load 0.55, floors of 8 and 16 cost 22 to 148 % of time to first token, this one
/// 2 to 17 %.
fn max_requests(choice: &Choice<'_>) -> f64 {
    const FREELY: f64 = 64.0;
    const OVER_MEAN: f64 = 1.25;
    let in_flight: f64 = choice
        .input
        .candidates
        .iter()
        .map(|contender| f64::from(contender.state.load.in_flight))
        .sum();
    (OVER_MEAN * (in_flight + 1.0) / choice.order.len() as f64)
        .ceil()
        .max(FREELY)
}
