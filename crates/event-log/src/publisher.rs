//! Publishes what the streams' owners accepted.

use std::{convert::Infallible, time::Duration};

use futures_util::StreamExt;
use nats_client::{JetStream, JetStreamError, PublishAck};
use tokio::time::{MissedTickBehavior, interval};

use crate::{counts::add, log::LogState};

/// Most messages that wait for their acknowledgement.
const WINDOW: usize = 256;
/// Longest wait for an acknowledgement.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a message besides its payload, at most.
const HEADERS: usize = 1_024;

/// Publishes until the connection or the stream fails.
pub(crate) async fn run(
    state: &LogState,
    jetstream: &JetStream,
) -> Result<Infallible, JetStreamError> {
    let client = jetstream.client();
    let inbox = client.new_inbox();
    let mut acks = jetstream.subscribe(&format!("{inbox}.*")).await?;
    let mut ticks = interval(PATIENCE / 10);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut number = 0;
    let mut progress_at = state.clock.now();
    loop {
        let in_flight = state.outgoing.lock().in_flight.len();
        tokio::select! {
            ack = acks.next() => {
                let Some(ack) = ack else { return Err(lost(&inbox)) };
                let acknowledged = ack.subject.as_str().rsplit('.').next().and_then(|at| at.parse().ok());
                progress_at = state.clock.now();
                record(state, acknowledged, PublishAck::read(&ack))?;
            }
            () = state.filled.notified(), if in_flight < WINDOW => {}
            _ = ticks.tick() => {
                let waits = state.clock.now().since(progress_at);
                if in_flight > 0 && waits >= PATIENCE {
                    return Err(JetStreamError::NoAnswer {
                        subject: state.settings.names.subjects(),
                        reason: format!("no acknowledgement for {waits:?}"),
                    });
                }
                if in_flight == 0 {
                    progress_at = state.clock.now();
                }
            }
        }
        send(state, jetstream, &inbox, &mut number).await?;
    }
}

/// Sends waiting messages until the window is full.
async fn send(
    state: &LogState,
    jetstream: &JetStream,
    inbox: &str,
    number: &mut u64,
) -> Result<(), JetStreamError> {
    let client = jetstream.client();
    let prefix = state.settings.names.subjects();
    let prefix = prefix.trim_end_matches('>');
    loop {
        let outgoing = {
            let mut outgoing = state.outgoing.lock();
            if outgoing.in_flight.len() >= WINDOW {
                return Ok(());
            }
            let Some(next) = outgoing.waiting.pop() else {
                return Ok(());
            };
            let limit = client.server_info().max_payload.saturating_sub(HEADERS);
            if next.message.bytes() > limit {
                add(&state.counters.dropped, 1);
                continue;
            }
            *number += 1;
            outgoing.in_flight.insert(*number, next.clone());
            next
        };
        let (headers, payload) = outgoing.message.encode(&outgoing.token);
        let subject = format!("{prefix}{}", outgoing.token);
        let reply = format!("{inbox}.{number}");
        client
            .publish_with_reply_and_headers(subject, reply, headers, payload)
            .await
            .map_err(|_| lost(inbox))?;
    }
}

/// Records the server's answer to a publication.
fn record(
    state: &LogState,
    number: Option<u64>,
    answer: Result<PublishAck, JetStreamError>,
) -> Result<(), JetStreamError> {
    let counters = &state.counters;
    match answer {
        Ok(ack) => {
            if let Some(number) = number {
                state.outgoing.lock().in_flight.remove(&number);
            }
            state.ability.lock().record_success();
            add(
                if ack.duplicate {
                    &counters.duplicates
                } else {
                    &counters.published
                },
                1,
            );
            Ok(())
        }
        Err(error) => {
            // The readers follow the engines themselves from now on, so nothing that waits here is
            // of use to them.
            state.ability.lock().record_failure(state.clock.now());
            let mut outgoing = state.outgoing.lock();
            let dropped = outgoing.in_flight.len() as u64 + outgoing.waiting.clear();
            outgoing.in_flight.clear();
            add(&counters.dropped, dropped);
            Err(error)
        }
    }
}

fn lost(subject: &str) -> JetStreamError {
    JetStreamError::NoAnswer {
        subject: subject.to_owned(),
        reason: "the connection was lost".to_owned(),
    }
}
