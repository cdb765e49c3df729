//! The sockets of one rank: live messages, and answers to replay requests.

use std::{sync::Arc, time::Duration};

use kv_events::frames::{self, ReplayForm};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use zmtp::{Endpoint, Limits, Pub, PubSettings, Router};

use super::live_stream::{LiveStream, NumberedBatch};
use crate::{ReplayFormat, config::EventSettings};

/// The sockets of one rank.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) live: Pub,
    replay: Option<JoinHandle<()>>,
}

impl Sockets {
    pub(super) async fn bind(
        events: &Endpoint,
        replay: Option<&Endpoint>,
        settings: &EventSettings,
        stream: &Arc<Mutex<LiveStream>>,
    ) -> Result<(Self, Endpoint, Option<Endpoint>), net::ListenError> {
        let (live, events) = Pub::bind(events, PubSettings::default()).await?;
        let Some(replay) = replay else {
            return Ok((Self { live, replay: None }, events, None));
        };
        let (router, replay) = Router::bind(replay, Limits::default()).await?;
        let form = match settings.replay_format {
            ReplayFormat::Old => ReplayForm::Old,
            ReplayFormat::New => ReplayForm::New,
        };
        let task = runtime::spawn(answer_replays(
            router,
            Arc::clone(stream),
            form,
            settings.topic.clone(),
        ));
        Ok((
            Self {
                live,
                replay: Some(task),
            },
            events,
            Some(replay),
        ))
    }

    pub(super) async fn close(self) {
        if let Some(replay) = self.replay {
            replay.abort();
            // Cancellation is the expected end.
            let _ = replay.await;
        }
        self.live.close(Duration::ZERO).await;
    }
}

/// Serves one replay request at a time, as the real publisher does.
async fn answer_replays(
    mut router: Router,
    stream: Arc<Mutex<LiveStream>>,
    form: ReplayForm,
    topic: String,
) {
    loop {
        let (peer, request) = router.recv().await;
        let start = match frames::parse_replay_request(&request) {
            Ok(start) => start,
            Err(error) => {
                // The real engine logs and does not answer.
                tracing::warn!(%error, "replay request ignored");
                continue;
            }
        };
        let batches: Vec<NumberedBatch> = {
            let stream = stream.lock();
            stream
                .buffer
                .iter()
                .filter(|(seq, _)| *seq >= start)
                .cloned()
                .collect()
        };
        let mut here = true;
        for (seq, payload) in &batches {
            here = here
                && router
                    .send(
                        &peer,
                        &frames::encode_replay(form, topic.as_bytes(), *seq, payload),
                    )
                    .await;
        }
        if here {
            router.send(&peer, &frames::encode_replay_end(form)).await;
        }
    }
}
