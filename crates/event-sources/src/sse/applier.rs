//! The applying task: takes the messages from the queue, in order, and quarantines a faulty sender.

use std::{sync::Arc, time::Duration};

use kv_blocks::Moment;
use kv_events::StreamState;
use net::Clock;
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};

use super::{
    EventSink, SinkCounts, StreamMessage,
    rate::MessageRate,
    reader_channel::{LinkMessage, LinkState, ReaderChannel},
};
use crate::{
    follower::{GO, TICK},
    handle::{SourceControl, StatusSender},
    quarantine::Quarantine,
    status::{StreamFault, StreamStatus},
};

/// The message of a bridge that is about to disconnect a slow reader.
const LAGGED: &str = "lagged";

/// The settings of an applier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ApplierSettings {
    pub(crate) stale_after: Duration,
    /// Whether each connection begins with the full current state.
    pub(crate) sends_snapshot: bool,
}

/// The applying half of a source.
#[derive(Debug)]
pub(crate) struct Applier {
    sink: Box<dyn EventSink>,
    link: Arc<ReaderChannel>,
    queue: mpsc::Receiver<LinkMessage>,
    clock: Clock,
    status: StatusSender,
    settings: ApplierSettings,
    sink_counts: SinkCounts,
    quarantine: Quarantine,
    /// The connection whose messages are being applied.
    connection: u64,
    /// The last connection that is no longer trusted: it lost messages or was quarantined.
    disbelieved: u64,
    last_event_at: Option<Moment>,
    rate: MessageRate,
    errors: LastErrors,
}

/// The last errors of a stream.
#[derive(Debug, Default)]
struct LastErrors {
    /// The newer of the sink's and the connection's.
    newest: Option<String>,
    /// The connection's.
    link: Option<String>,
}

impl Applier {
    pub(crate) fn new(
        sink: Box<dyn EventSink>,
        (link, queue): (Arc<ReaderChannel>, mpsc::Receiver<LinkMessage>),
        (clock, status_sender): (Clock, StatusSender),
        settings: ApplierSettings,
    ) -> Self {
        Self {
            sink,
            link,
            queue,
            clock,
            status: status_sender,
            settings,
            sink_counts: SinkCounts::default(),
            quarantine: Quarantine::default(),
            connection: 0,
            disbelieved: 0,
            last_event_at: None,
            rate: MessageRate::default(),
            errors: LastErrors::default(),
        }
    }

    /// Runs until stopped.
    pub(crate) async fn run(mut self, mut control: SourceControl) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let link = Arc::clone(&self.link);
            tokio::select! {
                queued = self.queue.recv() => match queued {
                    Some(queued) => self.burst(queued),
                    // The reader never ends before this task unless it panicked: then both end.
                    None => return,
                },
                () = link.changed.notified() => {}
                _ = ticks.tick() => self.sink.tick(self.clock.now(), &mut self.sink_counts),
                // There is no history to request, but a new connection sends the full current
                // state.
                () = control.resync.notified() => self.link.give_up(self.link.state().connections, None),
                _ = &mut control.stop => return,
            }
            self.check_link();
            self.publish();
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Takes a message and the messages already queued behind it, so that a burst costs one
    /// publication.
    fn burst(&mut self, first: LinkMessage) {
        self.apply(&first);
        for _ in 0..GO {
            let Ok(queued) = self.queue.try_recv() else {
                return;
            };
            self.apply(&queued);
        }
    }

    fn apply(&mut self, queued: &LinkMessage) {
        self.sink_counts.counts.batches += 1;
        if self
            .link
            .last_lossy_connection()
            .is_some_and(|lossy| lossy >= queued.connection)
        {
            self.distrust(queued.connection);
        }
        if queued.connection <= self.disbelieved {
            self.sink_counts.counts.dropped += 1;
            return;
        }
        self.record_connection(queued.connection);
        let now = self.clock.now();
        self.last_event_at = Some(now);
        self.rate.record(now);
        if queued.message.name.as_deref() == Some(LAGGED) {
            self.sink_counts.last_error =
                Some("the sender cut this reader off as too slow".to_owned());
            self.sink_counts.counts.gaps += 1;
            return self.distrust(queued.connection);
        }
        self.apply_message(&queued.message, now);
    }

    fn apply_message(&mut self, message: &StreamMessage, now: Moment) {
        let before = self.sink_counts.counts.decode_errors;
        self.sink.take(message, now, &mut self.sink_counts);
        self.handle_notice();
        let errors = self.sink_counts.counts.decode_errors - before;
        if errors > 0 {
            self.judge(errors);
        }
    }

    /// Takes over the sink's last error.
    fn handle_notice(&mut self) {
        if let Some(error) = self.sink_counts.last_error.take() {
            self.errors.newest = Some(error);
        }
    }

    /// Starts a new connection, at its first message or state change.
    fn record_connection(&mut self, connection: u64) {
        if connection <= self.connection {
            return;
        }
        self.connection = connection;
        if self.settings.sends_snapshot {
            self.sink.forget();
        }
        self.sink.connected();
    }

    /// Drops all state from this connection and earlier ones, and reconnects.
    fn distrust(&mut self, connection: u64) {
        if connection <= self.disbelieved {
            return;
        }
        self.disbelieved = connection;
        self.sink.forget();
        self.link.give_up(connection, self.quarantine.until());
    }

    /// Counts errors against the sender. Too many of them quarantine the stream.
    fn judge(&mut self, errors: u64) {
        if self.quarantine.record(self.clock.now(), errors).is_none() {
            return;
        }
        tracing::warn!(
            error = self.errors.newest,
            "event stream quarantined: too many undecodable messages"
        );
        self.distrust(self.connection);
    }

    fn check_link(&mut self) {
        self.handle_notice();
        let link = self.link.state();
        if link.open_since.is_some()
            && link.lossy != Some(link.connections)
            && self.queue.is_empty()
        {
            self.record_connection(link.connections);
        }
        if link.last_error != self.errors.link {
            self.errors.link.clone_from(&link.last_error);
            self.errors.newest = link.last_error;
        }
        let now = self.clock.now();
        if self.quarantine.until().is_some_and(|until| until <= now) {
            self.quarantine.lift();
        }
    }

    fn state(&self, link: &LinkState) -> StreamState {
        if self.quarantine.is_active() {
            return StreamState::Quarantined;
        }
        let Some(open_since) = link.open_since else {
            return StreamState::Connecting;
        };
        if link.connections <= self.disbelieved || link.lossy == Some(link.connections) {
            return StreamState::Gapped;
        }
        let last_activity = self.last_event_at.unwrap_or(open_since).max(open_since);
        if self.clock.now().since(last_activity) >= self.settings.stale_after {
            StreamState::Stale
        } else {
            StreamState::Live
        }
    }

    fn publish(&self) {
        let link = self.link.state();
        let mut sink_counts = self.sink_counts.clone();
        sink_counts.counts.batches += link.unreadable;
        sink_counts.counts.dropped += link.dropped;
        sink_counts.counts.decode_errors += link.unreadable;
        self.status.publish(StreamStatus {
            state: self.state(&link),
            last_seq: sink_counts.last_seq,
            block_size: sink_counts.block_size,
            lag_events: self.queue.len() as u64,
            last_event_at: self.last_event_at,
            rate: self.rate.clone(),
            last_error: (self.errors.newest.clone()).map(StreamFault::of_connection),
            reconnects: link.connections.saturating_sub(1),
            totals: sink_counts.into(),
            ..StreamStatus::default()
        });
    }
}
