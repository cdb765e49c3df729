//! Sessions: requests that belong together, and the target that has their past.
//!
//! A request is recognised by the name that its client gives its session, or by growth: its messages begin with all
//! messages of an earlier request, and go on with a reply. Both come in as hashes; nothing here reads headers or bodies. A
//! session is where its last request went.
//!
//! **Invariant**: the book is changed where load is counted and when a worker is forgotten, never by looking, and holds
//! no more than [`SessionBook::MOST`] entries.

mod growth;

use std::{collections::HashMap, mem, time::Duration};

use kv_blocks::{Moment, Target, WorkerId};

pub use self::growth::PromptGrowth;

use self::growth::PromptTail;
use crate::{
    Pin, Policy,
    policy::{CandidateCost, PolicyCandidate},
};

/// How much a session counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SessionMode {
    /// Nothing is remembered.
    Off,
    /// Under `warm` it settles what costs about the same.
    #[default]
    Soft,
    /// A session goes to its target whatever the policy, unless that cannot be used or holds too much.
    Hard,
}

impl SessionMode {
    /// What it is under this policy: only under `warm` are costs times, of which some are about the same.
    pub(crate) fn effective_under(self, policy: Policy) -> Self {
        if self == Self::Soft && policy != Policy::Warm {
            Self::Off
        } else {
            self
        }
    }
}

/// By what a request's session is recognised. Equal keys are one session: the caller mixes in whatever keeps sessions
/// apart, such as the model and the salt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionKeys {
    /// Hash of the name that its client gave it.
    pub name: Option<u64>,
    /// What it may have grown out of, and what may grow out of it.
    pub growth: Option<PromptGrowth>,
}

/// What became of a session in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionNote {
    /// Its first key: the same in every request of it.
    pub id: u64,
    /// Where it went.
    pub state: SessionState,
}

/// Where a session went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// Nothing was known of it.
    New,
    /// To its target.
    Kept,
    /// Elsewhere: its target holds too many requests.
    MovedFull,
    /// Elsewhere: its target is no candidate.
    MovedGone,
    /// Elsewhere: the policy chose so.
    MovedByPolicy,
    /// Elsewhere: the request asked for another worker by name.
    MovedByPin,
}

/// Where a session was last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionBinding {
    pub(crate) target: Target,
    /// The session's first key.
    pub(crate) id: u64,
    /// What has to stand behind the key for a request to have grown out of it.
    rest: Option<PromptTail>,
    used: Moment,
}

/// Every session's last target, in two generations: what is used moves to the young one, and when that is half of what
/// may be kept the old one is forgotten.
#[derive(Debug, Default)]
pub(crate) struct SessionTable {
    young: HashMap<u64, SessionBinding>,
    old: HashMap<u64, SessionBinding>,
}

impl SessionTable {
    /// Most keys remembered: some 6 MB, and half an hour of 18 new turns a second.
    pub(crate) const MOST: usize = 65_536;
    /// A session that was idle for so long has most likely nothing left in any cache.
    const IDLE: Duration = Duration::from_secs(30 * 60);

    /// Where the session of `keys` was. A name decides alone.
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

    /// The session of `keys` is on `target` from now on.
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

    /// Keys remembered.
    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

/// Contenders as a policy has put them, the cheapest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranking<'a, 'c> {
    pub(crate) candidates: &'a [PolicyCandidate<'c>],
    pub(crate) prices: &'a [CandidateCost],
    pub(crate) order: &'a [usize],
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

/// What a decision means for a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionOutcome {
    pub(crate) note: SessionNote,
    /// The request goes where its session is, whatever the policy says.
    pub(crate) decided: bool,
}

impl SessionOutcome {
    /// Of the session of `keys`, found as `found`, where a policy has put the contenders in `line` and chosen the one at
    /// `place`; moves `place` where the session counts for more. `None`: there is nothing to recognise it by.
    pub(crate) fn of(
        (keys, found): (&SessionKeys, Option<SessionBinding>),
        mode: SessionMode,
        pin: Option<Pin>,
        line: Ranking<'_, '_>,
        place: &mut usize,
    ) -> Option<Self> {
        let id = keys
            .name
            .or(found.map(|found| found.id))
            .or(keys.growth.as_ref().map(|growth| growth.insert_key().0))?;
        let course = |state, decided| {
            Some(Self {
                note: SessionNote { id, state },
                decided,
            })
        };
        let Some(found) = found else {
            return course(SessionState::New, false);
        };
        let home = (0..line.len()).find(|place| line.contender(*place).target() == found.target);
        if pin.is_some() {
            let state = if home == Some(*place) {
                SessionState::Kept
            } else {
                SessionState::MovedByPin
            };
            return course(state, false);
        }
        let Some(home) = home else {
            return course(SessionState::MovedGone, false);
        };
        if mode == SessionMode::Hard {
            let most = holds_at_most(line);
            let has_room = |contender: &PolicyCandidate<'_>| {
                f64::from(contender.state.load.in_flight) + 1.0 <= most
            };
            if has_room(line.contender(home)) {
                *place = home;
                return course(SessionState::Kept, true);
            }
            // The policy chooses anew, among those that are not full either: or two of them would take turns.
            if !has_room(line.contender(*place)) {
                *place = (0..line.len())
                    .find(|place| has_room(line.contender(*place)))
                    .unwrap_or(*place);
            }
            return course(
                if *place == home {
                    SessionState::Kept
                } else {
                    SessionState::MovedFull
                },
                false,
            );
        }
        let (chosen, cost) = (*place, line.cost(*place));
        if line.cost(home) - cost > ABOUT_EQUAL * cost.abs() {
            return course(SessionState::MovedByPolicy, false);
        }
        *place = home;
        course(SessionState::Kept, chosen != home)
    }
}

/// Costs that differ by so much of the lower one say nothing against a soft session's target: with whole views that cost no
/// workload in the simulator more than 0.2 %, where a twentieth cost `agents` 4 %.
const ABOUT_EQUAL: f64 = 0.005;

/// Requests that a target may hold with one more of a session that is bound to it: a quarter above the mean, as in
/// consistent hashing with bounded loads, so that under load none gets farther ahead of the others. Few are no load to an
/// engine that batches, whatever the mean is: a session that left over them would lose its cache for nothing. In the
/// simulator, under `warm` at load 0.55, floors of 8 and 16 cost 22 to 148 % of time to first token, this one 2 to 17 %.
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
