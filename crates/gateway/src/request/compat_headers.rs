//! Reply headers under the names of vLLM Router (contract V42), for clients and dashboards that
//! read those.

use http::{HeaderMap, HeaderName, HeaderValue};
use proxy::headers::insert;

use super::{record::RequestGuard, selection::Selection};

/// Policies that use the workers' cache contents.
const BY_CACHE: [&str; 4] = ["warm", "kv_aware", "dynamo_cost", "continuum"];

/// Adds the headers. The cache status is copied from `X-Cache`, which must be set already.
pub(super) fn vllm_router(fields: &mut HeaderMap, settle: &RequestGuard, won: &Selection) {
    let told = settle.told_of();
    let method = if told.cluster().is_some() {
        "cluster"
    } else if won.label == Some(routing::LMCACHE_PREFIX) {
        "lmcache-prefix"
    } else if won.predicted_cached_tokens > 0 && BY_CACHE.contains(&won.policy) {
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
        ("x-vllm-router-worker", Some(&*won.worker)),
        ("x-vllm-router-method", Some(method)),
        ("x-vllm-router-policy", Some(won.policy)),
        ("x-vllm-router-cluster", told.cluster()),
        ("x-vllm-router-model", told.model()),
    ] {
        if let Some(value) = value {
            insert(fields, HeaderName::from_static(name), value);
        }
    }
}

/// Adds the hooks' results, also to a request that a hook rejected.
pub(super) fn hooks(fields: &mut HeaderMap, settle: &RequestGuard) {
    if let Some(hooks) = settle.told_of().hooks() {
        insert(
            fields,
            HeaderName::from_static("x-vllm-router-hooks"),
            &hooks,
        );
    }
}
