//! Publishes one rank's KV events on ZMQ: live messages, the replay buffer, replay, and injected
//! faults.
//!
//! Sequence numbers start at 0 and count every batch. Faults affect live messages only: the buffer
//! always contains the correct batches, so that a reader can recover what it missed.

mod live_stream;

use std::time::Duration;

use bytes::Bytes;
use kv_events::frames::ReplayForm;
use net::Clock;
use parking_lot::Mutex;
use zmtp::{BatchForm, BatchPublisher, Endpoint, NumberedBatch, ReplayBuffer};

use self::live_stream::LiveStream;
use crate::{
    ReplayFormat,
    config::{EventSettings, endpoint_of_rank},
    stream_action::StreamAction,
    wire::WireFormat,
};

/// Most bytes of the replay buffer, whatever the number of its batches.
const REPLAY_BYTES: usize = 1 << 30;

/// The publishing side of one rank.
#[derive(Debug)]
pub(crate) struct RankPublisher {
    rank: u32,
    settings: EventSettings,
    clock: Clock,
    wire: WireFormat,
    sockets: Mutex<Option<BatchPublisher>>,
    stream: Mutex<LiveStream>,
    /// The last `buffer_steps` batches. Filled under the lock of the stream.
    history: ReplayBuffer,
    /// The actual listening address.
    pub(crate) events: Endpoint,
    pub(crate) replay: Option<Endpoint>,
}

impl RankPublisher {
    /// Binds the sockets of a rank.
    pub(crate) async fn bind(
        settings: &EventSettings,
        rank: u32,
        wire: WireFormat,
        clock: Clock,
    ) -> Result<Self, net::ListenError> {
        let history = ReplayBuffer::new(settings.buffer_steps, REPLAY_BYTES);
        let events_endpoint = endpoint_of_rank(&settings.events, rank);
        let replay_endpoint = settings
            .replay
            .as_ref()
            .map(|replay| endpoint_of_rank(replay, rank));
        let (sockets, events, replay) = BatchPublisher::bind(
            &events_endpoint,
            replay_endpoint.as_ref(),
            form(settings),
            &history,
        )
        .await?;
        Ok(Self {
            rank,
            settings: settings.clone(),
            clock,
            wire,
            sockets: Mutex::new(Some(sockets)),
            stream: Mutex::default(),
            history,
            events,
            replay,
        })
    }

    /// Publishes one step's events as one batch. Never waits: a slow reader loses messages, as with
    /// the real socket.
    pub(crate) fn publish(&self, events: &[engine_model::CacheEvent]) {
        let ts = self.clock.unix_ms() as f64 / 1e3;
        let payload = Bytes::from(self.wire.batch(ts, self.rank, events));
        let mut stream = self.stream.lock();
        let batch = (stream.next_seq, payload);
        stream.next_seq += 1;
        stream.published += 1;
        self.history.push(batch.clone());
        if stream.paused {
            if stream.paused_batches.len() >= self.settings.buffer_steps {
                stream.paused_batches.pop_front();
            }
            stream.paused_batches.push_back(batch);
        } else {
            self.send(&mut stream, batch);
        }
    }

    /// Carries out a test's action; `Restart` is [`RankPublisher::cut`], [`RankPublisher::forget`],
    /// [`RankPublisher::listen_again`].
    pub(crate) fn act(&self, action: StreamAction) {
        let mut stream = self.stream.lock();
        match action {
            StreamAction::Pause => stream.paused = true,
            StreamAction::Resume => {
                stream.paused = false;
                for batch in std::mem::take(&mut stream.paused_batches) {
                    self.send(&mut stream, batch);
                }
            }
            StreamAction::Drop(count) => stream.drop = count,
            StreamAction::Duplicate(count) => stream.duplicate = count,
            // Collecting more than the buffer has room for would only hide batches.
            StreamAction::Reorder(count) => {
                stream.reorder = count.min(self.settings.buffer_steps as u64)
            }
            StreamAction::Corrupt(count) => stream.corrupt = count,
            StreamAction::Restart => {}
        }
    }

    /// Cuts every connection and stops listening.
    pub(crate) async fn cut(&self) {
        let sockets = self.sockets.lock().take();
        if let Some(sockets) = sockets {
            sockets.close(Duration::ZERO).await;
        }
    }

    /// Begins a new stream: an empty buffer, sequence 0, no faults. Replay covers everything
    /// published from here on.
    pub(crate) fn forget(&self) {
        let mut stream = self.stream.lock();
        *stream = LiveStream::default();
        self.history.clear();
    }

    /// Listens on the same addresses again.
    pub(crate) async fn listen_again(&self) {
        // The system may need a moment to release the ports.
        for _ in 0..200 {
            match BatchPublisher::bind(
                &self.events,
                self.replay.as_ref(),
                form(&self.settings),
                &self.history,
            )
            .await
            {
                Ok((sockets, ..)) => {
                    *self.sockets.lock() = Some(sockets);
                    return;
                }
                Err(error) => tracing::debug!(%error, "event sockets are not free yet"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tracing::error!(endpoint = %self.events, "event sockets could not be bound again: no more events");
    }

    /// Returns the number of batches since the start, and the last sequence number.
    pub(crate) fn published(&self) -> (u64, Option<u64>) {
        let stream = self.stream.lock();
        (stream.published, stream.next_seq.checked_sub(1))
    }

    fn send(&self, stream: &mut LiveStream, batch: NumberedBatch) {
        if stream.drop > 0 {
            stream.drop -= 1;
        } else if stream.reorder > 0 {
            stream.reorder -= 1;
            stream.reordered.push(batch);
            if stream.reorder == 0 {
                for batch in std::mem::take(&mut stream.reordered).into_iter().rev() {
                    self.transmit(&batch);
                }
            }
        } else if stream.corrupt > 0 {
            stream.corrupt -= 1;
            // 0xc1 is the one byte that msgpack never uses.
            self.transmit(&(batch.0, Bytes::from_static(&[0xc1; 16])));
        } else {
            self.transmit(&batch);
            if stream.duplicate > 0 {
                stream.duplicate -= 1;
                self.transmit(&batch);
            }
        }
    }

    fn transmit(&self, (seq, payload): &NumberedBatch) {
        if let Some(sockets) = &*self.sockets.lock() {
            sockets.send(*seq, payload);
        }
    }
}

fn form(settings: &EventSettings) -> BatchForm {
    BatchForm {
        topic: settings.topic.clone(),
        replay: match settings.replay_format {
            ReplayFormat::Old => ReplayForm::Old,
            ReplayFormat::New => ReplayForm::New,
        },
    }
}
