//! The keys that tie a request to earlier ones, for affinity policies: the beginning of its prompt,
//! and its session.

mod holders;

use std::sync::Arc;

use ::lmcache::Controller;
use dialect::{Anchor, PromptPart, RequestView};
use fleet::{Fleet, ModelView};
use http::{HeaderMap, HeaderName, HeaderValue};
use kv_blocks::{Moment, WorkerId};
use net::Clock;
use routing::{
    Affinity, GrowingChat, KvDecisionCounters, Policy, PrefixHolder, PrefixRoutingSection,
    PromptGrowth, Router, SessionKeys, SessionMode, SessionSection,
};
use tokenization::TokenizedPrompt;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub(crate) use self::holders::SearchedPrompt;
use super::{
    clusters::{ClusterMembership, Clusters},
    lmcache::{self, CandidateChoice, LmcacheAnswer},
    prefill::RequestPolicies,
};
use crate::{ids::IdGenerator, shared_prefixes::SharedPrefixes};

/// The affinity facts of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct AffinityKeys {
    pub(crate) keys: Affinity,
    /// The keys of its session; `None`: no session, or no policy uses it.
    pub(crate) session: Option<Arc<SessionKeys>>,
    /// Workers that hold the prompt's beginning, by streams of whole prefixes; `None`: no such
    /// stream, or no policy uses it.
    pub(crate) holders: Option<Vec<PrefixHolder>>,
    /// The answer of LMCache's controller; `None`: no controller, or no policy uses it.
    pub(crate) lmcache: Option<LmcacheAnswer>,
    /// The semantic cluster, which limits the workers.
    pub(crate) cluster: Option<ClusterMembership>,
    /// The key of the prompt's beginning in the prefix memory.
    beginning: Option<u64>,
}

impl AffinityKeys {
    /// Sets the cluster, whose name then counts as a session key sent by the client.
    fn with_cluster(mut self, cluster: Option<ClusterMembership>) -> Self {
        if let Some(cluster) = &cluster {
            self.keys.session_key = self
                .keys
                .session_key
                .map(|_| xxh3_64(cluster.name().as_bytes()));
        }
        Self { cluster, ..self }
    }

    /// Adds the worker that served an equal prompt beginning, where the prefix memory is
    /// configured.
    fn with_prefix_memory(
        mut self,
        prefixes: Option<&SharedPrefixes>,
        view: &RequestView<'_>,
        now: Moment,
    ) -> Self {
        let Some(prefixes) = prefixes else {
            return self;
        };
        self.beginning = prefixes.key(view);
        self.keys.served_by = self.beginning.and_then(|key| prefixes.find(now, key));
        self
    }
}

/// Settings of the keys that a reload replaces.
#[derive(Clone, Debug)]
pub(crate) struct AffinitySettings {
    /// Headers that name a session; the first one present wins.
    session_headers: Vec<HeaderName>,
    prefix_routing: PrefixRoutingSection,
}

impl AffinitySettings {
    pub(crate) fn of(session: &SessionSection, prefix_routing: PrefixRoutingSection) -> Self {
        // Invalid names were refused with the configuration.
        let names = session.headers.iter().filter_map(|name| name.parse().ok());
        Self {
            session_headers: names.collect(),
            prefix_routing,
        }
    }
}

/// The sources of a request's affinity keys.
#[derive(Clone, Debug)]
pub(crate) struct AffinityStage {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) router: Arc<Router>,
    pub(crate) shared_prefixes: Option<Arc<SharedPrefixes>>,
    pub(crate) clusters: Option<Arc<Clusters>>,
    pub(crate) lmcache: Option<Arc<Controller>>,
    pub(crate) counters: Arc<KvDecisionCounters>,
    pub(crate) settings: AffinitySettings,
    pub(crate) ids: Arc<IdGenerator>,
    pub(crate) clock: Clock,
}

/// A request as its keys are computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AffinityInput<'a> {
    pub(crate) policies: RequestPolicies,
    pub(crate) headers: &'a HeaderMap,
    /// The body from which the view was read.
    pub(crate) body: &'a [u8],
    pub(crate) view: &'a RequestView<'a>,
}

impl AffinityStage {
    /// Returns the semantic cluster of a request, where clusters are configured.
    pub(crate) async fn cluster(
        &self,
        headers: &HeaderMap,
        view: &RequestView<'_>,
    ) -> Option<ClusterMembership> {
        match &self.clusters {
            Some(clusters) => Box::pin(clusters.of(headers, view)).await,
            None => None,
        }
    }

    /// Computes the keys of a request that belongs to `cluster`. Hashes nothing that no policy
    /// uses.
    pub(crate) async fn keys(
        &self,
        input: AffinityInput<'_>,
        cluster: Option<ClusterMembership>,
    ) -> AffinityKeys {
        let prefixes = self.shared_prefixes.as_deref();
        self.prompt_keys(input)
            .await
            .with_cluster(cluster)
            .with_prefix_memory(prefixes, input.view, self.clock.now())
    }

