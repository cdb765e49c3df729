//! The sessions of one process, for a later one.

use kv_blocks::{DpRank, Moment, Target, WorkerId};
use serde::{Deserialize, Serialize};

use super::{PromptTail, SessionEntry, SessionTable};

/// Parts in which sessions are copied.
pub(crate) const SESSION_PARTS: u64 = 16;

/// One key of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LearnedSession {
    key: u64,
    /// The session's first key.
    id: u64,
    worker: u32,
    rank: u32,
    /// Length and hash of the bytes that must follow.
    rest: Option<(u64, u64)>,
    /// Time since its last request.
    idle_ms: u64,
}

impl LearnedSession {
    pub(crate) fn worker(&self) -> WorkerId {
        WorkerId(self.worker)
    }

    fn of(now: Moment, key: u64, entry: &SessionEntry) -> Self {
        Self {
            key,
            id: entry.id,
            worker: entry.target.worker.0,
            rank: entry.target.rank.0,
            rest: entry.rest.map(|rest| (rest.bytes as u64, rest.hash)),
            idle_ms: u64::try_from(now.since(entry.used).as_millis()).unwrap_or(u64::MAX),
        }
    }

    fn entry(&self, now: Moment) -> SessionEntry {
        SessionEntry {
            target: Target {
                worker: WorkerId(self.worker),
                rank: DpRank(self.rank),
            },
            id: self.id,
            rest: self.rest.map(|(bytes, hash)| PromptTail {
                bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
                hash,
            }),
            used: now,
        }
    }
}

impl SessionTable {
    /// Returns one of [`SESSION_PARTS`] parts of the sessions that are still of use.
    pub(crate) fn learned(&self, now: Moment, part: u64) -> Vec<LearnedSession> {
        let entries = self.young.iter().chain(&self.old);
        let of_part = entries.filter(|(key, entry)| {
            *key % SESSION_PARTS == part && now.since(entry.used) < Self::IDLE
        });
        of_part
            .map(|(key, entry)| LearnedSession::of(now, *key, entry))
            .collect()
    }

    /// Replaces the sessions, by the latest ones if there are more than fit. All count as used now:
    /// the clock of a new process knows no earlier time.
    pub(crate) fn restore(&mut self, now: Moment, mut sessions: Vec<LearnedSession>) {
        *self = Self::default();
        sessions.sort_unstable_by_key(|session| session.idle_ms);
        for session in sessions.into_iter().take(Self::MOST) {
            let generation = if self.young.len() < Self::MOST / 2 - 1 {
                &mut self.young
            } else {
                &mut self.old
            };
            generation.insert(session.key, session.entry(now));
        }
    }
}
