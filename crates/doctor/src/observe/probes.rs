//! Sends a few one-token requests with a prompt of our own and observes the replies and events.
//!
//! The prompt begins with a random word, so that it shares no blocks with other requests.

use std::sync::Arc;

use fleet::WorkerProbe;
use kv_blocks::BlockSize;
use serde_json::json;

use super::{
    ObservationRequest,
    announcements::{self, AnnouncedBlocks, ExpectedAnnouncement},
    budget::NO_TIME,
    engine_client::EngineCallError,
    event_listener::EventListener,
    probe_reply::ProbeReply,
    prober::{Prober, PromptForm, nonce, words, words_of},
};

/// Block size assumed if it is unknown, so that the prompt is long enough: the largest usual one,
/// in tokens.
const LARGEST_USUAL_BLOCK: u32 = 128;
/// Longest prompt sent, in words. A word has one token or a few.
const MOST_WORDS: u32 = 8_192;
/// Tokens per word in a small vocabulary.
const TOKENS_PER_WORD: u32 = 2;
/// Tokens that a template adds to a prompt, and those of the reply.
const MARGIN_TOKENS: u32 = 64;
/// Most ranks that get their own request.
const MOST_RANKS: u32 = 8;
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

/// Returns the number of words of the first prompt, and of the second one which continues it: two
/// and a half blocks, then one and a half more. Whatever the tokens of a word, each adds a whole
/// block. The error says why the engine takes no such prompts.
fn lengths(
    configured: Option<BlockSize>,
    told: Option<BlockSize>,
    longest: Option<u32>,
) -> Result<(u32, u32), String> {
    let longest = longest.unwrap_or(u32::MAX);
    let room = (longest.saturating_sub(MARGIN_TOKENS) / TOKENS_PER_WORD).min(MOST_WORDS);
    let largest = room.saturating_sub(2) / 4;
    let known = configured
        .into_iter()
        .chain(told)
        .map(BlockSize::tokens)
        .max();
    let wanted = match told {
        Some(_) => known.unwrap_or(LARGEST_USUAL_BLOCK),
        None => known.unwrap_or(1).max(LARGEST_USUAL_BLOCK).min(largest),
    };
    if wanted > largest || wanted < known.unwrap_or(1) {
        let block = known.unwrap_or(wanted);
        return Err(format!(
            "blocks of {block} tokens are too long to try with prompts of up to {longest} tokens"
        ));
    }
    Ok((wanted * 5 / 2 + 1, wanted * 4 + 2))
}

/// Returns the engine's number of ranks; 0: unknown.
fn ranks(meeting: &WorkerProbe) -> u32 {
    let ranks = meeting
        .announced
        .as_ref()
        .map_or(0, Vec::len)
        .max(meeting.metrics_ranks as usize);
    u32::try_from(ranks).unwrap_or(u32::MAX)
}

/// Returns the rank that represents an engine of several ranks.
pub(super) fn first_rank(meeting: &WorkerProbe) -> Option<u32> {
    (ranks(meeting) > 1).then_some(0)
}