    /// Looks up the prompt at LMCache's controller; `None` where none is configured, or no policy
    /// uses it.
    pub(crate) async fn lmcache(
        &self,
        policies: RequestPolicies,
        model: &ModelView,
        prompt: &TokenizedPrompt,
        choice: CandidateChoice,
    ) -> Option<LmcacheAnswer> {
        let controller = self
            .lmcache
            .as_deref()
            .filter(|_| policies.any(Policy::needs_lmcache))?;
        Some(Box::pin(lmcache::look_up(controller, model, prompt, choice)).await)
    }

    /// Records that this worker took the request with these keys.
    pub(crate) fn record_served(&self, keys: &AffinityKeys, worker: WorkerId) {
        if let (Some(prefixes), Some(key)) = (&self.shared_prefixes, keys.beginning) {
            prefixes.record_served(self.clock.now(), key, worker, self.ids.next_number());
        }
    }

    async fn prompt_keys(&self, input: AffinityInput<'_>) -> AffinityKeys {
        let AffinityInput {
            policies,
            headers,
            body,
            view,
        } = input;
        let mode = self.router.session_mode(policies.decode);
        let keyed = policies.any(Policy::is_keyed);
        if !keyed && mode == SessionMode::Off {
            return AffinityKeys::default();
        }
        let name = session_name(&self.settings.session_headers, headers, view);
        let session = session_keys(mode, name, view);
        if !keyed {
            return AffinityKeys {
                session,
                ..AffinityKeys::default()
            };
        }
        let max_bytes = self.settings.prefix_routing.max_prefix_length;
        let keys = Affinity {
            prefix_key: Anchor::of(view).map(|anchor| anchor.key(&view.model, max_bytes)),
            // Without a session name only an equal request has this key.
            session_key: Some(xxh3_64(name.unwrap_or(body))),
            served_by: None,
        };
        // Streams of whole prefixes name no salt: a salted prompt shares none of what they announce.
        let named = policies.any(Policy::needs_prefix_holders) && view.cache_salt.is_none();
        let holders = if named {
            Box::pin(self.prefix_holders(&keys)).await
        } else {
            None
        };
        AffinityKeys {
            keys,
            session,
            holders,
            ..AffinityKeys::default()
        }
    }
}

/// Headers in which agent clients name a session, after the configured ones: Claude Code; Codex
/// CLI, now and before; opencode with its own gateway and with others; NVIDIA Dynamo.
const AGENT_HEADERS: [HeaderName; 6] = [
    HeaderName::from_static("x-claude-code-session-id"),
    HeaderName::from_static("session-id"),
    HeaderName::from_static("session_id"),
    HeaderName::from_static("x-opencode-session"),
    HeaderName::from_static("x-session-affinity"),
    HeaderName::from_static("x-dynamo-session-id"),
];

/// Returns the session's name: from the first of these headers, else from the body's fields
/// (contract V25).
fn session_name<'a>(
    configured: &[HeaderName],
    headers: &'a HeaderMap,
    view: &'a RequestView<'_>,
) -> Option<&'a [u8]> {
    let named = |name: &HeaderName| {
        headers
            .get(name)
            .map(HeaderValue::as_bytes)
            .filter(|value| !value.is_empty())
    };
    let header = configured.iter().chain(&AGENT_HEADERS).find_map(named);
    header.or_else(|| view.session.key().map(str::as_bytes))
}

/// Returns the keys by which the router may recognise the session, by its name or because the
/// request begins with all of an earlier one; hashes only those that it uses. A name counts as a
/// whole and leaves this module only as a hash, together with the model and the salt: equal names
/// of two models, or under two salts, are two sessions.
fn session_keys(
    mode: SessionMode,
    name: Option<&[u8]>,
    view: &RequestView<'_>,
) -> Option<Arc<SessionKeys>> {
    if mode == SessionMode::Off {
        return None;
    }
    let model = xxh3_64(view.model.as_bytes());
    let apart = view
        .cache_salt
        .as_ref()
        .map_or(model, |salt| xxh3_64_with_seed(salt.as_bytes(), model));
    // A name alone decides.
    let growth = if name.is_some() {
        None
    } else {
        growth(apart, &view.prompt)
    };
    let name = name.map(|name| xxh3_64_with_seed(name, apart));
    (name.is_some() || growth.is_some()).then(|| Arc::new(SessionKeys { name, growth }))
}

/// Separates equal hashes of different kinds of keys.
const CHAT: u64 = 1;
const TEXT: u64 = 2;
const IDS: u64 = 3;

fn growth(apart: u64, prompt: &PromptPart<'_>) -> Option<PromptGrowth> {
    let seed = |kind: u64| xxh3_64_with_seed(&kind.to_le_bytes(), apart);
    match prompt {
        PromptPart::Messages(messages) => {
            let mut growing = GrowingChat::new(seed(CHAT));
            messages.for_each_turn(|turn| {
                let is_reply = turn.has_role("assistant");
                growing.add(dialect::steady_turn(turn).as_bytes(), is_reply);
            });
            growing.growth()
        }
        PromptPart::Text(text) => PromptGrowth::of_text(seed(TEXT), text.as_bytes()),
        PromptPart::TokenIds(ids) | PromptPart::TokenIdsWithMedia { ids, .. } => {
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            PromptGrowth::of_text(seed(IDS), &bytes)
        }
        PromptPart::Batch { .. } | PromptPart::None => None,
    }
}

#[cfg(test)]
mod tests;
