//! Reply headers under the names of vLLM Router (contract V42), for clients and dashboards that
//! read those.

use http::{HeaderMap, HeaderName, HeaderValue};
use proxy::headers::insert;
use routing::Policy;

use super::{receipt::Selection, record::RequestGuard};

/// Policies that use the workers' cache contents.
const BY_CACHE: [Policy; 4] = [
    Policy::Warm,
    Policy::KvAware,
    Policy::DynamoCost,
    Policy::Continuum,
];

/// Adds the headers. The cache status is copied from `X-Cache`, which must be set already.
pub(super) fn vllm_router(fields: &mut HeaderMap, guard: &RequestGuard, selection: &Selection) {
    let notes = guard.routing_notes();
    let by_cache = selection
        .policy
        .is_some_and(|policy| BY_CACHE.contains(&policy));
    let method = if notes.cluster().is_some() {
        "cluster"
    } else if selection.label == Some(routing::LMCACHE_PREFIX) {
        "lmcache-prefix"
    } else if selection.predicted_cached_tokens > 0 && by_cache {
        "kv"
    } else {
        "policy"
    };
    let status = fields
        .get("x-cache")
        .cloned()
        .unwrap_or(HeaderValue::from_static("BYPASS"));
    fields.insert("x-vllm-router-cache-status", status);
    for (name, value) in [
        ("x-vllm-router-worker", Some(&*selection.worker)),
        ("x-vllm-router-method", Some(method)),
        ("x-vllm-router-policy", selection.policy.map(Policy::as_str)),
        ("x-vllm-router-cluster", notes.cluster()),
        ("x-vllm-router-model", notes.model()),
    ] {
        if let Some(value) = value {
            insert(fields, HeaderName::from_static(name), value);
        }
    }
}

/// Adds the hooks' results, also to a request that a hook rejected.
pub(super) fn hooks(fields: &mut HeaderMap, guard: &RequestGuard) {
    if let Some(hooks) = guard.routing_notes().hooks() {
        insert(
            fields,
            HeaderName::from_static("x-vllm-router-hooks"),
            &hooks,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use config::{CompatHeaders, CompatSection};
    use proxy::FakeReply;

    use super::*;
    use crate::request::{record::Recorder, test_gateway::TestGateway};

    fn showing(expose: bool, vllm_router: bool) -> TestGateway {
        let mut test = TestGateway::new();
        let mut recorder = Recorder::clone(&test.gateway.recorder);
        recorder.compat = Arc::new(CompatSection {
            expose_routing_headers: expose,
            headers: vllm_router
                .then_some(CompatHeaders::VllmRouter)
                .into_iter()
                .collect(),
            ..CompatSection::default()
        });
        test.gateway.recorder = Arc::new(recorder);
        test
    }

    async fn routed(test: &TestGateway) -> HeaderMap {
        test.script(1, FakeReply::json(200, "{}"));
        test.deliver(test.chat(&[1])).await.0.headers
    }

    #[tokio::test]
    async fn headers_of_vllm_router_are_added_beside_the_own_ones_where_both_are_on() {
        let headers = routed(&showing(true, true)).await;
        for (name, value) in [
            ("x-warmroute-worker", "w1"),
            ("x-vllm-router-worker", "w1"),
            ("x-vllm-router-method", "policy"),
            ("x-vllm-router-policy", "round_robin"),
            ("x-vllm-router-model", "m"),
            ("x-vllm-router-cache-status", "BYPASS"),
        ] {
            assert_eq!(headers[name], value, "{name}");
        }
        assert!(!headers.contains_key("x-vllm-router-cluster"));
        assert!(!headers.contains_key("x-vllm-router-hooks"));
    }

    #[tokio::test]
    async fn where_routing_headers_are_off_only_the_request_id_is_left() {
        for (expose, vllm_router) in [(false, false), (false, true)] {
            let headers = routed(&showing(expose, vllm_router)).await;
            let router = |name: &&http::HeaderName| name.as_str().starts_with("x-");
            let left: Vec<_> = headers.keys().filter(router).collect();
            assert_eq!(left, ["x-request-id"]);
        }
        let headers = routed(&showing(true, false)).await;
        assert!(headers.contains_key("x-warmroute-decision"));
        assert!(!headers.contains_key("x-vllm-router-worker"));
    }

    #[tokio::test]
    async fn the_results_of_hooks_are_shown_also_where_no_worker_was_chosen() {
        let test = showing(true, true);
        let mut guard = test.guard();
        guard.notes().hook("policy", "reject");
        let mut fields = HeaderMap::new();
        crate::request::reply::add_routing_headers(&mut fields, &guard);
        assert_eq!(fields["x-vllm-router-hooks"], "policy=reject");
        assert_eq!(fields.len(), 1);
    }
}
