//! Sessions: requests that belong together, and the target that holds their history.
//!
//! A request is matched by the name that its client gives its session, or by growth: its messages
//! begin with all messages of an earlier request and continue with a reply. Both are hashes; this
//! module reads no headers or bodies. A session is bound to the target of its last request.
//!
//! **Invariant**: the table changes where load is counted and when a worker is forgotten, never in
//! a lookup, and holds at most [`SessionTable::MOST`] entries.

mod growth;
mod keys;

use std::{collections::HashMap, mem, time::Duration};

use kv_blocks::{Moment, Target, WorkerId};

pub use self::{
    growth::PromptGrowth,
    keys::{SessionKeys, SessionNote, SessionState},
};

use self::growth::PromptTail;
use crate::{
    Pin, Policy, SessionMode,
    policy::{CandidateCost, PolicyCandidate},
};

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

/// The last target of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionBinding {
    pub(crate) target: Target,
    /// The session's first key.
    pub(crate) id: u64,
    /// The bytes that must follow the key's beginning in a request that continues this one.
    rest: Option<PromptTail>,
    used: Moment,
}

/// The last target of every session, in two generations: used entries move to the young one, and
/// when that reaches half of the limit the old one is dropped.
#[derive(Debug, Default)]
pub(crate) struct SessionTable {
    young: HashMap<u64, SessionBinding>,
    old: HashMap<u64, SessionBinding>,
}

impl SessionTable {
    /// Most keys: some 6 MB, and half an hour of 18 new turns a second.
    pub(crate) const MOST: usize = 65_536;
    /// A session that was idle this long has most likely nothing left in any cache.
    const IDLE: Duration = Duration::from_secs(30 * 60);

    /// Returns the binding of the session of `keys`. A name decides alone.
    pub(crate) fn find(&self, now: Moment, keys: &SessionKeys) -> Option<SessionBinding> {
        let known = |key: u64| {
            let bond = self.young.get(&key).or_else(|| self.old.get(&key))?;
            (now.since(bond.used) < Self::IDLE).then_some(*bond)
        };
        if let Some(name) = keys.name {
            return known(name);
        }
        let growth = keys.growth.as_ref()?;
        let is_before = |place, bond: &SessionBinding| {
            bond.rest.is_some_and(|rest| growth.has_behind(place, rest))
        };
        growth
            .lookup_keys()
            .find_map(|(place, key)| known(key).filter(|bond| is_before(place, bond)))
    }

    /// Binds the session of `keys` to `target`.
    pub(crate) fn bind(
        &mut self,
        now: Moment,
        keys: &SessionKeys,
        course: SessionOutcome,
        target: Target,
    ) {
        let name = keys.name.map(|key| (key, None));
        let growth = keys
            .growth
            .as_ref()
            .map(PromptGrowth::insert_key)
            .map(|(key, rest)| (key, Some(rest)));
        for (key, rest) in [name, growth].into_iter().flatten() {
            if self.young.len() >= Self::MOST / 2 && !self.young.contains_key(&key) {
                self.old = mem::take(&mut self.young);
            }
            self.old.remove(&key);
            self.young.insert(
                key,
                SessionBinding {
                    target,
                    id: course.note.id,
                    rest,
                    used: now,
                },
            );
        }
    }

    pub(crate) fn forget(&mut self, worker: WorkerId) {
        for generation in [&mut self.young, &mut self.old] {
            generation.retain(|_, bond| bond.target.worker != worker);
        }
    }

    /// Returns the number of keys.
    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

/// Candidates in a policy's order, cheapest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranking<'a, 'c> {
    pub(crate) candidates: &'a [PolicyCandidate<'c>],
    pub(crate) prices: &'a [CandidateCost],
    pub(crate) order: &'a [usize],
    /// The place of the candidate that the policy chose.
    pub(crate) chosen: usize,
}

impl<'a, 'c> Ranking<'a, 'c> {
    fn len(self) -> usize {
        self.order.len()
    }

