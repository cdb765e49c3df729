//! Which replica publishes which stream.
//!
//! Each replica renews one presence key, which expires; each stream has a key that names its owner.
//! A stream belongs to its owner while the owner is present and able to publish. Every replica sees
//! all keys and decides for itself; writes name the revision that they replace, so of several
//! claims one succeeds. Two owners for a moment, whose views differ, are harmless: what both
//! publish has the same id and is stored once.
//!
//! A free stream is claimed first by the replica that stands first in an order that differs from
//! stream to stream, then by the others, after a pause for each place. A replica that owns more
//! than its share releases some, one at a time.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use kv_blocks::Moment;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Time without a renewal after which a replica counts as gone.
pub(crate) const PRESENCE_TTL: Duration = Duration::from_millis(1_500);
/// Interval of renewals.
pub(crate) const RENEWAL: Duration = Duration::from_millis(500);
/// Pause before a claim for each replica that stands in front.
const PLACE: Duration = Duration::from_millis(150);
/// Most places that a replica waits for.
const MAX_PLACES: u32 = 2;
/// Time for which a follower of a stream without an owner waits for the next one.
const TAKEOVER: Duration = Duration::from_secs(1);
/// Time without a claim after a release, or after the engine could not be followed.
const REST: Duration = Duration::from_secs(5);
/// Time after which a claim without an answer may be repeated.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of releases, and the time that all replicas must have been present for before one.
const BALANCE: Duration = Duration::from_secs(10);

/// What a replica does with one worker's stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamRole {
    /// Follows the engine; nobody is known to publish the stream.
    #[default]
    Alone,
    /// Follows the engine and publishes.
    Owner,
    /// Follows the log.
    Follower,
}

/// The state of a replica as it tells the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Presence {
    /// Whether it can publish.
    pub(crate) able: bool,
    /// The last message of the log that it has taken.
    pub(crate) acknowledged: u64,
}

/// A write to the keys of owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OwnershipWrite {
    /// Write this replica as the owner, in place of this revision; 0: there is no key.
    Claim { token: Arc<str>, revision: u64 },
    /// Delete the key.
    Release { token: Arc<str>, revision: u64 },
}

#[derive(Debug)]
struct KnownReplica {
    presence: Presence,
    seen: Moment,
    since: Moment,
}

#[derive(Debug, Default)]
struct KnownStream {
    owner: Option<Arc<str>>,
    /// Revision of the last write or deletion of its key.
    revision: u64,
    /// Whether this replica follows the worker.
    joined: bool,
    /// When this replica saw first that nobody publishes it.
    vacant_since: Option<Moment>,
    /// Whether a present owner was ever seen, whose successor is worth waiting for.
    was_owned: bool,
    claimed_at: Option<Moment>,
    /// Until then it is not claimed.
    rest_until: Option<Moment>,
}

/// The streams and replicas as one replica sees them.
#[derive(Debug)]
pub(crate) struct Ownership {
    me: Arc<str>,
    replicas: BTreeMap<Arc<str>, KnownReplica>,
    streams: HashMap<Arc<str>, KnownStream>,
    balanced_at: Moment,
}

impl Ownership {
    pub(crate) fn new(me: Arc<str>) -> Self {
        Self {
            me,
            replicas: BTreeMap::new(),
            streams: HashMap::new(),
            balanced_at: Moment::START,
        }
    }

    /// Forgets what the connection brought; the joined streams stay.
    pub(crate) fn disconnected(&mut self) {
        self.replicas.clear();
        self.streams.retain(|_, stream| stream.joined);
        for stream in self.streams.values_mut() {
            *stream = KnownStream {
                joined: true,
                ..KnownStream::default()
            };
        }
    }

    pub(crate) fn join(&mut self, token: Arc<str>) {
        self.streams.entry(token).or_default().joined = true;
    }

    /// Leaves a stream; returns the write that frees it.
    pub(crate) fn leave(&mut self, token: &Arc<str>) -> Option<OwnershipWrite> {
        let stream = self.streams.get_mut(token)?;
        stream.joined = false;
        self.release(token)
    }

    /// Records that this replica cannot follow the engine; returns the write that frees the stream.
    pub(crate) fn unable(&mut self, now: Moment, token: &Arc<str>) -> Option<OwnershipWrite> {
        let stream = self.streams.get_mut(token)?;
        stream.rest_until = Some(now + REST);
        self.release(token)
    }

    fn release(&self, token: &Arc<str>) -> Option<OwnershipWrite> {
        let stream = self.streams.get(token)?;
        (stream.owner.as_ref() == Some(&self.me)).then(|| OwnershipWrite::Release {
            token: Arc::clone(token),
            revision: stream.revision,
        })
    }

    /// Records a renewal.
    pub(crate) fn present(&mut self, now: Moment, replica: Arc<str>, presence: Presence) {
        let known = self.replicas.entry(replica).or_insert(KnownReplica {
            presence,
            seen: now,
            since: now,
        });
        known.presence = presence;
        known.seen = now;
    }

    /// Records a farewell.
    pub(crate) fn gone(&mut self, replica: &str) {
        self.replicas.remove(replica);
    }