/// Sends the first two requests and waits for their events.
pub(super) async fn begin(
    prober: &mut Prober<'_>,
    asked: ObservationRequest<'_>,
    ears: &[EventListener],
) -> ProbeResults {
    let (meeting, budget) = (prober.session.meeting, prober.session.budget);
    let longest = meeting.models.first().and_then(|model| model.max_model_len);
    let lengths = match lengths(asked.worker.block_size, meeting.block_size, longest) {
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
        let before = announcements::stores(ears);
        if let Err(error) = send_pair(prober, attempt, lengths, &mut seen).await {
            return without_answer(seen, error);
        }
        // An engine without prefix caching publishes nothing.
        if meeting.prefix_caching == Some(false) {
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
        let arrival = announcements::wait(ears, &announcement, patience, budget).await;
        seen.arrival = arrival.or(seen.arrival);
        if seen
            .arrival
            .as_ref()
            .is_some_and(|arrival| arrival.wanted && arrival.blocks == arrival.whole)
        {
            break;
        }
    }
    if seen.second.cached_tokens.is_none_or(|cached| cached == 0) {
        seen.counted = counted(asked, meeting).await;
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
        prober.ask(&start, json!({})).await?
    };
    let second = prober.ask(&text, json!({})).await?;
    (seen.first, seen.second) = (first, second);
    (seen.outcome, seen.form) = (ProbeOutcome::Answered, prober.form());
    seen.own = own_prompt(prober, &start, &text);
    seen.text = text;
    Ok(())
}

/// Returns the increase of the engine's own counters since the probe.
async fn counted(asked: ObservationRequest<'_>, meeting: &WorkerProbe) -> Option<(u64, u64)> {
    let (queries, hits) = meeting.prefix_cache?;
    let (queries_now, hits_now) = asked.meetings.prefix_cache(asked.id).await?;
    Some((
        queries_now.checked_sub(queries)?,
        hits_now.checked_sub(hits)?,
    ))
}

fn own_prompt(prober: &Prober<'_>, start: &str, text: &str) -> Option<OwnPrompt> {
    let own = prober.session.meeting.artefacts.prompt.as_ref()?;
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

/// Sends the requests that need answers to the first two: under a salt, for an adapter, for each
/// rank.
pub(super) async fn send_further(
    seen: &mut ProbeResults,
    prober: &Prober<'_>,
    ears: &[EventListener],
) {
    let (meeting, budget) = (prober.session.meeting, prober.session.budget);
    if seen.outcome != ProbeOutcome::Answered || budget.is_spent() {
        return;
    }
    let before = announcements::stores(ears);
    let text = seen.text.clone();
    let salted = prober.ask(&text, json!({"cache_salt": nonce()})).await;
    seen.salted = Some(salted.map_err(EngineCallError::into_text));
    if seen.arrival.is_none() {
        return;
    }
    let several = ranks(meeting).min(MOST_RANKS);
    if several > 1 && matches!(seen.salted, Some(Ok(_))) {
        // A late announcement of this request must not be attributed to another rank.
        let any = ExpectedAnnouncement {
            ids: None,
            guess: None,
            lora: None,
            stores_before: before,
        };
        announcements::wait(ears, &any, budget.events, budget).await;
    }
    let further = FurtherProbes {
        prober,
        listeners: ears,
    };
    if let Some(adapter) = meeting.loras.first().filter(|_| !budget.is_spent()) {
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
        if let Some(heard) = further.rank(rank, &text, own_ids_hold).await {
            seen.ranks.push((rank, heard));
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
            .ask(text, json!({"model": &**name}))
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
        let reply = prober.ask(&text, json!({})).await.ok()?;
        let told = prober.engine_ids(&reply, &text).await;
        let ids = told.or_else(|| prober.own_ids(&text).filter(|_| own_ids_hold));
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
                .map(|ear| ear.endpoint.rank),
        )
    }

    async fn wait(&self, announcement: &ExpectedAnnouncement<'_>) -> Option<AnnouncedBlocks> {
        let budget = self.prober.session.budget;
        announcements::wait(self.listeners, announcement, budget.events, budget).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(tokens: u64) -> Option<BlockSize> {
        BlockSize::new(tokens).ok()
    }

    #[test]
    fn prompts_have_full_blocks_of_the_largest_common_size_unless_the_engine_reports_its_own() {
        assert_eq!(lengths(blocks(16), blocks(32), None), Ok((81, 130)));
        assert_eq!(lengths(blocks(16), None, None), Ok((321, 514)));
        assert_eq!(lengths(blocks(256), None, None), Ok((641, 1026)));
        assert_eq!(lengths(None, None, None), Ok((321, 514)));
    }

    #[test]
    fn prompts_are_limited_by_the_model_length_and_not_below_the_known_block_size() {
        let (first, second) = lengths(blocks(16), None, Some(512)).expect("shorter ones fit");
        assert!(
            first < second && second >= 16 * 4 && second * TOKENS_PER_WORD + MARGIN_TOKENS <= 512
        );
        assert!(lengths(blocks(16), None, Some(128)).is_err());
        assert!(lengths(blocks(16), blocks(256), Some(1024)).is_err());
    }
}