    fn contender(self, place: usize) -> &'a PolicyCandidate<'c> {
        &self.candidates[self.order[place]]
    }

    fn cost(self, place: usize) -> f64 {
        self.prices[self.order[place]].cost
    }
}

/// A session, and its binding if there is one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownSession<'a> {
    pub(crate) keys: &'a SessionKeys,
    pub(crate) binding: Option<SessionBinding>,
}

/// The effect of a decision on a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionOutcome {
    pub(crate) note: SessionNote,
    /// The session chose the target, whatever the policy says.
    pub(crate) decided: bool,
}

impl SessionOutcome {
    /// Decides for a session after a policy has ordered the candidates in `line`; returns the
    /// place of the chosen candidate, too. `None`: there is no key.
    pub(crate) fn of(
        session: KnownSession<'_>,
        mode: SessionMode,
        pin: Option<Pin>,
        line: Ranking<'_, '_>,
    ) -> Option<(Self, usize)> {
        let KnownSession { keys, binding } = session;
        let id = keys
            .name
            .or(binding.map(|found| found.id))
            .or(keys.growth.as_ref().map(|growth| growth.insert_key().0))?;
        let unbound = |state| SessionPlacement {
            place: line.chosen,
            state,
            decided: false,
        };
        let home = binding.and_then(|found| {
            (0..line.len()).find(|place| line.contender(*place).target() == found.target)
        });
        let placement = match home {
            _ if binding.is_none() => unbound(SessionState::New),
            Some(home) if pin.is_some() && home == line.chosen => unbound(SessionState::Kept),
            _ if pin.is_some() => unbound(SessionState::MovedByPin),
            None => unbound(SessionState::MovedGone),
            Some(home) if mode == SessionMode::Hard => SessionPlacement::hard(line, home),
            Some(home) => SessionPlacement::soft(line, home),
        };
        let SessionPlacement {
            place,
            state,
            decided,
        } = placement;
        let note = SessionNote { id, state };
        Some((Self { note, decided }, place))
    }
}

/// The place of a session's request among the candidates.
struct SessionPlacement {
    place: usize,
    state: SessionState,
    /// As in [`SessionOutcome::decided`].
    decided: bool,
}

impl SessionPlacement {
    /// Places a request whose session stays on its target, the candidate at `home`, while that has
    /// room.
    fn hard(line: Ranking<'_, '_>, home: usize) -> Self {
        let most = holds_at_most(line);
        let has_room =
            |place: usize| f64::from(line.contender(place).state.load.in_flight) + 1.0 <= most;
        if has_room(home) {
            return Self {
                place: home,
                state: SessionState::Kept,
                decided: true,
            };
        }
        // The policy chooses again, among targets that have room too; otherwise two full ones
        // would alternate.
        let place = if has_room(line.chosen) {
            line.chosen
        } else {
            (0..line.len())
                .find(|place| has_room(*place))
                .unwrap_or(line.chosen)
        };
        Self {
            place,
            state: if place == home {
                SessionState::Kept
            } else {
                SessionState::MovedFull
            },
            decided: false,
        }
    }

    /// Places a request whose session stays on its target where that costs about the same.
    fn soft(line: Ranking<'_, '_>, home: usize) -> Self {
        let cost = line.cost(line.chosen);
        if line.cost(home) - cost > ABOUT_EQUAL * cost.abs() {
            return Self {
                place: line.chosen,
                state: SessionState::MovedByPolicy,
                decided: false,
            };
        }
        Self {
            place: home,
            state: SessionState::Kept,
            decided: line.chosen != home,
        }
    }
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
fn holds_at_most(line: Ranking<'_, '_>) -> f64 {
    const FREELY: f64 = 64.0;
    const OVER_MEAN: f64 = 1.25;
    let in_flight: f64 = line
        .candidates
        .iter()
        .map(|contender| f64::from(contender.state.load.in_flight))
        .sum();
    (OVER_MEAN * (in_flight + 1.0) / line.len() as f64)
        .ceil()
        .max(FREELY)
}
