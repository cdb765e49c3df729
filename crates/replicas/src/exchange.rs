//! The task that exchanges load with the peers.

use std::{sync::Arc, time::Duration};

use kv_blocks::Moment;
use routing::{LoadDigest, PeerId, ReservationId};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use crate::{
    load::{ChangeEncoder, LoadDecoder, state_page},
    peers::{PeerAction, PeerState},
    replicas::ReplicaCore,
    transport::{PublishOutcome, StateFetcher, Transport, TransportEvent},
    wire::{self, Changes, Envelope, Presence, StatePage, VERSION},
};

/// Time for which changes are gathered into one message. Timers round it up to a millisecond more.
const GATHER: Duration = Duration::from_millis(5);
/// Interval of checks for silent peers.
const CHECK: Duration = Duration::from_millis(100);
/// Most open requests in a page.
const PAGE: usize = 512;
/// Most pages of one peer: beyond them its load is not fetched.
const MOST_PAGES: usize = 1024;

/// A request for a page of this replica's open requests.
#[derive(Debug)]
pub(crate) struct PageRequest {
    /// The page begins behind this id.
    pub(crate) after: u64,
    pub(crate) reply: oneshot::Sender<StatePage>,
}

/// The whole load of a peer, or why it could not be fetched.
type FetchResult = (PeerId, Result<Vec<StatePage>, String>);

/// The state of the task.
pub(crate) struct Exchange {
    core: Arc<ReplicaCore>,
    transport: Transport,
    encoder: ChangeEncoder,
    /// Digest of the own load after the last change that was sent.
    digest: LoadDigest,
    requests: mpsc::Receiver<PageRequest>,
    fetches: JoinSet<FetchResult>,
    /// When gathered changes are sent; `None`: there were none last time.
    flush_at: Option<Instant>,
}

impl Exchange {
    pub(crate) fn new(
        core: Arc<ReplicaCore>,
        transport: Transport,
        requests: mpsc::Receiver<PageRequest>,
    ) -> Self {
        Self {
            encoder: ChangeEncoder::new(Arc::clone(&core.workers)),
            core,
            transport,
            digest: LoadDigest::default(),
            requests,
            fetches: JoinSet::new(),
            flush_at: None,
        }
    }

