//! One request to the relay: for history, or a liveness check.

use std::time::Duration;

use async_nats::Client;
use bytes::Bytes;
use tokio::time::timeout;

use super::{
    NatsSubject,
    subscription_queue::{QueuedMessage, SubscriptionQueue, SubscriptionQueueSettings, WhenFull},
    wire::{self, PING_SEQ, RelayReply, WireError},
};
use crate::replay::{PAUSE, ReplayError, ReplayRun, ReplaySender};

/// Reasons for a failed request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NatsRequestError {
    #[error(
        "nobody answers on the subject {subject}: start `warmroute events relay` for it, or check the subject"
    )]
    Nobody { subject: String },
    #[error(
        "the relay on {subject} was silent for {limit:?}: check that it reaches the nats server"
    )]
    Silent { subject: String, limit: Duration },
    #[error(
        "the replay on {subject} broke off: nothing for {limit:?} after {batches} batches, and no end"
    )]
    BrokeOff {
        subject: String,
        limit: Duration,
        batches: u64,
    },
    #[error("the relay refuses: {reason}")]
    Refused { reason: String },
    #[error("answer on {subject}: {source}")]
    Wire { subject: String, source: WireError },
    #[error("the connection to nats was lost while {subject} was asked")]
    Lost { subject: String },
}

/// The address and limits of requests.
#[derive(Clone, Debug)]
pub(crate) struct NatsRequester {
    pub(crate) client: Client,
    pub(crate) subject: NatsSubject,
    /// Prefix of the accepted topics.
    pub(crate) topic: String,
    pub(crate) max_message: usize,
    /// Most bytes of queued messages of an answer.
    pub(crate) max_bytes: usize,
    /// Longest wait for the first message of an answer; later ones may take as long, but 2 s at
    /// most.
    pub(crate) timeout: Duration,
}

/// Progress of a request.
enum RequestProgress {
    Whole,
    /// The answer exceeded the queue behind this batch.
    Until(u64),
    /// The receiver is gone.
    Unwanted,
}

impl NatsRequester {
    /// Checks whether the relay is there and connected to its engine.
    pub(crate) fn ping(self) -> ReplayRun {
        ReplayRun::spawn(|answers| async move {
            self.run(PING_SEQ, &answers).await?;
            Ok(())
        })
    }

    /// Requests all batches from `from` on.
    pub(crate) fn history(self, from: u64) -> ReplayRun {
        ReplayRun::spawn(|answers| async move { self.all(from, &answers).await })
    }

    /// Requests all batches from `from` on, in parts. Nothing slows the relay down, so an answer may
    /// be faster than the index; if it exceeds the queue, the rest is requested once the queue has
    /// space.
    async fn all(self, mut from: u64, answers: &ReplaySender) -> Result<(), ReplayError> {
        while let RequestProgress::Until(last) = self.run(from, answers).await? {
            from = last.saturating_add(1);
        }
        Ok(())
    }

    async fn run(
        &self,
        from: u64,
        answers: &ReplaySender,
    ) -> Result<RequestProgress, NatsRequestError> {
        let subject = self.subject.replay();
        let mut intake = self.send_request(from).await?;
        let (mut limit, mut last, mut batches) = (self.timeout, None, 0);
        loop {
            let silent = |_| match batches {
                0 => NatsRequestError::Silent {
                    subject: subject.clone(),
                    limit,
                },
                _ => NatsRequestError::BrokeOff {
                    subject: subject.clone(),
                    limit,
                    batches,
                },
            };
            let message = match timeout(limit, intake.next()).await.map_err(silent)? {
                Some(QueuedMessage::Message(message)) => message,
                // The reader copes with its absence: the batch counts as missing then.
                Some(QueuedMessage::TooLarge(_)) => continue,
                None => {
                    return last
                        .filter(|_| intake.take_dropped() > 0)
                        .map(RequestProgress::Until)
                        .ok_or_else(|| self.lost());
                }
            };
            limit = self.timeout.min(PAUSE);
            match wire::reply(&message).map_err(|source| NatsRequestError::Wire {
                subject: subject.clone(),
                source,
            })? {
                RelayReply::Batch {
                    seq,
                    topic,
                    payload,
                } => {
                    (last, batches) = (Some(seq), batches + 1);
                    if topic.starts_with(&self.topic) && !answers.batch(seq, payload).await {
                        return Ok(RequestProgress::Unwanted);
                    }
                }
                RelayReply::End => {
                    answers.end();
                    return Ok(RequestProgress::Whole);
                }
                RelayReply::Refused(reason) => return Err(NatsRequestError::Refused { reason }),
                RelayReply::Nobody => return Err(NatsRequestError::Nobody { subject }),
            }
        }
    }

