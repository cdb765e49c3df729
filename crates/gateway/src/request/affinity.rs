//! What ties a request to others, for policies that keep those together: the beginning of its prompt, and its session.

use std::sync::Arc;

use dialect::{Anchor, RequestView};
use http::HeaderMap;
use kv_blocks::WorkerId;
use prefix_view::{Holder, PrefixHash, StorageTier};
use routing::{Affinity, Policy, PrefixHolder};
use xxhash_rust::xxh3::xxh3_64;

use super::{clusters::Membership, prefill::Policies};
use crate::Gateway;

/// Headers that name a session, the first one that is there counts (contract V25).
const SESSION_HEADERS: [&str; 3] = ["x-semantic-cluster-id", "x-session-id", "x-user-id"];

/// What is known of that.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ties {
    pub(crate) keys: Affinity,
    /// Who holds the prompt's beginning, by streams that name whole prefixes; `None`: there are none, or nobody asks.
    pub(crate) holders: Option<Vec<PrefixHolder>>,
    /// The workers that it is kept on.
    pub(crate) cluster: Option<Membership>,
    /// Under which who serves it is remembered.
    beginning: Option<u64>,
}

impl Ties {
    /// The same for a request of this cluster, whose name is its session's as if the client had sent it.
    pub(super) fn in_cluster(mut self, cluster: Option<Membership>) -> Self {
        if let Some(cluster) = &cluster {
            self.keys.session_key = self.keys.session_key.map(|_| xxh3_64(cluster.name().as_bytes()));
        }
        Self { cluster, ..self }
    }

    /// The same with who served a prompt that began alike, where that is remembered at all.
    pub(super) fn beginning(mut self, gateway: &Gateway, view: &RequestView<'_>) -> Self {
        let Some(prefixes) = &gateway.shared_prefixes else { return self };
        self.beginning = prefixes.key(view);
        self.keys.served_by = self.beginning.and_then(|key| prefixes.find(gateway.clock.now(), key));
        self
    }

    /// This worker took the request.
    pub(super) fn served(&self, gateway: &Gateway, worker: WorkerId) {
        if let (Some(prefixes), Some(key)) = (&gateway.shared_prefixes, self.beginning) {
            prefixes.served(gateway.clock.now(), key, worker, gateway.ids.draw());
        }
    }
}

/// Of a request with these headers and this body, of which `view` was read. Nothing is hashed for policies that do not
/// ask.
pub(super) async fn of(
    gateway: &Gateway,
    policies: Policies,
    headers: &HeaderMap,
    body: &[u8],
    view: &RequestView<'_>,
) -> Ties {
    if !policies.any(Policy::is_keyed) {
        return Ties::default();
    }
    let max_bytes = gateway.rules.max_prefix_bytes;
    let keys = Affinity {
        prefix_key: Anchor::of(view).map(|anchor| anchor.key(&view.model, max_bytes)),
        session_key: Some(session_key(headers, body, view)),
        served_by: None,
    };
    let holders = if policies.any(Policy::asks_for_holders) { prefix_holders(gateway, &keys).await } else { None };
    Ties { keys, holders, ..Ties::default() }
}

/// Who holds the prompt's beginning; `None` where no streams of prefixes are followed.
async fn prefix_holders(gateway: &Gateway, keys: &Affinity) -> Option<Vec<PrefixHolder>> {
    let prefixes = gateway.fleet.prefixes()?;
    let Some(key) = keys.prefix_key else { return Some(Vec::new()) };
    let holders = prefixes.holders(&PrefixHash::Key(key)).await;
    let one = |holder: &Holder| PrefixHolder {
        worker: Arc::clone(&holder.backend),
        tokens: holder.tokens,
        hot: holder.tier == StorageTier::GpuHot,
    };
    Some(holders.iter().map(one).collect())
}

/// Hash of what names the session: a header, else a field of the body, else the whole body.
fn session_key(headers: &HeaderMap, body: &[u8], view: &RequestView<'_>) -> u64 {
    let named = |name: &&str| headers.get(*name).map(http::HeaderValue::as_bytes).filter(|value| !value.is_empty());
    let header = SESSION_HEADERS.iter().find_map(named);
    xxh3_64(header.or(view.session.key().map(str::as_bytes)).unwrap_or(body))
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use dialect::{Dialect, view};

    use super::*;

    const FIELDS: &str = r#""session_params": {"session_id": "a"}, "user": "b", "session_id": "c", "user_id": "d""#;

    fn key(headers: &[(&'static str, &str)], fields: &str) -> u64 {
        let body = format!(r#"{{"model": "m", "messages": []{}{fields}}}"#, if fields.is_empty() { "" } else { ", " });
        let view = view(Dialect::Chat, body.as_bytes()).expect("a good body");
        let headers = headers.iter().map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap())).collect();
        session_key(&headers, body.as_bytes(), &view)
    }

    #[test]
    #[contract("V25")]
    fn a_session_is_named_by_headers_then_by_fields_then_by_the_whole_body() {
        let all = [("x-user-id", "3"), ("x-session-id", "2"), ("x-semantic-cluster-id", "1")];
        for (headers, fields, named) in [
            (&all[..], FIELDS, "1"),
            (&all[..2], FIELDS, "2"),
            (&all[..1], FIELDS, "3"),
            (&[("x-user-id", "")][..], FIELDS, "a"),
            (&[][..], &FIELDS[FIELDS.find("\"user\"").unwrap()..], "b"),
            (&[][..], r#""user_id": "d", "session_id": "c""#, "c"),
            (&[][..], r#""user_id": 7"#, "7"),
        ] {
            assert_eq!(key(headers, fields), xxh3_64(named.as_bytes()), "{headers:?} {fields}");
        }
        assert_eq!(key(&[], ""), xxh3_64(br#"{"model": "m", "messages": []}"#));
    }
}
