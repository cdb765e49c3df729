//! The changes of peers, applied to this router.

use kv_blocks::{Moment, Target};
use kv_index::SpeculationId;

use super::change::{LoadChange, LoadDigest, LoadPage, OpenLoad, PeerId};
use crate::{
    ReleasedRequest, ReservationId, Router, SpeedSample, ledger::LoadSource, queue::QueueSettings,
    state::RouterState,
};

/// Most changes that are applied while the lock is held once.
pub(super) const MOST_PER_HOLD: usize = 32;

impl Router {
    /// Applies changes of a peer, in their order. Unknown and repeated ids are ignored. Returns
    /// queued requests that may start now.
    pub fn apply_peer_changes(
        &self,
        now: Moment,
        peer: PeerId,
        changes: Vec<LoadChange>,
    ) -> Vec<ReleasedRequest> {
        let mut changes = changes.into_iter();
        loop {
            let step: Vec<(LoadChange, SpeculationId)> = changes
                .by_ref()
                .take(MOST_PER_HOLD)
                .map(|change| {
                    let speculation = match &change {
                        LoadChange::Opened(load) => self.predict(now, load),
                        _ => SpeculationId::default(),
                    };
                    (change, speculation)
                })
                .collect();
            if step.is_empty() {
                break;
            }
            for speculation in self.apply_step(now, peer, step) {
                self.index.retract(speculation);
            }
        }
        self.release(now)
    }

    /// Applies changes under the lock; returns the speculations to be withdrawn from the index.
    fn apply_step(
        &self,
        now: Moment,
        peer: PeerId,
        step: Vec<(LoadChange, SpeculationId)>,
    ) -> Vec<SpeculationId> {
        let mut withdrawn = Vec::new();
        let queue = self.settings.load().queue;
        let state = &mut *self.state.lock();
        for (change, speculation) in step {
            match change {
                LoadChange::Opened(load) => {
                    state.open_of_peer(
                        now,
                        (peer, load),
                        (LoadSource::Announcement, speculation),
                        &queue,
                    );
                }
                LoadChange::FirstToken { id } => {
                    if let Some(target) = state.ledger.first_token_of_peer(now, peer, id) {
                        state.target_changed(now, target, &queue);
                    }
                }
                LoadChange::Closed {
                    id,
                    prompt_received,
                    succeeded,
                } => {
                    if !prompt_received {
                        state.ledger.discard_of_peer(peer, id);
                    }
                    let speculation = state.close_of_peer(now, (peer, id), succeeded, &queue);
                    withdrawn.extend(speculation.filter(|_| !prompt_received));
                }
                LoadChange::Sample(sample) => state.learn_from_peer(now, sample),
                LoadChange::Session(binding) => state.sessions.bind(now, &binding),
                LoadChange::ReplyLength(tokens) => state.output.observe(tokens),
            }
        }
        withdrawn
    }

    /// Announces to the index the blocks that a target without events will hold because of a peer's
    /// decision, as for an own one.
    fn predict(&self, now: Moment, load: &OpenLoad) -> SpeculationId {
        let predicted = load.load.predicted.as_ref();
        let Some((target, predicted)) = load.target.zip(predicted) else {
            return SpeculationId::default();
        };
        let ttl = self.settings.load().prediction_ttl;
        self.index
            .predict(target, &predicted.namespace, &predicted.chain, now, ttl)
    }

    /// Makes the open reservations of a peer in the page's range what the page lists. Returns
    /// queued requests that may start now.
    pub fn apply_peer_page(
        &self,
        now: Moment,
        peer: PeerId,
        page: LoadPage,
    ) -> Vec<ReleasedRequest> {
        let LoadPage {
            mut after,
            through,
            mut loads,
        } = page;
        loads.sort_unstable_by_key(|load| load.id);
        loads.retain(|load| load.id > after && through.is_none_or(|through| load.id <= through));
        let mut loads = loads.into_iter().peekable();
        loop {
            let step: Vec<(OpenLoad, SpeculationId)> = loads
                .by_ref()
                .take(MOST_PER_HOLD)
                .map(|load| {
                    let speculation = self.predict(now, &load);
                    (load, speculation)
                })
                .collect();
            let is_last = loads.peek().is_none();
            let end = step.last().map(|(load, _)| load.id);
            let end = if is_last { through } else { end };
            let listed: Vec<ReservationId> = step.iter().map(|(load, _)| load.id).collect();
            self.close_unlisted(now, peer, (after, end), &listed);
            {
                let queue = self.settings.load().queue;
                let state = &mut *self.state.lock();
                for (load, speculation) in step {
                    let entry = (LoadSource::Listing, speculation);
                    state.open_of_peer(now, (peer, load), entry, &queue);
                }
            }
            match end {
                Some(end) if !is_last => after = end,
                _ => break,
            }
        }
        self.release(now)
    }

    /// Closes the reservations of a peer in a range of ids that are not among `listed`, which is
    /// sorted.
    fn close_unlisted(
        &self,
        now: Moment,
        peer: PeerId,
        (mut after, through): (ReservationId, Option<ReservationId>),
        listed: &[ReservationId],
    ) {
        loop {
            let queue = self.settings.load().queue;
            let state = &mut *self.state.lock();
            let open = state
                .ledger
                .ids_of_peer(peer, (after, through), MOST_PER_HOLD);
            for id in &open {
                if listed.binary_search(id).is_err() {
                    state.close_of_peer(now, (peer, *id), None, &queue);
                }
            }
            match open.last() {
                Some(last) if open.len() == MOST_PER_HOLD => after = *last,
                _ => break,
            }
        }
    }

    /// Removes everything that a peer has open, as when it is dead. Returns queued requests that
    /// may start now.
    pub fn drop_peer(&self, now: Moment, peer: PeerId) -> Vec<ReleasedRequest> {
        self.close_unlisted(now, peer, (ReservationId::default(), None), &[]);
        self.state.lock().ledger.forget_peer(peer);
        self.release(now)
    }

    /// Returns the digest of what is known of a peer's open reservations; comparable with that of
    /// the peer's [`FeedState`](crate::FeedState) after the same changes.
    pub fn peer_load_digest(&self, peer: PeerId) -> LoadDigest {
        self.state.lock().ledger.peer_digest(peer)
    }
}

impl RouterState {
    fn learn_from_peer(&mut self, now: Moment, mut sample: SpeedSample) {
        if !self.rates.needs_sample(now, sample.worker) {
            sample.prefill = None;
        }
        self.learn(now, sample);
    }

    fn open_of_peer(
        &mut self,
        now: Moment,
        (peer, load): (PeerId, OpenLoad),
        entry: (LoadSource, SpeculationId),
        queue: &QueueSettings,
    ) {
        if let Some(target) = self.ledger.open_of_peer(now, peer, load, entry) {
            self.target_taken(now, target, queue);
        }
    }

    fn close_of_peer(
        &mut self,
        now: Moment,
        (peer, id): (PeerId, ReservationId),
        succeeded: Option<bool>,
        queue: &QueueSettings,
    ) -> Option<SpeculationId> {
        let closed: Option<(Target, SpeculationId)> = self.ledger.close_of_peer(now, peer, id);
        let (target, speculation) = closed?;
        if let Some(succeeded) = succeeded {
            self.health.observe(now, target.worker, succeeded);
        }
        self.target_changed(now, target, queue);
        Some(speculation)
    }
}
