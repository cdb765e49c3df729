//! One publisher's stream without its sockets: the sequencer, its part of the index, and its
//! quarantine.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use kv_blocks::{
    BlockSize, IndexUpdate, Moment, NamedBlocks, StoredBlocks, StreamPosition, Target, Tier,
};
#[cfg(feature = "nats")]
use kv_events::{AcceptedBatch, Continuation, ContinuationOutcome};
use kv_events::{
    AcceptedRecord, Action, Input, Sequencer, SequencerSettings, StreamState, frames,
    standard::{EventRejection, StandardChange, StreamOutput},
};
use net::Clock;

use crate::{
    BlockSink, EventDefaults,
    quarantine::Quarantine,
    sse::MessageRate,
    status::{StreamFault, StreamStatus, StreamTotals},
};

/// The properties of a stream that its driver needs.
#[derive(Clone, Debug)]
pub(crate) struct DriverSpec {
    pub(crate) target: Target,
    pub(crate) worker: Arc<str>,
    /// The endpoint, for the log.
    pub(crate) endpoint: String,
    pub(crate) defaults: EventDefaults,
    pub(crate) sequencer: SequencerSettings,
    pub(crate) stale_after: Duration,
}

/// The state of one stream.
#[derive(Debug)]
pub(crate) struct StreamDriver {
    spec: DriverSpec,
    sink: Arc<dyn BlockSink>,
    clock: Clock,
    sequencer: Sequencer,
    /// Totals of earlier sequencers, and of messages that reached none.
    past: StreamTotals,
    quarantine: Quarantine,
    past_epochs: u64,
    connected_at: Option<Moment>,
    connections: u64,
    other_block_size: u64,
    lag_ms: Option<f64>,
    last_error: Option<StreamFault>,
    saved: SavedPart,
    accepted_record: AcceptedRecord,
}

/// What snapshots of the index have of a stream.
#[derive(Clone, Copy, Debug, Default)]
struct SavedPart {
    /// The position that the sink knows.
    position: Option<StreamPosition>,
    /// Tokens per block of the blocks from an earlier process: no event repeats it.
    block_size: Option<u32>,
}

impl StreamDriver {
    pub(crate) fn new(spec: DriverSpec, sink: Arc<dyn BlockSink>, clock: Clock) -> Self {
        Self {
            sequencer: Sequencer::new(spec.sequencer.clone()),
            spec,
            sink,
            clock,
            past: StreamTotals::default(),
            quarantine: Quarantine::default(),
            past_epochs: 0,
            connected_at: None,
            connections: 0,
            other_block_size: 0,
            lag_ms: None,
            last_error: None,
            saved: SavedPart::default(),
            accepted_record: AcceptedRecord::default(),
        }
    }

    /// Records a new connection, which ends the one before it, if any. As for every input,
    /// `Some(from)` requests a replay from there on.
    pub(crate) fn connected(&mut self) -> Option<u64> {
        if self.connected_at.replace(self.clock.now()).is_some() {
            self.feed(Input::Disconnected);
        }
        self.connections += 1;
        tracing::info!(worker = %self.spec.worker, endpoint = %self.spec.endpoint, "event stream connected");
        self.feed(Input::Connected)
    }

    pub(crate) fn disconnected(&mut self) {
        self.connected_at = None;
        self.feed(Input::Disconnected);
    }

    /// Takes a message of the live socket.
    pub(crate) fn live(&mut self, message: &[Bytes]) -> Option<u64> {
        match frames::live(message) {
            Ok(live) => self.batch(live.seq, live.payload),
            Err(error) => {
                self.record_unreadable(error.to_string());
                None
            }
        }
    }

    /// Takes a live batch.
    pub(crate) fn batch(&mut self, seq: Option<u64>, payload: &[u8]) -> Option<u64> {
        let requested = self.feed(Input::Live { seq, payload });
        self.lag_ms = self.sequencer.last_batch_ts().map(|ts| self.ms_since(ts));
        requested
    }

    /// Counts a message that is not a batch.
    pub(crate) fn record_unreadable(&mut self, error: String) {
        self.past.record_unreadable();
        self.record_rejection(error);
        self.judge(1);
    }

    /// Feeds the sequencer and carries out its actions, except the fetching of replays.
    pub(crate) fn feed(&mut self, input: Input<'_>) -> Option<u64> {
        let before = self.sequencer.counts().decode_errors;
        let actions = self.sequencer.on(self.clock.now(), input);
        self.carry_out(actions, before)
    }