    /// Records the owner of a stream, or that its key was deleted.
    pub(crate) fn owned(&mut self, token: Arc<str>, owner: Option<Arc<str>>, revision: u64) {
        let stream = self.streams.entry(token).or_default();
        // The answer to a claim may come before or after the watch reports it.
        if revision >= stream.revision {
            stream.owner = owner;
            stream.revision = revision;
            stream.claimed_at = None;
        }
    }

    /// Records the answer to a claim that failed.
    pub(crate) fn claim_failed(&mut self, token: &str) {
        if let Some(stream) = self.streams.get_mut(token) {
            stream.claimed_at = None;
        }
    }

    fn is_live(&self, now: Moment, replica: &str) -> bool {
        self.replicas
            .get(replica)
            .is_some_and(|known| known.presence.able && now.since(known.seen) < PRESENCE_TTL)
    }

    /// Returns the replicas that are present, whether or not they can publish.
    pub(crate) fn present_replicas(
        &self,
        now: Moment,
    ) -> impl Iterator<Item = (&Arc<str>, Presence)> {
        self.replicas
            .iter()
            .filter(move |(_, known)| now.since(known.seen) < PRESENCE_TTL)
            .map(|(replica, known)| (replica, known.presence))
    }

    /// Returns what this replica does with a stream now.
    pub(crate) fn role(&self, now: Moment, token: &str) -> StreamRole {
        let Some(stream) = self.streams.get(token) else {
            return StreamRole::Alone;
        };
        match &stream.owner {
            Some(owner) if self.is_live(now, owner) && *owner == self.me => StreamRole::Owner,
            Some(owner) if self.is_live(now, owner) => StreamRole::Follower,
            _ if stream.was_owned
                && stream.owner.as_ref() != Some(&self.me)
                && stream
                    .vacant_since
                    .is_none_or(|since| now.since(since) < TAKEOVER) =>
            {
                StreamRole::Follower
            }
            _ => StreamRole::Alone,
        }
    }

    /// Returns the owner of a stream.
    pub(crate) fn owner(&self, token: &str) -> Option<&Arc<str>> {
        self.streams.get(token)?.owner.as_ref()
    }

    /// Returns the writes that are due. `chance`, from 0 to 1, spreads claims.
    pub(crate) fn tick(&mut self, now: Moment, chance: f64) -> Vec<OwnershipWrite> {
        let live: Vec<Arc<str>> = self
            .replicas
            .keys()
            .filter(|replica| self.is_live(now, replica))
            .cloned()
            .collect();
        self.replicas
            .retain(|_, known| now.since(known.seen) < PRESENCE_TTL);
        let mut writes = Vec::new();
        for (token, stream) in &mut self.streams {
            let is_owned = stream
                .owner
                .as_ref()
                .is_some_and(|owner| live.contains(owner));
            if is_owned {
                stream.was_owned = true;
                stream.vacant_since = None;
                continue;
            }
            let since = *stream.vacant_since.get_or_insert(now);
            if now.since(since) >= TAKEOVER {
                stream.was_owned = false;
            }
            let rests = stream.rest_until.is_some_and(|until| now < until);
            let waits = stream
                .claimed_at
                .is_some_and(|at| now.since(at) < CLAIM_TIMEOUT);
            if !stream.joined || rests || waits || !live.contains(&self.me) {
                continue;
            }
            let place = place(token, &self.me, &live).min(MAX_PLACES);
            let pause = (PLACE * place).mul_f64(1.0 + chance / 2.0);
            if now.since(since) >= pause {
                stream.claimed_at = Some(now);
                writes.push(OwnershipWrite::Claim {
                    token: Arc::clone(token),
                    revision: stream.revision,
                });
            }
        }
        writes.extend(self.balance(now, &live));
        writes
    }

    /// Releases one stream if this replica owns more than its share.
    fn balance(&mut self, now: Moment, live: &[Arc<str>]) -> Option<OwnershipWrite> {
        let is_settled = self
            .replicas
            .values()
            .all(|known| now.since(known.since) >= BALANCE);
        if live.len() < 2 || !is_settled || now.since(self.balanced_at) < BALANCE / 10 {
            return None;
        }
        let mut mine = Vec::new();
        let mut all = 0_usize;
        for (token, stream) in &self.streams {
            match &stream.owner {
                Some(owner) if *owner == self.me && stream.joined => mine.push(token),
                Some(owner) if live.contains(owner) => {}
                _ => continue,
            }
            all += 1;
        }
        if mine.len() <= all.div_ceil(live.len()) {
            return None;
        }
        // Another replica is in front for it, or it would come back.
        let released = mine
            .into_iter()
            .filter(|token| place(token, &self.me, live) > 0)
            .filter(|token| {
                let rest = self.streams[*token].rest_until;
                rest.is_none_or(|until| now.since(until) >= BALANCE * 6)
            })
            .min()
            .cloned()?;
        self.balanced_at = now;
        self.unable(now, &released)
    }
}

/// Returns how many live replicas stand before this one in the order of the stream.
fn place(token: &str, me: &str, live: &[Arc<str>]) -> u32 {
    let weight = |replica: &str| {
        let seed = xxh3_64_with_seed(token.as_bytes(), 0);
        (
            xxh3_64_with_seed(replica.as_bytes(), seed),
            replica.to_owned(),
        )
    };
    let own = weight(me);
    let before = live.iter().filter(|replica| weight(replica) > own).count();
    u32::try_from(before).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
