//! The keys that tie a request to earlier ones, for affinity policies: the beginning of its prompt,
//! and its session.

use std::sync::Arc;

use ::lmcache::Controller;
use dialect::{Anchor, RequestView};
use fleet::{Fleet, ModelView};
use http::{HeaderMap, HeaderName};
use kv_blocks::{Moment, WorkerId};
use net::Clock;
use prefix_view::{Holder, PrefixHash, StorageTier};
use routing::{
    Affinity, KvDecisionCounters, Policy, PrefixHolder, PrefixRoutingSection, Router, SessionKeys,
    SessionMode, SessionSection,
};
use tokenization::TokenizedPrompt;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    clusters::{ClusterMembership, Clusters},
    lmcache::{self, CandidateChoice, LmcacheAnswer},
    prefill::RequestPolicies,
    session,
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
            Some(clusters) => clusters.of(headers, view).await,
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
        Some(lmcache::look_up(controller, model, prompt, choice).await)
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
        let name = session::name(&self.settings.session_headers, headers, view);
        let session = session::keys(mode, name, view);
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
        let holders = if policies.any(Policy::needs_prefix_holders) {
            self.prefix_holders(&keys).await
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

    /// Returns the holders of the prompt's beginning; `None` where no prefix streams are followed.
    async fn prefix_holders(&self, keys: &Affinity) -> Option<Vec<PrefixHolder>> {
        let prefixes = self.fleet.prefixes()?;
        let Some(key) = keys.prefix_key else {
            return Some(Vec::new());
        };
        let prefix = PrefixHash::Key(key);
        let holders = match prefixes.cached_holders(&prefix) {
            Some(holders) => holders,
            None => {
                let began = self.clock.now();
                let holders = prefixes.holders(&prefix).await;
                self.counters.record_query(self.clock.now().since(began));
                holders
            }
        };
        let one = |holder: &Holder| PrefixHolder {
            worker: Arc::clone(&holder.backend),
            tokens: holder.tokens,
            hot: holder.tier == StorageTier::GpuHot,
        };
        Some(holders.iter().map(one).collect())
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use dialect::{Dialect, view};
    use http::HeaderName;

    use super::*;
    use crate::request::test_gateway::TestGateway;

    const FIELDS: &str =
        r#""session_params": {"session_id": "a"}, "user": "b", "session_id": "c", "user_id": "d""#;

    fn name(headers: &[(&'static str, &str)], fields: &str) -> Option<String> {
        let body = format!(
            r#"{{"model": "m", "messages": []{}{fields}}}"#,
            if fields.is_empty() { "" } else { ", " }
        );
        let view = view(Dialect::Chat, body.as_bytes()).expect("a good body");
        let headers = headers
            .iter()
            .map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap()))
            .collect();
        let configured =
            ["x-semantic-cluster-id", "x-session-id", "x-user-id"].map(HeaderName::from_static);
        session::name(&configured, &headers, &view)
            .map(|name| String::from_utf8_lossy(name).into_owned())
    }

    #[test]
    #[contract("V25")]
    fn a_session_id_comes_from_headers_before_fields() {
        let all = [
            ("x-user-id", "3"),
            ("x-session-id", "2"),
            ("x-semantic-cluster-id", "1"),
        ];
        for (headers, fields, named) in [
            (&all[..], FIELDS, "1"),
            (&all[..2], FIELDS, "2"),
            (&all[..1], FIELDS, "3"),
            (&[("x-user-id", "")][..], FIELDS, "a"),
            (&[][..], &FIELDS[FIELDS.find("\"user\"").unwrap()..], "b"),
            (&[][..], r#""user_id": "d", "session_id": "c""#, "c"),
            (&[][..], r#""user_id": 7"#, "7"),
        ] {
            assert_eq!(
                name(headers, fields).as_deref(),
                Some(named),
                "{headers:?} {fields}"
            );
        }
        assert_eq!(name(&[], ""), None);
    }
    async fn keys_of(stage: &AffinityStage, policy: Policy, body: &str) -> AffinityKeys {
        let view = view(Dialect::Chat, body.as_bytes()).expect("a good body");
        let input = AffinityInput {
            policies: RequestPolicies {
                decode: policy,
                prefill: None,
            },
            headers: &HeaderMap::new(),
            body: body.as_bytes(),
            view: &view,
        };
        stage.keys(input, None).await
    }

    const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"a long beginning"}]}"#;

    #[tokio::test]
    async fn keys_are_computed_only_for_a_policy_that_uses_them() {
        let test = TestGateway::new();
        let stage = &test.delivery().affinity;
        let plain = keys_of(stage, Policy::RoundRobin, CHAT).await;
        assert!(plain.keys.prefix_key.is_none() && plain.keys.session_key.is_none());
        let keyed = keys_of(stage, Policy::PrefixHash, CHAT).await;
        assert!(keyed.keys.prefix_key.is_some() && keyed.keys.session_key.is_some());
        assert!(keyed.holders.is_none(), "no prefix streams are followed");
    }

    #[tokio::test]
    async fn equal_beginnings_share_a_prefix_key_and_only_equal_requests_a_session_key() {
        let test = TestGateway::new();
        let stage = &test.delivery().affinity;
        let keys = async |body: &str| keys_of(stage, Policy::PrefixHash, body).await.keys;
        let own = keys(CHAT).await;
        let answered = CHAT.replace("}]}", r#"},{"role":"assistant","content":"b"}]}"#);
        let longer = keys(&answered).await;
        assert_eq!(own.prefix_key, longer.prefix_key);
        assert_ne!(own.session_key, longer.session_key);
        let other_model = keys(&CHAT.replace(r#""m""#, r#""n""#)).await;
        assert_ne!(own.prefix_key, other_model.prefix_key);
        let named = |body: &str| body.replacen('{', r#"{"user":"u","#, 1);
        let (one, two) = (keys(&named(CHAT)).await, keys(&named(&answered)).await);
        assert_eq!(
            one.session_key, two.session_key,
            "the client names its session"
        );
    }

    #[tokio::test]
    async fn the_worker_of_an_equal_beginning_is_remembered_where_that_is_configured() {
        use routing::SharedPrefixRouting;

        let mut test = TestGateway::new();
        let unset = keys_of(&test.delivery().affinity, Policy::RoundRobin, CHAT).await;
        test.delivery().affinity.record_served(&unset, WorkerId(1));
        let settings = SharedPrefixRouting {
            prefix_chars: 12,
            max_entries: 10,
            ..SharedPrefixRouting::default()
        };
        let memory = Arc::new(SharedPrefixes::new(settings));
        test.delivery_mut().affinity.shared_prefixes = Some(memory);
        let stage = &test.delivery().affinity;
        let first = keys_of(stage, Policy::RoundRobin, CHAT).await;
        assert_eq!(first.keys.served_by, None);
        stage.record_served(&first, WorkerId(7));
        let same_beginning = CHAT.replace("beginning", "story");
        let second = keys_of(stage, Policy::RoundRobin, &same_beginning).await;
        assert_eq!(second.keys.served_by, Some(WorkerId(7)));
        let other = CHAT.replace("a long", "no");
        let third = keys_of(stage, Policy::RoundRobin, &other).await;
        assert_eq!(third.keys.served_by, None);
    }
}
