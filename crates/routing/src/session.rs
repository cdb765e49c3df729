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
mod placement;

use std::{collections::HashMap, mem, time::Duration};

use kv_blocks::{Moment, Target, WorkerId};

pub use self::{
    growth::PromptGrowth,
    keys::{SessionKeys, SessionNote, SessionState},
};

use self::growth::PromptTail;
pub(crate) use self::placement::{KnownSession, Ranking, SessionOutcome};
use crate::{Policy, SessionMode};

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
