//! One worker's keeper: checks it, knocks on it, follows its streams, says the verdict.
//!
//! It runs until it is stopped, and owns the worker's streams: they are stopped and awaited with it.

use std::{io, sync::Arc, time::Duration};

use config::Engine;
use kv_blocks::{BlockSize, Moment, WorkerId};
use tokio::sync::{Notify, watch};
use tracing::{info, warn};

use crate::{
    OnVerdict, RankView, WorkerState,
    artefacts::ArtefactStore,
    board::{Board, Connections},
    health::{Check, Next},
    probe::{self, Asker, HealthCheck, Identity, Trouble},
    streams::{StreamSettings, Streams},
};

/// Assumed where neither configuration nor engine says: the default of the most used engine. The verdict says so.
pub(crate) const ASSUMED_BLOCK: u64 = 16;
/// Failed requests ask for a look at most this often.
const LEAST_BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// Stream states are read at most this often: the index changes far more often than the state.
const LEAST_BETWEEN_STREAM_LOOKS: Duration = Duration::from_millis(20);
/// A ready worker's verdict waits this long for its streams to come up.
const STREAMS_COME_UP: Duration = Duration::from_secs(1);
/// Most models whose tokenizer is looked for on one worker; an aggregator may list thousands.
const MOST_TOKENIZERS: usize = 64;
/// Stands for "never" in a timer.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// What a supervisor is told about its worker.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    pub(crate) id: WorkerId,
    pub(crate) name: Arc<str>,
    pub(crate) asker: Asker,
    pub(crate) health_check: HealthCheck,
    /// Whether a ready worker is checked at intervals.
    pub(crate) checks_enabled: bool,
    /// The configured kind.
    pub(crate) engine: Option<Engine>,
    /// It serves only these models.
    pub(crate) only_models: Vec<Arc<str>>,
    /// The configured block size.
    pub(crate) block_size: Option<BlockSize>,
    /// The configured number of ranks.
    pub(crate) dp_ranks: Option<u32>,
    pub(crate) streams: StreamSettings,
    pub(crate) connect_timeout: Duration,
    /// Between reads of the engine's own load.
    pub(crate) scrape_every: Duration,
}

/// One worker's keeper.
pub(crate) struct Supervisor {
    board: Arc<Board>,
    artefacts: Arc<ArtefactStore>,
    on_verdict: OnVerdict,
    orders: Orders,
    wake: Arc<Notify>,
    streams: Streams,
    /// What the worker said about itself still holds: no outage since.
    known: bool,
    /// A failed request asks for a look before the next one is due.
    concerned: bool,
    last_look: Moment,
    last_scrape: Moment,
    last_stream_look: Moment,
    /// The state last said, and when the present one began.
    told: Option<WorkerState>,
    ready_since: Moment,
}

impl Supervisor {
    pub(crate) fn new(board: Arc<Board>, artefacts: Arc<ArtefactStore>, on_verdict: OnVerdict, orders: Orders) -> Self {
        let wake = board.wake_of(orders.id);
        let start = Moment::START;
        Self {
            board,
            artefacts,
            on_verdict,
            orders,
            wake,
            streams: Streams::default(),
            known: false,
            concerned: false,
            last_look: start,
            last_scrape: start,
            last_stream_look: start,
            told: None,
            ready_since: start,
        }
    }

