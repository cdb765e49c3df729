//! Sends requests that need the answers to the first ones: under a salt, for an adapter, for each
//! rank.

use std::sync::Arc;

use fleet::probe_prompt::{nonce, words};
use serde_json::json;

use super::{
    announcements::{self, AnnouncedBlocks, ExpectedAnnouncement},
    engine_client::EngineCallError,
    event_listener::EventListener,
    prober::Prober,
    probes::{AdapterObservation, ProbeOutcome, ProbeResults, ranks},
};

/// Most ranks that get their own request.
const MOST_RANKS: u32 = 8;

/// Sends the requests that need answers to the first two: under a salt, for an adapter, for each
/// rank.
pub(super) async fn send_further(
    seen: &mut ProbeResults,
    prober: &Prober<'_>,
    listeners: &[EventListener],
) {
    let (worker_probe, budget) = (prober.session.worker_probe, prober.session.budget);
    if seen.outcome != ProbeOutcome::Answered || budget.is_spent() {
        return;
    }
    let before = announcements::stores(listeners);
    let text = seen.text.clone();
    let salted = prober
        .send_prompt(&text, json!({"cache_salt": nonce()}))
        .await;
    seen.salted = Some(salted.map_err(EngineCallError::into_text));
    if seen.arrival.is_none() {
        return;
    }
    let several = ranks(worker_probe).min(MOST_RANKS);
    if several > 1 && matches!(seen.salted, Some(Ok(_))) {
        // A late announcement of this request must not be attributed to another rank.
        let any = ExpectedAnnouncement {
            ids: None,
            guess: None,
            lora: None,
            stores_before: before,
        };
        announcements::wait(listeners, &any, budget.events, budget).await;
    }
    let further = FurtherProbes { prober, listeners };
    if let Some(adapter) = worker_probe.loras.first().filter(|_| !budget.is_spent()) {
        seen.adapter = Some(further.adapter(&adapter.id, &text).await);
    }
    let own_ids_hold = seen
        .arrival
        .as_ref()
        .is_some_and(|arrival| arrival.blocks > 0);
    for rank in 1..several {
        if budget.is_spent() {
            break;
        }
        if let Some(observed) = further.rank(rank, &text, own_ids_hold).await {
            seen.ranks.push((rank, observed));
        }
    }
}

struct FurtherProbes<'a> {
    prober: &'a Prober<'a>,
    listeners: &'a [EventListener],
}

impl FurtherProbes<'_> {
    async fn adapter(&self, name: &Arc<str>, text: &str) -> AdapterObservation {
        let before = announcements::stores(self.listeners);
        let reply = self
            .prober
            .send_prompt(text, json!({"model": &**name}))
            .await
            .map_err(EngineCallError::into_text);
        let ids = match &reply {
            Ok(reply) => self.prober.engine_ids(reply, text).await,
            Err(_) => None,
        };
        let announced = match &ids {
            Some(ids) => {
                let announcement = ExpectedAnnouncement {
                    ids: Some(ids),
                    guess: None,
                    lora: Some(name),
                    stores_before: before,
                };
                Some(self.wait(&announcement).await.is_some())
            }
            None => None,
        };
        AdapterObservation {
            name: Arc::clone(name),
            reply,
            announced,
        }
    }

    /// Returns the rank on whose publisher a request for `rank` was announced; `None`: the request
    /// got no answer. The prompt is as long as `like`.
    async fn rank(&self, rank: u32, like: &str, own_ids_hold: bool) -> Option<Option<u32>> {
        let count = u32::try_from(like.split(' ').count()).unwrap_or(u32::MAX);
        let text = words(&nonce(), count);
        let before = announcements::stores(self.listeners);
        let prober = self.prober.for_rank(rank);
        let reply = prober.send_prompt(&text, json!({})).await.ok()?;
        let reported_ids = prober.engine_ids(&reply, &text).await;
        let ids = reported_ids.or_else(|| prober.own_ids(&text).filter(|_| own_ids_hold));
        let announcement = ExpectedAnnouncement {
            ids: ids.as_deref(),
            guess: None,
            lora: None,
            stores_before: before,
        };
        let arrival = self.wait(&announcement).await;
        Some(
            arrival
                .and_then(|arrival| self.listeners.get(arrival.stream))
                .map(|listener| listener.endpoint.rank),
        )
    }

    async fn wait(&self, announcement: &ExpectedAnnouncement<'_>) -> Option<AnnouncedBlocks> {
        let budget = self.prober.session.budget;
        announcements::wait(self.listeners, announcement, budget.events, budget).await
    }
}
