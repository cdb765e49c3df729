//! Sends a few one-token requests with a prompt of our own and observes the replies and events.
//!
//! The prompt begins with a random word, so that it shares no blocks with other requests.

use std::sync::Arc;

use fleet::{
    WorkerProbe,
    probe_prompt::{lengths, nonce, words, words_of},
};
use serde_json::json;

use super::{
    ObservationRequest,
    announcements::{self, AnnouncedBlocks, ExpectedAnnouncement},
    budget::NO_TIME,
    engine_client::EngineCallError,
    event_listener::EventListener,
    probe_reply::ProbeReply,
    prober::{Prober, PromptForm},
};

/// Attempts: a subscription may come too late for the first batch.
const ATTEMPTS: u32 = 2;

/// Results of our requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ProbeResults {
    pub(crate) outcome: ProbeOutcome,
    /// Form in which they were sent.
    pub(crate) form: PromptForm,
    /// The reply to the first request.
    pub(crate) first: ProbeReply,
    /// The reply to the second request, which continues the first one's prompt.
    pub(crate) second: ProbeReply,
    /// The prompts by our tokenizer.
    pub(crate) own: Option<OwnPrompt>,
    /// Announcement of their blocks.
    pub(crate) arrival: Option<AnnouncedBlocks>,
    /// Tokens looked up and found in the cache meanwhile by the engine's counters, for all
    /// requests.
    pub(crate) counted: Option<(u64, u64)>,
    /// Reply to the same prompt under a salt.
    pub(crate) salted: Option<Result<ProbeReply, String>>,
    /// Observation of the same prompt for an adapter.
    pub(crate) adapter: Option<AdapterObservation>,
    /// Rank that a request was for, and the rank whose publisher announced its blocks.
    pub(crate) ranks: Vec<(u32, Option<u32>)>,
    /// Text of the second prompt.
    pub(crate) text: String,
}

/// Outcome of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ProbeOutcome {
    /// None was sent: requests are disabled.
    #[default]
    NotSent,
    /// Reason why none could be sent, which is no fault of the engine.
    Unfit(String),
    /// Reason why one got no answer.
    Failed(String),
    /// Both were answered.
    Answered,
}

/// The prompts by our tokenizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnPrompt {
    /// The second prompt, as it was sent; `None`: our template does not render it.
    pub(crate) ids: Option<Vec<u32>>,
    /// Its text alone, without special tokens.
    pub(crate) text: Vec<u32>,
    /// Tokens that it has more than the first.
    pub(crate) longer_by: u64,
}

/// Observation of a prompt for an adapter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AdapterObservation {
    pub(crate) name: Arc<str>,
    pub(crate) reply: Result<ProbeReply, String>,
    /// Whether its blocks were announced under its name; `None`: its blocks are unknown.
    pub(crate) announced: Option<bool>,
}

/// Returns the engine's number of ranks; 0: unknown.
pub(super) fn ranks(worker_probe: &WorkerProbe) -> u32 {
    let ranks = worker_probe
        .announced
        .as_ref()
        .map_or(0, Vec::len)
        .max(worker_probe.metrics_ranks as usize);
    u32::try_from(ranks).unwrap_or(u32::MAX)
}

/// Returns the rank that represents an engine of several ranks.
pub(super) fn first_rank(worker_probe: &WorkerProbe) -> Option<u32> {
    (ranks(worker_probe) > 1).then_some(0)
}

/// Sends the first two requests and waits for their events.
pub(super) async fn begin(
    prober: &mut Prober<'_>,
    request: ObservationRequest<'_>,
    listeners: &[EventListener],
) -> ProbeResults {
    let (worker_probe, budget) = (prober.session.worker_probe, prober.session.budget);
    let longest = worker_probe
        .models
        .first()
        .and_then(|model| model.max_model_len);
    let lengths = match lengths(request.worker.block_size, worker_probe.block_size, longest) {
        Ok(lengths) => lengths,
        Err(reason) => return unfit(reason),
    };
    let mut seen = ProbeResults::default();
    for attempt in 1..=ATTEMPTS {
        if budget.is_spent() {
            if attempt == 1 {
                return unfit(NO_TIME.to_owned());
            }
            break;
        }
        let before = announcements::stores(listeners);
        if let Err(error) = send_pair(prober, attempt, lengths, &mut seen).await {
            return without_answer(seen, error);
        }
        // An engine without prefix caching publishes nothing.
        if worker_probe.prefix_caching == Some(false) {
            break;
        }
        let ids = prober.engine_ids(&seen.second, &seen.text).await;
        let guess = seen
            .own
            .as_ref()
            .and_then(|own| own.ids.as_deref())
            .filter(|_| ids.is_none());
        let announcement = ExpectedAnnouncement {
            ids: ids.as_deref(),
            guess,
            lora: None,
            stores_before: before,
        };
        let patience = if attempt == 1 {
            budget.late_events
        } else {
            budget.events
        };
        let arrival = announcements::wait(listeners, &announcement, patience, budget).await;
        seen.arrival = arrival.or(seen.arrival);
        if seen
            .arrival
            .as_ref()
            .is_some_and(|arrival| arrival.subscribed && arrival.blocks == arrival.whole)
        {
            break;
        }
    }
    if seen.second.cached_tokens.is_none_or(|cached| cached == 0) {
        seen.counted = counted(request, worker_probe).await;
    }
    seen
}

fn without_answer(seen: ProbeResults, error: EngineCallError) -> ProbeResults {
    match error {
        EngineCallError::Failed(reason) => ProbeResults {
            outcome: ProbeOutcome::Failed(reason),
            ..seen
        },
        refused => unfit(refused.into_text()),
    }
}

fn unfit(reason: String) -> ProbeResults {
    ProbeResults {
        outcome: ProbeOutcome::Unfit(reason),
        ..ProbeResults::default()
    }
}

/// Sends both requests with a new prompt of these lengths; the first attempt finds the form in
/// which the engine takes it.
async fn send_pair(
    prober: &mut Prober<'_>,
    attempt: u32,
    (first, second): (u32, u32),
    seen: &mut ProbeResults,
) -> Result<(), EngineCallError> {
    let text = words(&nonce(), second);
    let start = words_of(&text, first);
    let first = if attempt == 1 {
        prober.begin(&start).await?
    } else {
        prober.send_prompt(&start, json!({})).await?
    };
    let second = prober.send_prompt(&text, json!({})).await?;
    (seen.first, seen.second) = (first, second);
    (seen.outcome, seen.form) = (ProbeOutcome::Answered, prober.form());
    seen.own = own_prompt(prober, &start, &text);
    seen.text = text;
    Ok(())
}

/// Returns the increase of the engine's own counters since the probe.
async fn counted(
    request: ObservationRequest<'_>,
    worker_probe: &WorkerProbe,
) -> Option<(u64, u64)> {
    let (queries, hits) = worker_probe.prefix_cache?;
    let (queries_now, hits_now) = request.prober.prefix_cache(request.id).await?;
    Some((
        queries_now.checked_sub(queries)?,
        hits_now.checked_sub(hits)?,
    ))
}

fn own_prompt(prober: &Prober<'_>, start: &str, text: &str) -> Option<OwnPrompt> {
    let own = prober.session.worker_probe.artefacts.prompt.as_ref()?;
    let (short, long) = (
        own.text_tokens(start, false).ok()?,
        own.text_tokens(text, false).ok()?,
    );
    let longer_by = long.len().saturating_sub(short.len()) as u64;
    Some(OwnPrompt {
        ids: prober.own_ids(text),
        text: long,
        longer_by,
    })
}
