//! Takes the log's messages and gives each to its stream.

use std::{convert::Infallible, time::Duration};

use futures_util::StreamExt;
use nats_client::{
    ConsumerConfig, DeliveredMessage, JetStream, JetStreamError, Message, StatusCode,
};
use tokio::time::{Instant, timeout_at};

use crate::{LogMessage, counts::add, log::LogState};

/// Most messages of one request.
const BATCH: u32 = 256;
/// Longest time that a request waits for messages.
const EXPIRES: Duration = Duration::from_secs(5);
/// Time after the end of a request within which the server says so. nats-server 2.9 does not if a
/// message came in the instant of the end: the next request then follows without.
const OVERDUE: Duration = Duration::from_millis(250);
/// Requests in a row without any answer after which the connection counts as lost.
const MOST_UNANSWERED: u32 = 2;
/// Most messages that the server sends before it wants an acknowledgement.
const MAX_UNACKNOWLEDGED: u64 = 16_384;
/// Time without a request after which the server removes the consumer of a dead replica.
const INACTIVE: Duration = Duration::from_secs(300);
/// Interval of acknowledgements.
const ACKNOWLEDGE: Duration = Duration::from_millis(250);

/// Takes messages until the connection, the stream or the consumer fails.
pub(crate) async fn run(
    state: &LogState,
    jetstream: &JetStream,
) -> Result<Infallible, JetStreamError> {
    let stream = state.settings.names.stream();
    let name = &*state.settings.replica;
    let from = state.progress.lock().taken + 1;
    // One of an earlier connection starts elsewhere.
    jetstream.delete_consumer(stream, name).await?;
    let config = ConsumerConfig {
        name: name.to_owned(),
        from,
        inactive_after: INACTIVE,
        max_unacknowledged: MAX_UNACKNOWLEDGED,
    };
    jetstream.ensure_consumer(stream, &config).await?;
    let inbox = jetstream.client().new_inbox();
    // Each request has a subject of its own: the late end of one is not taken for that of the next.
    let mut messages = jetstream.subscribe(&format!("{inbox}.*")).await?;
    let (mut left, mut request, mut unanswered) = (0, 0_u64, 0);
    let (mut reply_to, mut overdue_at) = (String::new(), Instant::now());
    let mut acknowledged_at = state.clock.now();
    loop {
        if left == 0 {
            request += 1;
            reply_to = format!("{inbox}.{request}");
            jetstream
                .pull((stream, name), &reply_to, BATCH, EXPIRES)
                .await?;
            left = BATCH;
            overdue_at = Instant::now() + EXPIRES + OVERDUE;
        }
        let failed = |reason: String| JetStreamError::NoAnswer {
            subject: format!("{stream} {name}"),
            reason,
        };
        let Ok(message) = timeout_at(overdue_at, messages.next()).await else {
            unanswered += 1;
            if unanswered >= MOST_UNANSWERED {
                let reason = format!("no message and no end of {MOST_UNANSWERED} requests");
                return Err(failed(reason));
            }
            left = 0;
            continue;
        };
        let message = message.ok_or_else(|| failed("the connection was lost".to_owned()))?;
        unanswered = 0;
        match message.status {
            None => {
                left -= 1;
                take(state, &message);
            }
            Some(StatusCode::IDLE_HEARTBEAT) => continue,
            Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND)
                if message.subject.as_str() != reply_to =>
            {
                continue;
            }
            Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND) => left = 0,
            Some(status) => {
                let why = message.description.as_deref().unwrap_or_default();
                return Err(failed(format!("{status} {why}")));
            }
        }
        let now = state.clock.now();
        if (left == 0 || now.since(acknowledged_at) >= ACKNOWLEDGE)
            && let Some(reply) = message.reply
        {
            acknowledged_at = now;
            let sent = jetstream.client().publish(reply, "+ACK".into()).await;
            sent.map_err(|error| failed(error.to_string()))?;
        }
    }
}

/// Gives a message to its stream, unless it is not newer than the one before.
fn take(state: &LogState, message: &Message) {
    let counters = &state.counters;
    let Some(delivered) = DeliveredMessage::of(message) else {
        return add(&counters.unreadable, 1);
    };
    {
        let mut progress = state.progress.lock();
        if delivered.stream_seq <= progress.taken {
            return add(&counters.repeated, 1);
        }
        progress.taken = delivered.stream_seq;
        progress.pending = delivered.pending;
    }
    let Some(read) = LogMessage::decode(message) else {
        return add(&counters.unreadable, 1);
    };
    add(&counters.received, 1);
    let token = state.settings.names.token_in(message.subject.as_str());
    let Some(token) = token else { return };
    let member = state.members.lock().get(token).cloned();
    if let Some(member) = member {
        let dropped = member.push(delivered.stream_seq, read);
        add(&counters.overflowed, dropped);
    }
}