    /// Runs until `stop` says so or its sender is gone.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => {}
            () = self.keep() => {}
        }
        self.streams.stop(&self.board, self.orders.id).await;
    }

    async fn keep(&mut self) {
        loop {
            let now = self.board.clock.now();
            let (next, concerned) = self.board.next(self.orders.id);
            let verdict_at = self.tell(now);
            let mut look_at = self.last_look + self.pause(next);
            self.concerned |= concerned;
            if self.concerned {
                look_at = look_at.min(self.last_look + LEAST_BETWEEN_LOOKS);
            }
            if look_at <= now {
                self.concerned = false;
                match next {
                    Next::CheckIn(_) => self.check().await,
                    Next::KnockIn(_) => self.knock().await,
                }
                self.last_look = self.board.clock.now();
                continue;
            }
            let scrape_at = self.scrape_at();
            if scrape_at <= now {
                self.scrape().await;
                continue;
            }
            let until = verdict_at.into_iter().chain([look_at, scrape_at]).min().unwrap_or(look_at);
            let streams_from = self.last_stream_look + LEAST_BETWEEN_STREAM_LOOKS;
            tokio::select! {
                () = tokio::time::sleep(until.since(now)) => {}
                () = self.wake.notified() => {}
                () = async {
                    tokio::time::sleep(streams_from.since(now)).await;
                    self.streams.changed().await;
                } => self.look_at_streams().await,
            }
        }
    }

    fn pause(&self, next: Next) -> Duration {
        match next {
            Next::CheckIn(_) if !self.orders.checks_enabled && self.state() == WorkerState::Ready => NEVER,
            Next::CheckIn(pause) | Next::KnockIn(pause) => pause,
        }
    }

    fn state(&self) -> WorkerState {
        self.board.with(self.orders.id, |entry| entry.view.state).unwrap_or_default()
    }

    /// Says the verdict when the state is another than the one last said. When a ready worker's streams are still
    /// coming up, answers when to look again.
    fn tell(&mut self, now: Moment) -> Option<Moment> {
        let state = self.state();
        if state == WorkerState::Unknown || self.told == Some(state) {
            return None;
        }
        if state == WorkerState::Ready {
            let latest = self.ready_since + STREAMS_COME_UP;
            let coming_up = |rank: &RankView| matches!(rank.stream, Some("connecting" | "replaying"));
            let waiting = self.board.with(self.orders.id, |entry| entry.view.ranks.iter().any(coming_up));
            if waiting == Some(true) && now < latest {
                return Some(latest);
            }
        }
        if let Some(verdict) = self.board.verdict(self.orders.id) {
            (self.on_verdict)(&verdict);
        }
        if self.told.replace(state).is_none() {
            self.board.settled.send_modify(|settled| *settled += 1);
        }
        None
    }

    /// Opens and closes a connection. One that opens is followed by checks at once, back to back.
    async fn knock(&mut self) {
        let address = self.orders.asker.url().address();
        match net::connect(&address, self.orders.connect_timeout).await {
            Ok(open) => {
                drop(open);
                // Whoever answers now may be another process than the one that went down.
                self.known = false;
                let down_before = self.state() == WorkerState::Down;
                self.check().await;
                // A port that answers while the checks fail is not asked in a tight loop.
                let still_failing = self.board.with(self.orders.id, |entry| entry.view.last_error.is_some());
                if down_before && self.state() == WorkerState::Down && still_failing == Some(true) {
                    self.board.knocked_in_vain(self.orders.id, false);
                }
            }
            Err(error) => {
                let refused = matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound);
                self.board.knocked_in_vain(self.orders.id, refused);
            }
        }
    }

    async fn check(&mut self) {
        let result = self.examine().await;
        let before = self.state();
        self.board.checked(self.orders.id, result.as_ref().copied());
        let after = self.state();
        if let Err(trouble) = &result
            && (trouble.check == Check::Refused || after != WorkerState::Ready)
        {
            self.known = false;
        }
        if before != WorkerState::Ready && after == WorkerState::Ready {
            self.ready_since = self.board.clock.now();
        }
    }

    async fn examine(&mut self) -> Result<(), Trouble> {
        let engine = self.orders.engine.unwrap_or(Engine::Generic);
        self.orders.health_check.run(&self.orders.asker, engine).await?;
        if self.known {
            if self.state() == WorkerState::Ready {
                self.refresh().await;
            }
            return Ok(());
        }
        let identity = probe::identify(&self.orders.asker, self.orders.engine).await?;
        self.identified(identity).await?;
        self.known = true;
        Ok(())
    }

    /// Adapters come and go on a running engine: its list is read with every check. A list that cannot be read changes
    /// nothing; one that names another base model is another engine.
    async fn refresh(&mut self) {
        let Ok(list) = probe::list_models(&self.orders.asker).await else { return };
        let list = list.restricted_to(&self.orders.only_models);
        if list.models.is_empty() && list.loras.is_empty() {
            return;
        }
        let same = |entry: &crate::board::Entry| (entry.view.models == list.models, entry.view.loras == list.loras);
        let (same_models, same_loras) = self.board.with(self.orders.id, same).unwrap_or((true, true));
        let events_missing = self.orders.streams.wanted() && !self.streams.any();
        if !same_models || events_missing {
            if let Ok(identity) = probe::identify(&self.orders.asker, self.orders.engine).await {
                let _ = self.identified(identity).await;
            }
        } else if !same_loras {
            self.board.change(self.orders.id, |entry| Arc::make_mut(&mut entry.view).loras = list.loras);
        }
    }

    /// Takes over what the worker says about itself: view, tokenizers, streams.
    async fn identified(&mut self, identity: Identity) -> Result<(), Trouble> {
        let Orders { id, name, only_models, .. } = self.orders.clone();
        let Identity { engine, version, list, metrics, announced } = identity;
        let listed: Vec<_> = list.models.iter().map(|model| model.id.to_string()).collect();
        let list = list.restricted_to(&only_models);
        let Some(base) = list.models.first().map(|model| &model.id).or(list.loras.first().map(|lora| &lora.parent))
        else {
            return Err(Trouble::failed(if only_models.is_empty() {
                "lists no model: start the engine with one, or name the models it serves under its models".to_owned()
            } else {
                format!(
                    "lists {} and none of {}: correct this worker's models",
                    listed.join(", "),
                    only_models.join(", ")
                )
            }));
        };
        let base = Arc::clone(base);
        let before = self
            .board
            .with(id, |entry| (entry.view.namespace_model.clone(), entry.artefacts.clone(), entry.view.dp_ranks()));
        let (old_base, old_artefacts, old_ranks) = before.unwrap_or_default();
        let mut artefacts = std::collections::HashMap::new();
        for model in list.models.iter().take(MOST_TOKENIZERS) {
            let found = self.artefacts.find(model, &self.orders.asker, old_artefacts.get(&model.id)).await;
            artefacts.insert(Arc::clone(&model.id), found);
        }
        let told_ranks = announced.iter().flatten().map(|stream| stream.rank + 1).max().unwrap_or(0);
        let ranks = self.orders.dp_ranks.unwrap_or_else(|| told_ranks.max(metrics.ranks).max(1));
        let host = self.orders.asker.url().host().unwrap_or("127.0.0.1").to_owned();
        let settings = self.orders.streams.clone();
        let wanted = settings.find(announced.as_deref(), &host, ranks, self.orders.connect_timeout).await;

        let changed = old_base.as_ref().is_some_and(|old| *old != base);
        if changed || (old_base.is_some() && ranks != old_ranks) {
            if changed {
                warn!(worker = %name, was = old_base.as_deref(), is = %base, "serves another model now: its cache is forgotten");
            }
            self.streams.stop(&self.board, id).await;
            self.board.with(id, |entry| entry.view.targets().for_each(|target| self.board.index.clear(target)));
        }
        let configured = self.orders.block_size;
        self.board.change(id, |entry| {
            entry.artefacts = artefacts;
            let view = Arc::make_mut(&mut entry.view);
            let announced = entry.streams.iter().find_map(|stream| stream.source.announced_block_size());
            let announced = announced.and_then(|tokens| BlockSize::new(u64::from(tokens)).ok());
            let size = configured.or(announced).or(metrics.block_size);
            view.block_size_known = size.is_some();
            if let Some(size) = size {
                view.block_size = size;
            }
            view.engine = engine;
            view.version = version;
            view.models = list.models;
            view.loras = list.loras;
            view.namespace_model = Some(Arc::clone(&base));
            view.ranks = vec![RankView::default(); ranks as usize];
            view.num_blocks = metrics.num_blocks;
            view.load = metrics.load;
            for target in entry.view.targets() {
                self.board.index.register(target, Arc::clone(&base));
            }
        });
        if let Some(other) = self.board.disagrees(id, &base) {
            warn!(worker = %name, %other, model = %base, "two workers serve one model with different tokenizers: the first one's is used for both");
        }
        self.last_scrape = self.board.clock.now();
        self.streams.run(&self.board, &settings, (id, &name), &base, wanted).await;
        Ok(())
    }

    /// A stream's state, or its part of the index, changed. One that lost its connection is a death or a restart:
    /// the worker is looked at at once.
    async fn look_at_streams(&mut self) {
        self.last_stream_look = self.board.clock.now();
        let lost = self.board.streams_changed(self.orders.id) == Connections::Lost;
        self.learn_block_size();
        if lost && self.state() == WorkerState::Ready {
            info!(worker = %self.orders.name, "event stream lost its connection: looking at the worker");
            self.known = false;
            self.check().await;
            self.last_look = self.board.clock.now();
        }
    }

    /// The block size of a worker's own events beats what its metrics say: it is the size of the blocks in the index.
    fn learn_block_size(&self) {
        if self.orders.block_size.is_some() {
            return;
        }
        let id = self.orders.id;
        let told = self.board.with(id, |entry| {
            let told = entry.streams.iter().find_map(|stream| stream.source.announced_block_size())?;
            let told = BlockSize::new(u64::from(told)).ok()?;
            (!entry.view.block_size_known || entry.view.block_size != told).then_some(told)
        });
        if let Some(size) = told.flatten() {
            info!(worker = %self.orders.name, block_size = size.tokens(), "block size learned from its events");
            self.board.change(id, |entry| {
                let view = Arc::make_mut(&mut entry.view);
                view.block_size = size;
                view.block_size_known = true;
            });
        }
    }

    /// When the engine's load is to be read again.
    fn scrape_at(&self) -> Moment {
        let has_metrics = self.board.with(self.orders.id, |entry| {
            let tells = entry.view.engine == Engine::Vllm || entry.view.load != crate::EngineLoad::default();
            entry.view.state == WorkerState::Ready && tells
        });
        let pause = if has_metrics == Some(true) { self.orders.scrape_every } else { NEVER };
        self.last_scrape + pause
    }

    async fn scrape(&mut self) {
        self.last_scrape = self.board.clock.now();
        if let Some(load) = probe::engine_load(&self.orders.asker).await {
            self.board.loaded(self.orders.id, load);
        }
    }
}