    /// Carries out actions; `errors_before` is the number of decoding errors before the input.
    fn carry_out(&mut self, actions: Vec<Action>, errors_before: u64) -> Option<u64> {
        let mut requested = None;
        for action in actions {
            match action {
                Action::Apply(update) => self.apply(update, None),
                Action::ApplyLabelled { update, label } => self.apply(update, Some(&*label)),
                Action::Envelope(output) => self.envelope(&output),
                Action::Clear => {
                    self.saved.block_size = None;
                    self.sink.clear(self.spec.target);
                }
                Action::Loss => self.sink.mark_loss(self.spec.target),
                Action::Confirm => self.confirm(),
                Action::RequestReplay { from } => requested = Some(from),
            }
        }
        self.note_position();
        let errors = self.sequencer.counts().decode_errors - errors_before;
        if errors > 0 {
            let last = self.sequencer.last_error().map(str::to_owned);
            self.last_error = last.map(StreamFault::of_events);
            self.judge(errors);
        }
        requested.filter(|_| !self.is_quarantined())
    }

    /// Takes a batch that came another way than from the publisher, if it continues the stream.
    #[cfg(feature = "nats")]
    pub(crate) fn continue_with(&mut self, batch: Continuation<'_>) -> ContinuationOutcome {
        let before = self.sequencer.counts().decode_errors;
        let outcome = self.sequencer.continue_with(self.clock.now(), batch);
        let ContinuationOutcome::Applied(actions) = outcome else {
            return outcome;
        };
        self.carry_out(actions, before);
        self.lag_ms = self.sequencer.last_batch_ts().map(|ts| self.ms_since(ts));
        ContinuationOutcome::Applied(Vec::new())
    }

    /// Asks the publisher whether it still has the last batch, and for what came after it, without
    /// a connection to its live socket.
    #[cfg(feature = "nats")]
    pub(crate) fn recognise(&mut self) -> Option<u64> {
        self.feed(Input::Disconnected);
        self.connected_at.get_or_insert(self.clock.now());
        self.feed(Input::Connected)
    }

    #[cfg(feature = "nats")]
    pub(crate) fn set_accepted_record(&mut self, record: AcceptedRecord) {
        self.accepted_record = record;
        self.sequencer.set_accepted_record(record);
    }

    #[cfg(feature = "nats")]
    pub(crate) fn take_accepted(&mut self) -> Vec<AcceptedBatch> {
        self.sequencer.take_accepted()
    }

    #[cfg(feature = "nats")]
    pub(crate) fn position(&self) -> Option<StreamPosition> {
        self.sequencer.position()
    }

    fn confirm(&mut self) {
        tracing::info!(worker = %self.spec.worker, endpoint = %self.spec.endpoint,
            "event stream continues where the snapshot of the index ends: its blocks are kept");
        let size = self.sink.confirm(self.spec.target);
        self.saved.block_size = size.map(BlockSize::tokens);
    }

    /// Records up to which batch the sink has all updates.
    fn note_position(&mut self) {
        let position = self.sequencer.position();
        if self.saved.position != position {
            self.saved.position = position;
            self.sink.note_position(self.spec.target, position);
        }
    }

    fn envelope(&mut self, output: &StreamOutput) {
        let outcome = self.sink.envelope(output);
        let StreamOutput::Event(event) = output else {
            return;
        };
        let Some(why) = outcome.rejection else {
            let done = outcome.update;
            if matches!(event.change, StandardChange::Stored { .. }) {
                self.past.record_store(event.stream.medium().tier(), &done);
            }
            self.sequencer
                .record(done.applied, done.orphans, done.ignored);
            if outcome.rehashed {
                self.sequencer.record_rehash();
            }
            return;
        };
        if matches!(why, EventRejection::OtherBlockSize { .. }) {
            self.other_block_size += 1;
        }
        self.sequencer.reject(&why);
        self.record_rejection(why.to_string());
    }

    fn apply(&mut self, mut update: IndexUpdate, label: Option<&str>) {
        self.spec.defaults.fill(&mut update);
        if let Some((found, expected)) = self.spec.defaults.refuse(&update) {
            self.other_block_size += 1;
            self.sequencer
                .reject(&EventRejection::OtherBlockSize { found, expected });
            return self.record_rejection(format!(
                "its events have blocks of {found} tokens, expected are {expected}: set block_size to what the engine uses"
            ));
        }
        let done = match label {
            Some(label) => self.sink.apply_labelled(self.spec.target, &update, label),
            None => self.sink.apply(self.spec.target, &update),
        };
        match &update {
            IndexUpdate::Stored(StoredBlocks { tier, .. })
            | IndexUpdate::Named(NamedBlocks { tier, .. }) => self.past.record_store(*tier, &done),
            _ => {}
        }
        self.sequencer
            .record(done.applied, done.orphans, done.ignored);
    }

