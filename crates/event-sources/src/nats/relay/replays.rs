//! Requests for history, answered from the engine's replay socket.

use std::{sync::Arc, time::Duration};

use async_nats::{Client, HeaderMap, Message, Subscriber, client::PublishErrorKind};
use bytes::Bytes;
use futures_util::StreamExt;
use kv_events::frames::{self, ReplayFrame};
use tokio::{task::JoinSet, time::timeout};
use zmtp::{Dealer, Endpoint, Limits};

use super::{NatsRelay, RelayCounters};
use crate::nats::wire::{self, EngineLinkNote, PING_SEQ};

/// Most concurrent replays. More would only make each slower; a refused reader requests again.
const AT_ONCE: usize = 4;
/// Longest wait for the replay socket, and for each message of its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest duration of an answer.
const LONGEST: Duration = Duration::from_secs(300);
/// Prefix of reply subjects. Without it any client that may send requests could make the relay
/// publish on any subject.
const INBOXES: &str = "_INBOX.";

/// Answers requests until the connection is over.
pub(super) async fn serve(relay: &NatsRelay, client: &Client, mut requests: Subscriber) {
    // Dropped with the connection, together with the running replays.
    let mut running = JoinSet::new();
    loop {
        let request = tokio::select! {
            request = requests.next() => request,
            Some(_) = running.join_next() => continue,
        };
        let Some(request) = request else { return };
        while running.try_join_next().is_some() {}
        let Some(inbox) = inbox(&request) else {
            continue;
        };
        let answer = |headers| client.publish_with_headers(inbox.clone(), headers, Bytes::new());
        let refusal = match wire::request(&request.payload) {
            Err(error) => error.to_string(),
            Ok(PING_SEQ) if relay.link_note() == EngineLinkNote::Connected => {
                let _ = answer(wire::end_headers()).await;
                continue;
            }
            Ok(PING_SEQ) => format!(
                "it is not connected to the engine at {}",
                relay.spec.endpoint
            ),
            Ok(_) if running.len() >= AT_ONCE => {
                format!("{AT_ONCE} replays are running already, ask again later")
            }
            Ok(from) => match &relay.spec.replay_endpoint {
                Some(endpoint) => {
                    let (client, counters) = (client.clone(), Arc::clone(&relay.counters));
                    let replaying = ActiveReplay {
                        client,
                        inbox,
                        endpoint: endpoint.clone(),
                        counters,
                    };
                    running.spawn(replaying.run(from));
                    continue;
                }
                None => "the engine's replay socket is not known to it: start it with --replay"
                    .to_owned(),
            },
        };
        let _ = answer(wire::error_headers(&refusal)).await;
    }
}

fn inbox(request: &Message) -> Option<String> {
    request
        .reply
        .as_ref()
        .map(ToString::to_string)
        .filter(|inbox| inbox.starts_with(INBOXES))
}

/// One running answer.
struct ActiveReplay {
    client: Client,
    inbox: String,
    endpoint: Endpoint,
    counters: Arc<RelayCounters>,
}

impl ActiveReplay {
    async fn run(self, from: u64) {
        let failure = match timeout(LONGEST, self.relay(from)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("{}: {error}", self.endpoint),
            Err(_) => format!("{}: the answer took more than {LONGEST:?}", self.endpoint),
        };
        let _ = self.send(wire::error_headers(&failure), Bytes::new()).await;
    }

    async fn relay(&self, from: u64) -> Result<(), String> {
        let describe = |error: zmtp::Disconnect| error.to_string();
        let mut dealer = Dealer::connect(&self.endpoint, Limits::default(), PATIENCE)
            .await
            .map_err(describe)?;
        dealer
            .send(&frames::replay_request(from))
            .await
            .map_err(describe)?;
        loop {
            let silent = |_| format!("nothing came for {PATIENCE:?}");
            let message = timeout(PATIENCE, dealer.recv())
                .await
                .map_err(silent)?
                .map_err(describe)?;
            let ReplayFrame::Batch { seq, payload } =
                frames::replay(&message).map_err(|error| error.to_string())?
            else {
                return self.send(wire::end_headers(), Bytes::new()).await;
            };
            // Both layouts end with the payload; only the newer one has a topic, in front of the
            // number.
            let topic = if let [_, topic, _, _] = &message[..] {
                &topic[..]
            } else {
                b""
            };
            if let Some(headers) = wire::batch_headers(seq, topic) {
                self.send(
                    headers,
                    message
                        .last()
                        .map(|frame| frame.slice_ref(payload))
                        .unwrap_or_default(),
                )
                .await?;
            }
        }
    }

    /// Sends one message of the answer; skips one that is too large for the server.
    async fn send(&self, headers: HeaderMap, payload: Bytes) -> Result<(), String> {
        match self
            .client
            .publish_with_headers(self.inbox.clone(), headers, payload)
            .await
        {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                RelayCounters::count(&self.counters.too_large);
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }
}
