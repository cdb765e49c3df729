//! The keys that tie a request to earlier ones, for affinity policies: the beginning of its prompt,
//! and its session.

use std::sync::Arc;

use dialect::{Anchor, RequestView};
use http::HeaderMap;
use kv_blocks::WorkerId;
use prefix_view::{Holder, PrefixHash, StorageTier};
use routing::{Affinity, Policy, PrefixHolder, SessionKeys, SessionMode};
use xxhash_rust::xxh3::xxh3_64;

use super::{clusters::ClusterMembership, lmcache, prefill::RequestPolicies, session};
use crate::Gateway;

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
    pub(crate) lmcache: Option<lmcache::LmcacheAnswer>,
    /// The semantic cluster, which limits the workers.
    pub(crate) cluster: Option<ClusterMembership>,
    /// The key of the prompt's beginning in the prefix memory.
    beginning: Option<u64>,
}

impl AffinityKeys {
    /// Sets the cluster, whose name then counts as a session key sent by the client.
    pub(super) fn with_cluster(mut self, cluster: Option<ClusterMembership>) -> Self {
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
    pub(super) fn with_prefix_memory(mut self, gateway: &Gateway, view: &RequestView<'_>) -> Self {
        let Some(prefixes) = &gateway.shared_prefixes else {
            return self;
        };
        self.beginning = prefixes.key(view);
        self.keys.served_by = self
            .beginning
            .and_then(|key| prefixes.find(gateway.clock.now(), key));
        self
    }

    /// Adds the answer of LMCache's controller.
    pub(super) fn with_lmcache(self, lmcache: Option<lmcache::LmcacheAnswer>) -> Self {
        Self { lmcache, ..self }
    }

    /// Records that this worker took the request.
    pub(super) fn record_served(&self, gateway: &Gateway, worker: WorkerId) {
        if let (Some(prefixes), Some(key)) = (&gateway.shared_prefixes, self.beginning) {
            prefixes.record_served(gateway.clock.now(), key, worker, gateway.ids.next_number());
        }
    }
}

/// Computes the keys of a request with these headers and this body, from which `view` was read.
/// Hashes nothing that no policy uses.
pub(super) async fn of(
    gateway: &Gateway,
    policies: RequestPolicies,
    headers: &HeaderMap,
    body: &[u8],
    view: &RequestView<'_>,
) -> AffinityKeys {
    let mode = gateway.router.session_mode(policies.decode);
    let keyed = policies.any(Policy::is_keyed);
    if !keyed && mode == SessionMode::Off {
        return AffinityKeys::default();
    }
    let name = session::name(&gateway.rules.session_headers, headers, view);
    let session = session::keys(mode, name, view);
    if !keyed {
        return AffinityKeys {
            session,
            ..AffinityKeys::default()
        };
    }
    let max_bytes = gateway.rules.max_prefix_bytes;
    let keys = Affinity {
        prefix_key: Anchor::of(view).map(|anchor| anchor.key(&view.model, max_bytes)),
        // Without a session name only an equal request has this key.
        session_key: Some(xxh3_64(name.unwrap_or(body))),
        served_by: None,
    };
    let holders = if policies.any(Policy::needs_prefix_holders) {
        prefix_holders(gateway, &keys).await
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
async fn prefix_holders(gateway: &Gateway, keys: &Affinity) -> Option<Vec<PrefixHolder>> {
    let prefixes = gateway.fleet.prefixes()?;
    let Some(key) = keys.prefix_key else {
        return Some(Vec::new());
    };
    let prefix = PrefixHash::Key(key);
    let holders = match prefixes.cached_holders(&prefix) {
        Some(holders) => holders,
        None => {
            let asked = gateway.clock.now();
            let holders = prefixes.holders(&prefix).await;
            gateway
                .kv_tally
                .record_query(gateway.clock.now().since(asked));
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

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use dialect::{Dialect, view};
    use http::HeaderName;

    use super::*;

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
}