    /// Sends the request for all batches from `from` on; returns the queue of its answers.
    async fn send_request(&self, from: u64) -> Result<SubscriptionQueue, NatsRequestError> {
        let subject = self.subject.replay();
        let inbox = self.client.new_inbox();
        let subscriber = self
            .client
            .subscribe(inbox.clone())
            .await
            .map_err(|_| self.lost())?;
        let settings = SubscriptionQueueSettings {
            max_message: self.max_message,
            max_bytes: self.max_bytes,
            when_full: WhenFull::End,
        };
        let intake = SubscriptionQueue::start(subscriber, settings);
        let body = Bytes::from(from.to_string());
        self.client
            .publish_with_reply(subject, inbox, body)
            .await
            .map_err(|_| self.lost())?;
        Ok(intake)
    }

    fn lost(&self) -> NatsRequestError {
        NatsRequestError::Lost {
            subject: self.subject.replay(),
        }
    }
}

#[cfg(test)]
#[path = "../../../nats-client/tests/nats_server/mod.rs"]
mod nats_server;

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use futures_util::StreamExt;

    use super::{nats_server::NatsServer, *};
    use crate::replay::ReplayEvent;

    // One thread, so that an answer arrives faster than the client reads it.
    #[tokio::test]
    async fn an_answer_larger_than_the_buffer_is_requested_in_parts() {
        test_programs::require!(NatsServer);
        let server = NatsServer::start(&[]);
        let relay = async_nats::connect(server.url()).await.unwrap();
        let mut requests = relay.subscribe("kv.replay").await.unwrap();
        let request_count = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&request_count);
        let answering = tokio::spawn(async move {
            while let Some(request) = requests.next().await {
                count.fetch_add(1, Ordering::Relaxed);
                let inbox = request.reply.unwrap();
                for seq in wire::request(&request.payload).unwrap()..20 {
                    let headers = wire::batch_headers(seq, b"").unwrap();
                    relay
                        .publish_with_headers(inbox.clone(), headers, vec![0; 1_000].into())
                        .await
                        .unwrap();
                }
                relay
                    .publish_with_headers(inbox, wire::end_headers(), Bytes::new())
                    .await
                    .unwrap();
            }
        });
        let asker = NatsRequester {
            client: async_nats::connect(server.url()).await.unwrap(),
            subject: "kv".parse().unwrap(),
            topic: String::new(),
            max_message: 1_000,
            max_bytes: 4_000,
            timeout: Duration::from_secs(20),
        };
        let numbers = async {
            loop {
                // The server may not know the responder's subscription yet.
                let mut run = asker.clone().history(0);
                let mut numbers = Vec::new();
                loop {
                    match run.next().await {
                        Some(ReplayEvent::Batch { seq, .. }) => numbers.push(seq),
                        Some(ReplayEvent::End) => return numbers,
                        Some(ReplayEvent::Failed(ReplayError::Nats(
                            NatsRequestError::Nobody { .. },
                        ))) => break,
                        other => panic!("{other:?}"),
                    }
                }
            }
        };
        let numbers = timeout(Duration::from_secs(20), numbers)
            .await
            .expect("it ends");
        assert_eq!(numbers, (0..20).collect::<Vec<u64>>());
        assert!(request_count.load(Ordering::Relaxed) > 1);
        answering.abort();
    }
}
