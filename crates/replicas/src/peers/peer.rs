//! One peer.

use std::time::Duration;

use kv_blocks::Moment;
use routing::{LoadDigest, PeerId};

use super::{IgnoredMessage, PeerAction, fetch::StateFetch};
use crate::wire::{ChainMemory, Changes, Presence};

/// State of a peer in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerState {
    /// Its whole load is being fetched for the first time.
    Joining,
    /// Its changes are applied as they come.
    Live,
    /// It has left, or was silent for too long.
    Lost,
    /// It has another version or other settings.
    Refused(IgnoredMessage),
}

impl PeerState {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Live => "live",
            Self::Lost => "lost",
            Self::Refused(_) => "refused",
        }
    }
}

/// One peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: u64,
    /// Its number in this process.
    pub(crate) number: PeerId,
    /// Its latest presence.
    pub(crate) presence: Presence,
    pub(crate) since: Moment,
    pub(crate) last_seen: Moment,
    pub(crate) refused: Option<IgnoredMessage>,
    /// Number of the next change to apply; `None`: its load was never fetched.
    next: Option<u64>,
    fetch: Option<StateFetch>,
    lost: bool,
    /// It was lost because it was silent, and may run on, out of reach.
    silent: bool,
    shares_load: bool,
    /// Chains that its messages may refer to.
    pub(crate) chains: ChainMemory,
    /// Fetches of its whole load after the first.
    pub(crate) repairs: u64,
}

impl Peer {
    pub(super) fn new(id: u64, number: PeerId, now: Moment) -> Self {
        Self {
            id,
            number,
            presence: Presence::default(),
            since: now,
            last_seen: now,
            refused: None,
            next: None,
            fetch: None,
            lost: false,
            silent: false,
            shares_load: false,
            chains: ChainMemory::default(),
            repairs: 0,
        }
    }

    /// Returns its state in reports.
    pub(crate) fn state(&self) -> PeerState {
        match self.refused {
            _ if self.lost => PeerState::Lost,
            Some(reason) => PeerState::Refused(reason),
            None if self.shares_load && self.next.is_none() => PeerState::Joining,
            None => PeerState::Live,
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Returns whether it may serve clients of the same tenants: one that is there, whatever version
    /// it has, or one that fell silent less than `kept` ago.
    pub(super) fn may_serve(&self, now: Moment, kept: Duration) -> bool {
        if self.lost {
            return self.silent && now.since(self.last_seen) < kept;
        }
        self.refused != Some(IgnoredMessage::Settings)
    }

    /// Loses it because it says that it ends.
    pub(super) fn leave(&mut self, actions: &mut Vec<PeerAction>) {
        self.silent = false;
        self.lose(actions);
    }

    /// Loses it because no message of it came.
    pub(super) fn lose_silent(&mut self, actions: &mut Vec<PeerAction>) {
        if !self.lost {
            self.silent = true;
            self.lose(actions);
        }
    }

    pub(super) fn seen(&mut self, now: Moment) {
        self.last_seen = self.last_seen.max(now);
    }

    pub(super) fn on_presence(
        &mut self,
        now: Moment,
        presence: Presence,
        shares_load: bool,
        believed: &impl Fn(PeerId) -> LoadDigest,
        actions: &mut Vec<PeerAction>,
    ) {
        if self.lost {
            (self.lost, self.silent, self.since) = (false, false, now);
            actions.push(PeerAction::Changed(self.number));
        }
        (self.refused, self.shares_load) = (None, shares_load);
        let last = presence.last_change;
        let digest = LoadDigest {
            open: presence.open,
            sum: presence.load_digest,
        };
        self.presence = presence;
        if !shares_load || self.fetch.is_some() {
            return;
        }
        let is_current = match self.next {
            None => false,
            // It overtook changes that are still to come, or those were lost.
            Some(next) if next <= last => false,
            // An older presence, which changes have overtaken.
            Some(next) if next > last + 1 => true,
            Some(_) => believed(self.number) == digest,
        };
        if !is_current {
            self.begin_fetch(actions);
        }
    }

    pub(super) fn on_changes(&mut self, changes: Changes, actions: &mut Vec<PeerAction>) {
        if self.lost || self.refused.is_some() || !self.shares_load {
            return;
        }
        if let Some(fetch) = &mut self.fetch {
            fetch.hold(changes);
            return;
        }
        match self.next {
            Some(next) if changes.first <= next => self.apply(changes, actions),
            _ => {
                self.begin_fetch(actions);
                if let Some(fetch) = &mut self.fetch {
                    fetch.hold(changes);
                }
            }
        }
    }

    pub(super) fn on_state(&mut self, as_of: u64, actions: &mut Vec<PeerAction>) {
        let Some(fetch) = self.fetch.take() else {
            return;
        };
        if self.lost || self.refused.is_some() {
            return;
        }
        self.next = Some(as_of + 1);
        for changes in fetch.into_held() {
            // Behind a hole the next presence shows the difference.
            if changes.first <= self.next.unwrap_or(0) {
                self.apply(changes, actions);
            }
        }
    }

    pub(super) fn on_fetch_failed(&mut self, now: Moment) {
        if let Some(fetch) = &mut self.fetch {
            fetch.fail(now);
        }
    }

    pub(super) fn tick(&mut self, now: Moment, actions: &mut Vec<PeerAction>) {
        if let Some(fetch) = &mut self.fetch
            && fetch.is_due(now)
        {
            actions.push(PeerAction::Fetch {
                peer: self.number,
                repairs: false,
            });
        }
    }

    /// Removes it and what it contributed.
    pub(super) fn lose(&mut self, actions: &mut Vec<PeerAction>) {
        if self.lost {
            return;
        }
        self.lost = true;
        self.discard(actions);
    }

    pub(super) fn refuse(&mut self, reason: IgnoredMessage, actions: &mut Vec<PeerAction>) {
        self.refused = Some(reason);
        (self.lost, self.silent) = (false, false);
        self.discard(actions);
    }

    fn discard(&mut self, actions: &mut Vec<PeerAction>) {
        (self.next, self.fetch) = (None, None);
        self.chains = ChainMemory::default();
        actions.push(PeerAction::Drop(self.number));
        actions.push(PeerAction::Changed(self.number));
    }

    fn apply(&mut self, changes: Changes, actions: &mut Vec<PeerAction>) {
        let next = self.next.unwrap_or(0);
        let end = changes.first.saturating_add(changes.changes.len() as u64);
        if end <= next {
            return;
        }
        self.next = Some(end);
        let skip = usize::try_from(next - changes.first).unwrap_or(usize::MAX);
        actions.push(PeerAction::Apply {
            peer: self.number,
            changes,
            skip,
        });
    }

    fn begin_fetch(&mut self, actions: &mut Vec<PeerAction>) {
        let repairs = self.next.is_some();
        self.repairs += u64::from(repairs);
        self.fetch = Some(StateFetch::default());
        actions.push(PeerAction::Fetch {
            peer: self.number,
            repairs,
        });
    }
}