    /// Counts errors against the publisher. Too many of them quarantine the stream.
    fn judge(&mut self, errors: u64) {
        if self.quarantine.record(self.clock.now(), errors).is_none() {
            return;
        }
        let error = self.last_error.as_ref().map(|fault| &*fault.text);
        tracing::warn!(worker = %self.spec.worker, endpoint = %self.spec.endpoint, error,
            "event stream quarantined: too many undecodable messages");
        self.sink.clear(self.spec.target);
        self.past = self.past.combined_with(&self.sequencer);
        self.past_epochs += self.sequencer.epoch();
        // What it was to resume is cleared.
        self.spec.sequencer.resume = None;
        self.saved = SavedPart::default();
        self.sequencer = Sequencer::new(self.spec.sequencer.clone());
        self.sequencer.set_accepted_record(self.accepted_record);
        self.connected_at = None;
    }

    /// Returns the end of the running quarantine.
    pub(crate) fn quarantined_until(&self) -> Option<Moment> {
        self.quarantine.until()
    }

    pub(crate) fn is_quarantined(&self) -> bool {
        self.quarantine.is_active()
    }

    /// Ends the quarantine; the stream may be followed again.
    pub(crate) fn end_quarantine(&mut self) {
        self.quarantine.lift();
    }

    /// Counts a dropped message.
    pub(crate) fn record_dropped(&mut self) {
        self.past.record_dropped();
    }

    /// Records an error of a connection.
    pub(crate) fn record_fault(&mut self, error: String) {
        self.last_error = Some(StreamFault::of_connection(error));
    }

    /// Records an error of a connection, and logs it where it is new: what a report tells of it may
    /// be a word.
    pub(crate) fn log_fault(&mut self, error: String) {
        let is_another = |last: &StreamFault| last.text != error;
        if self.last_error.as_ref().is_none_or(is_another) {
            tracing::warn!(worker = %self.spec.worker, endpoint = %self.spec.endpoint, %error, "event stream failed");
        }
        self.record_fault(error);
    }

    fn record_rejection(&mut self, error: String) {
        self.last_error = Some(StreamFault::of_events(error));
    }

    fn state(&self) -> StreamState {
        if self.is_quarantined() {
            return StreamState::Quarantined;
        }
        let last_activity = self.sequencer.last_event_at().max(self.connected_at);
        let quiet = last_activity.is_some_and(|last_activity| {
            self.clock.now().since(last_activity) >= self.spec.stale_after
        });
        match self.sequencer.state() {
            StreamState::Live if quiet => StreamState::Stale,
            state => state,
        }
    }

    pub(crate) fn status(&self) -> StreamStatus {
        StreamStatus {
            state: self.state(),
            source: None,
            epoch: self.past_epochs + self.sequencer.epoch(),
            last_seq: self.sequencer.last_seq(),
            lag_events: self.sequencer.lag_events(),
            lag_ms: self.lag_ms,
            last_event_at: self.sequencer.last_event_at(),
            block_size: (self.sequencer.announced_block_size()).or(self.saved.block_size),
            rank: self.sequencer.announced_rank(),
            other_block_size: self.other_block_size,
            last_error: self.last_error.clone(),
            rate: MessageRate::default(),
            reconnects: self.connections.saturating_sub(1),
            totals: self.past.combined_with(&self.sequencer),
        }
    }

    fn ms_since(&self, ts: f64) -> f64 {
        #[expect(
            clippy::cast_precision_loss,
            reason = "milliseconds since 1970 fit into 53 bits for a long time"
        )]
        let now = self.clock.unix_ms() as f64;
        (now - ts * 1e3).max(0.0)
    }
}

impl EventDefaults {
    /// Fills in the defaults that a store at the root of a sequence lacks. Later blocks inherit
    /// from their parents.
    fn fill(&self, update: &mut IndexUpdate) {
        if let IndexUpdate::Stored(StoredBlocks {
            parent: None,
            lora,
            salt,
            ..
        }) = update
        {
            for (found, default) in [(lora, &self.lora), (salt, &self.salt)] {
                if found.is_none() {
                    found.clone_from(default);
                }
            }
        }
    }

    /// Returns the block size of the update and the configured one, in tokens, if they differ. Other
    /// tiers may hold chunks of any size, which the index cuts into blocks.
    fn refuse(&self, update: &IndexUpdate) -> Option<(u32, u32)> {
        let (IndexUpdate::Stored(stored), Some(known)) = (update, self.block_size) else {
            return None;
        };
        let differs = stored.tier == Tier::Device && stored.block_size != known;
        differs.then(|| (stored.block_size.tokens(), known.tokens()))
    }
}