    /// Exchanges load until `stop` is set.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut digests = ticks(self.core.settings.digest_interval);
        let mut checks = ticks(CHECK);
        loop {
            let flush_at = self.flush_at;
            tokio::select! {
                event = self.transport.next() => self.receive(event),
                () = self.core.filled.notified(), if flush_at.is_none() => {
                    self.flush_at = Some(Instant::now() + GATHER);
                }
                () = self.core.notes.filled(), if flush_at.is_none() => {
                    self.flush_at = Some(Instant::now() + GATHER);
                }
                () = wait_until(flush_at) => self.send_gathered(),
                Some(request) = self.requests.recv() => self.serve(request),
                Some(fetched) = self.fetches.join_next() => {
                    if let Ok((peer, result)) = fetched {
                        self.fetched(peer, result);
                    }
                }
                _ = digests.tick() => self.send_presence(false),
                _ = checks.tick() => self.check(),
                _ = stop.wait_for(|stopping| *stopping) => break,
            }
            // Reading from a buffer never awaits, so the loop yields explicitly.
            tokio::task::coop::consume_budget().await;
        }
        self.send_presence(true);
        self.transport.farewell().await;
    }

    fn now(&self) -> Moment {
        self.core.clock.now()
    }

    fn receive(&mut self, event: TransportEvent) {
        let now = self.now();
        let (message, bytes) = match event {
            TransportEvent::Message { message, bytes } => (*message, bytes),
            #[cfg(feature = "nats")]
            TransportEvent::PageRequest(request) => return self.serve(request),
            #[cfg(feature = "nats")]
            TransportEvent::Connected => return self.send_presence(false),
            TransportEvent::Malformed => {
                let reason = crate::peers::IgnoredMessage::Malformed;
                return self.core.telemetry.record_ignored(reason);
            }
        };
        self.core.telemetry.record_received(bytes);
        let router = Arc::clone(&self.core.router);
        let taken = self
            .core
            .peers
            .lock()
            .on_message(now, message, |peer| router.peer_load_digest(peer));
        match taken {
            Ok(actions) => self.carry_out(now, actions),
            Err(why) => self.core.telemetry.record_ignored(why),
        }
    }

    fn check(&mut self) {
        let now = self.now();
        let is_connected = self.transport.is_connected();
        let (actions, serving) = {
            let mut peers = self.core.peers.lock();
            (peers.tick(now), peers.serving(now, is_connected))
        };
        self.carry_out(now, actions);
        self.core.sink.routers(serving);
        let connected = i64::from(is_connected);
        self.core.telemetry.connected.set(connected);
    }

    fn carry_out(&mut self, now: Moment, actions: Vec<PeerAction>) {
        for action in actions {
            match action {
                PeerAction::Apply {
                    peer,
                    changes,
                    skip,
                } => self.apply(now, peer, changes, skip),
                PeerAction::Fetch { peer, repairs } => {
                    self.core.telemetry.repairs.inc_by(u64::from(repairs));
                    self.fetch(peer);
                }
                PeerAction::Drop(peer) => {
                    let released = self.core.router.drop_peer(now, peer);
                    self.core.sink.released(released);
                }
                PeerAction::Changed(peer) => self.log_change(peer),
            }
        }
    }

    fn apply(&self, now: Moment, peer: PeerId, changes: Changes, skip: usize) {
        let decoded = {
            let mut peers = self.core.peers.lock();
            let Some(known) = peers.get_mut(peer) else {
                return;
            };
            let mut decoder = LoadDecoder {
                workers: &*self.core.workers,
                chains: &mut known.chains,
            };
            decoder.changes(changes, skip)
        };
        self.core.telemetry.unknown_changes.inc_by(decoded.unknown);
        let released = self.core.router.apply_peer_changes(now, peer, decoded.load);
        self.core.sink.released(released);
        for note in decoded.notes {
            self.core.sink.note(note);
        }
    }

    fn fetch(&mut self, peer: PeerId) {
        let id = self.core.peers.lock().get(peer).map(|known| known.id);
        if let Some(id) = id {
            let fetcher = self.transport.fetcher();
            self.fetches
                .spawn(async move { (peer, fetch_pages(&fetcher, id).await) });
        }
    }

    fn fetched(&mut self, peer: PeerId, result: Result<Vec<StatePage>, String>) {
        let now = self.now();
        let pages = match result {
            Ok(pages) => pages,
            Err(error) => {
                tracing::debug!(peer = peer.0, error, "load of a replica not fetched");
                return self.core.peers.lock().on_fetch_failed(now, peer);
            }
        };
        let as_of = pages.first().map_or(0, |page| page.as_of);
        for page in pages {
            let page = {
                let mut peers = self.core.peers.lock();
                let Some(known) = peers.get_mut(peer) else {
                    return;
                };
                if known.is_lost() || known.refused.is_some() {
                    return;
                }
                let mut decoder = LoadDecoder {
                    workers: &*self.core.workers,
                    chains: &mut known.chains,
                };
                decoder.page(page)
            };
            let released = self.core.router.apply_peer_page(now, peer, page);
            self.core.sink.released(released);
        }
        let actions = self.core.peers.lock().on_state(peer, as_of);
        self.carry_out(now, actions);
    }

    /// Sends gathered changes. While there are some, the next ones are gathered at once: to be woken
    /// by the first of them costs more than to look in vain once.
    fn send_gathered(&mut self) {
        let sent = self.send_changes();
        self.flush_at = (sent > 0).then(|| Instant::now() + GATHER);
    }

    /// Sends the changes since the last call. Returns the number of messages.
    fn send_changes(&mut self) -> usize {
        let mut changes = Vec::new();
        let state = self.core.router.take_load_changes(&mut changes);
        self.send(changes, state)
    }

    fn send(&mut self, changes: Vec<routing::LoadChange>, state: routing::FeedState) -> usize {
        if state.lost {
            self.core.telemetry.lost_changes.inc();
            self.encoder.skip_lost();
        }
        let messages = self.encoder.encode(changes, self.core.notes.take());
        self.digest = state.digest;
        let sent = messages.len();
        for message in messages {
            let envelope = Envelope {
                changes: Some(message),
                ..self.envelope()
            };
            self.publish(&envelope);
        }
        sent
    }

    fn send_presence(&mut self, leaving: bool) {
        if self.core.settings.load_sync {
            self.send_changes();
        }
        let core = &self.core;
        let up_ms = u64::try_from(core.up_time().as_millis()).unwrap_or(u64::MAX);
        let events = core.sink.shared_events();
        let presence = Presence {
            address: core.identity.address.clone(),
            program: core.identity.program.to_owned(),
            settings: core.identity.settings,
            up_ms,
            last_change: self.encoder.last(),
            open: self.digest.open,
            load_digest: self.digest.sum,
            index_digest: core.index_digest(),
            lag_messages: events.lag_messages,
            owns_streams: events.owns_streams,
            shares_load: core.settings.load_sync,
            leaving,
            queued: core.router.queued_requests() as u64,
        };
        let envelope = Envelope {
            presence: Some(presence),
            ..self.envelope()
        };
        self.publish(&envelope);
    }

    /// Answers a peer's request. The changes before the page are sent first.
    fn serve(&mut self, request: PageRequest) {
        let mut changes = Vec::new();
        let after = ReservationId(request.after);
        let (page, state) = self
            .core
            .router
            .take_load_page(self.now(), after, PAGE, &mut changes);
        self.send(changes, state);
        let (as_of, id) = (self.encoder.last(), self.core.identity.id);
        // The peer may have given up.
        let _ = request
            .reply
            .send(state_page(page, as_of, id, &*self.core.workers));
    }

    fn envelope(&self) -> Envelope {
        Envelope {
            version: VERSION,
            sender: self.core.identity.id,
            ..Envelope::default()
        }
    }

    fn publish(&mut self, envelope: &Envelope) {
        let message = wire::encode(envelope);
        let bytes = message.len();
        match self.transport.publish(message) {
            PublishOutcome::Sent => self.core.telemetry.record_sent(bytes),
            #[cfg(feature = "nats")]
            PublishOutcome::Away => {}
            #[cfg(feature = "nats")]
            PublishOutcome::Full => {
                self.core.telemetry.lost_changes.inc();
            }
        }
    }

    fn log_change(&self, peer: PeerId) {
        let peers = self.core.peers.lock();
        let live = i64::try_from(peers.live()).unwrap_or(i64::MAX);
        self.core.telemetry.peers.set(live);
        let Some(peer) = peers.get(peer) else { return };
        let (id, address) = (crate::identity::ShownId(peer.id), &peer.presence.address);
        match peer.state() {
            PeerState::Refused(reason) => {
                tracing::warn!(replica = %id, address, reason = reason.as_str(), "replica refused: give all replicas the same version and settings");
            }
            state => tracing::info!(replica = %id, address, state = state.as_str(), "replica"),
        }
    }
}

/// Fetches every page of a peer's open requests.
async fn fetch_pages(fetcher: &StateFetcher, peer: u64) -> Result<Vec<StatePage>, String> {
    let (mut pages, mut after) = (Vec::new(), Some(0));
    while let Some(start) = after {
        if pages.len() >= MOST_PAGES {
            return Err(format!(
                "it has more than {} open requests",
                MOST_PAGES * PAGE
            ));
        }
        let page = fetcher.page(peer, start).await?;
        if page.version != VERSION || page.sender != peer || page.after != start {
            return Err("the page is of another replica, or another one".to_owned());
        }
        after = page.through.filter(|through| *through > start);
        pages.push(page);
    }
    Ok(pages)
}

fn ticks(every: Duration) -> tokio::time::Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Waits until then; for ever if there is nothing to wait for.
async fn wait_until(then: Option<Instant>) {
    match then {
        Some(then) => sleep_until(then).await,
        None => std::future::pending().await,
    }
}
