//! The header fields that the router forwards, in both directions.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    },
};

/// Fields that belong to one connection, not to the message.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
];

/// Client credentials: they are for the router, and an engine is only semi-trusted.
const CREDENTIALS: [HeaderName; 6] = [
    AUTHORIZATION,
    COOKIE,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-router-key"),
    HeaderName::from_static("x-admin-key"),
];

/// Prefix of the router's own request and reply headers.
const OURS: &str = "x-warmroute-";
/// Names a request, in both directions.
pub const REQUEST_ID: &str = "x-request-id";
/// Names the trace of a request and the span that sends it (W3C Trace Context).
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Belongs to `traceparent`: what tracing systems add to it.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Names the data-parallel rank inside a worker.
pub const DP_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
/// Names the worker whose cache llm-d's sidecar lets its engine read.
pub const KV_SOURCE: HeaderName = HeaderName::from_static("x-kv-cache-source-host-port");

/// By these fields llm-d's sidecar is told to which engines it or its engine connects, also under
/// their later and earlier names.
const SIDECAR_PEERS: [HeaderName; 8] = [
    KV_SOURCE,
    HeaderName::from_static("x-llm-d-kv-cache-source-host-port"),
    HeaderName::from_static("x-prefiller-host-port"),
    HeaderName::from_static("x-llm-d-prefiller-host-port"),
    HeaderName::from_static("x-prefiller-url"),
    HeaderName::from_static("x-encoder-hosts-ports"),
    HeaderName::from_static("x-llm-d-encoder-hosts-ports"),
    HeaderName::from_static("x-data-parallel-host-port"),
];

/// Builds the head of the upstream request: the client's fields in their order, except those that
/// are not forwarded, and the credentials for the worker.
pub fn upstream_head(
    client: &HeaderMap,
    host: HeaderValue,
    credentials: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
) -> HeaderMap {
    let named = named_by_connection(client);
    let mut out = HeaderMap::with_capacity(client.len() + 2);
    out.insert(HOST, host);
    let stays = |name: &HeaderName| {
        HOP_BY_HOP.contains(name)
            || CREDENTIALS.contains(name)
            || SIDECAR_PEERS.contains(name)
            || [HOST, CONTENT_LENGTH, EXPECT, UPGRADE, DP_RANK].contains(name)
            || name.as_str().starts_with(OURS)
            || named.contains(name)
    };
    for (name, value) in client {
        if !stays(name)
            && !alias_of(name).is_some_and(|alias| stays(&alias) || is_of_proxies(&alias))
        {
            out.append(name, value.clone());
        }
    }
    for (name, value) in credentials {
        // The client's own API version takes precedence.
        out.entry(name).or_insert(value);
    }
    out
}

/// Returns the name that some servers treat as equal: they do not distinguish `_` and `-`.
fn alias_of(name: &HeaderName) -> Option<HeaderName> {
    let name = name.as_str();
    name.contains('_')
        .then(|| HeaderName::try_from(name.replace('_', "-")).ok())
        .flatten()
}

/// Returns whether proxies report the origin of a request in this field.
pub fn is_of_proxies(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("x-forwarded-") || name == "x-real-ip" || name == "forwarded"
}

/// Fields of a reply that describe its content and how long it is valid.
const REPLY_FIELDS: [&str; 24] = [
    "accept-ranges",
    "age",
    "allow",
    "apim-request-id",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-range",
    "content-type",
    "date",
    "deprecation",
    "endpoint-load-metrics",
    "etag",
    "expires",
    "last-modified",
    "pragma",
    "request-id",
    "retry-after",
    "retry-after-ms",
    "server-timing",
    "sunset",
    "vary",
    "x-accel-buffering",
];

/// Beginnings of the names of fields that APIs and engines define.
const REPLY_PREFIXES: [&str; 8] = [
    "x-",
    "openai-",
    "anthropic-",
    "azureml-",
    "ms-azureml-",
    "nvcf-",
    "ratelimit",
    "sec-websocket-",
];

/// Beginnings of fields that a proxy in front would obey, for example by sending a file of its own,
/// or by taking this router out of service. `x-accel-buffering` concerns only its own reply.
const PROXY_COMMANDS: [&str; 7] = [
    "x-powered-by",
    "x-accel-",
    "x-envoy-",
    "x-litespeed-",
    "x-sendfile",
    "x-lighttpd-",
    "x-reproxy-",
];

/// Returns whether an engine may send this field to a client. Others would act in the router's
/// name: cookies, permissions for web pages, redirects.
fn is_of_replies(name: &str) -> bool {
    REPLY_FIELDS.contains(&name)
        || REPLY_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            && !PROXY_COMMANDS.iter().any(|prefix| name.starts_with(prefix))
            && name != REQUEST_ID
            && !name.starts_with(OURS)
}

/// Builds the head of the client's reply: those of the worker's fields that replies have. The length
/// is not copied: it means nothing where the worker uses chunked framing, and would frame this
/// reply.
pub fn reply_head(worker: &HeaderMap) -> HeaderMap {
    let named = named_by_connection(worker);
    let mut out = HeaderMap::with_capacity(worker.len() + 6);
    for (name, value) in worker {
        if is_of_replies(name.as_str()) && !HOP_BY_HOP.contains(name) && !named.contains(name) {
            out.append(name, value.clone());
        }
    }
    out
}

/// Returns whether a head says that it changes the protocol to WebSocket.
pub fn is_websocket(fields: &HeaderMap) -> bool {
    let upgrade = fields.get(UPGRADE).and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|value| value.trim().eq_ignore_ascii_case("websocket"))
}

/// Adds the fields by which a head changes the protocol to WebSocket; those of the handshake itself
/// are forwarded like any others.
pub fn add_websocket(fields: &mut HeaderMap) {
    fields.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    fields.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// Returns whether a reply gives its length in two ways: two readers could see its end in two
/// places, so its connection is not reused.
pub fn has_conflicting_lengths(reply: &HeaderMap) -> bool {
    reply.contains_key(TRANSFER_ENCODING) && reply.contains_key(CONTENT_LENGTH)
}

/// Returns the fields that `Connection` declares hop-by-hop.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .collect()
}

/// Sets a header, unless the value is invalid in one.
pub fn insert(fields: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::try_from(value) {
        fields.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use fleet::EngineKind;

    use super::*;

    fn map(fields: &[(&str, &str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::try_from(*name).unwrap(),
                    HeaderValue::try_from(*value).unwrap(),
                )
            })
            .collect()
    }

    #[test]
    #[contract("S27", "S28")]
    fn credentials_and_connection_headers_are_not_forwarded() {
        let client = map(&[
            ("host", "router:8080"),
            ("authorization", "Bearer client"),
            ("x-api-key", "client"),
            ("cookie", "a=b"),
            ("connection", "keep-alive, X-Secret"),
            ("x-secret", "1"),
            ("te", "trailers"),
            ("x-warmroute-policy", "warm"),
            ("user-agent", "agent/1"),
            ("x-custom", "kept"),
            ("traceparent", "00-1-2-01"),
        ]);
        let sent = upstream_head(
            &client,
            HeaderValue::from_static("engine:8000"),
            fleet::credentials(EngineKind::Vllm, Some("worker-key")),
        );
        let want = map(&[
            ("host", "engine:8000"),
            ("user-agent", "agent/1"),
            ("x-custom", "kept"),
            ("traceparent", "00-1-2-01"),
            ("authorization", "Bearer worker-key"),
        ]);
        assert_eq!(sent, want);
        let without_key = upstream_head(
            &client,
            HeaderValue::from_static("engine:8000"),
            fleet::credentials(EngineKind::Vllm, None),
        );
        assert!(!without_key.contains_key("authorization"));
        let key = |map: &HeaderMap, name: &str| {
            map.get(name)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        let messages = upstream_head(
            &client,
            HeaderValue::from_static("api:443"),
            fleet::credentials(EngineKind::Anthropic, Some("worker-key")),
        );
        assert_eq!(key(&messages, "x-api-key").as_deref(), Some("worker-key"));
        assert_eq!(key(&messages, "authorization"), None);
        assert_eq!(
            key(&messages, "anthropic-version").as_deref(),
            Some("2023-06-01")
        );
        let versioned = map(&[("anthropic-version", "2024-01-01"), ("anthropic-beta", "b")]);
        let versioned = upstream_head(
            &versioned,
            HeaderValue::from_static("api:443"),
            fleet::credentials(EngineKind::Anthropic, None),
        );
        assert_eq!(versioned.get_all("anthropic-version").iter().count(), 1);
        assert_eq!(
            key(&versioned, "anthropic-version").as_deref(),
            Some("2024-01-01")
        );
        assert_eq!(key(&versioned, "anthropic-beta").as_deref(), Some("b"));
    }

    #[test]
    #[contract("S30")]
    fn router_headers_of_a_worker_are_removed() {
        let reply = map(&[
            ("content-type", "text/event-stream"),
            ("content-length", "5"),
            ("server", "uvicorn"),
            ("set-cookie", "a=b"),
            ("x-warmroute-worker", "forged"),
            ("x-request-id", "theirs"),
            ("x-engine-hint", "kept"),
        ]);
        let want = map(&[
            ("content-type", "text/event-stream"),
            ("x-engine-hint", "kept"),
        ]);
        assert_eq!(reply_head(&reply), want);
    }

    #[test]
    #[contract("S30")]
    fn a_reply_keeps_what_clients_read_and_commands_no_proxy() {
        let kept = [
            "apim-request-id",
            "azureml-model-session",
            "endpoint-load-metrics",
            "nvcf-reqid",
            "ratelimit",
            "ratelimit-policy",
            "retry-after-ms",
            "server-timing",
            "x-accel-buffering",
            "x-ratelimit-remaining-tokens",
        ];
        let dropped = [
            "location",
            "set-cookie",
            "x-accel-redirect",
            "x-envoy-immediate-health-check-fail",
            "x-envoy-degraded",
            "x-litespeed-location",
            "x-sendfile",
        ];
        let all = kept.iter().chain(&dropped).map(|name| (*name, "no"));
        let out = reply_head(&map(&all.collect::<Vec<_>>()));
        let mut names: Vec<_> = out.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, kept);
    }

    #[test]
    #[contract("S26")]
    fn a_name_with_underscores_does_not_bypass_the_header_filter() {
        let client = map(&[
            ("x_api_key", "k"),
            ("transfer_encoding", "chunked"),
            ("x_warmroute_worker", "a"),
            ("x_forwarded_for", "127.0.0.1"),
            ("x-forwarded_proto", "https"),
            ("x_custom", "1"),
        ]);
        let out = upstream_head(
            &client,
            HeaderValue::from_static("engine"),
            fleet::credentials(EngineKind::Vllm, None),
        );
        let names: Vec<_> = out.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["host", "x_custom"]);
    }
    #[test]
    fn fields_of_the_hop_are_dropped_in_both_directions_in_any_case_and_number() {
        let fields = map(&[
            ("connection", "X-One"),
            ("connection", "close, x-two , bad name"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("trailer", "x-sum"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("x-three", "3"),
        ]);
        let host = HeaderValue::from_static("engine");
        let request = upstream_head(&fields, host, None);
        assert_eq!(request, map(&[("host", "engine"), ("x-three", "3")]));
        assert_eq!(reply_head(&fields), map(&[("x-three", "3")]));
    }

    #[test]
    fn a_websocket_handshake_is_forwarded_with_the_fields_of_the_routers_own_hop() {
        let client = map(&[
            ("host", "router"),
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-version", "13"),
            ("sec-websocket-protocol", "realtime"),
            ("sec-websocket-extensions", "permessage-deflate"),
        ]);
        assert!(is_websocket(&client) && !is_websocket(&map(&[("upgrade", "h2c")])));
        let mut sent = upstream_head(&client, HeaderValue::from_static("engine"), None);
        assert!(!is_websocket(&sent));
        add_websocket(&mut sent);
        let want = map(&[
            ("host", "engine"),
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-version", "13"),
            ("sec-websocket-protocol", "realtime"),
            ("sec-websocket-extensions", "permessage-deflate"),
        ]);
        assert_eq!(sent, want);
    }

    #[test]
    fn a_repeated_field_keeps_its_values_in_their_order() {
        let fields = map(&[("x-a", "2"), ("x-b", "0"), ("x-a", "1")]);
        let request = upstream_head(&fields, HeaderValue::from_static("engine"), None);
        for head in [request, reply_head(&fields)] {
            let values: Vec<_> = head.get_all("x-a").iter().collect();
            assert_eq!(values, ["2", "1"]);
        }
    }

    #[test]
    fn the_length_host_and_rank_of_a_client_are_not_the_workers() {
        let client = map(&[
            ("host", "router"),
            ("content-length", "7"),
            ("expect", "100-continue"),
            ("x-data-parallel-rank", "3"),
        ]);
        let request = upstream_head(&client, HeaderValue::from_static("engine"), None);
        assert_eq!(request, map(&[("host", "engine")]));
    }

    #[test]
    #[contract("S42")]
    fn a_client_names_no_engine_to_which_a_sidecar_connects() {
        for name in [
            "x-kv-cache-source-host-port",
            "x_kv_cache_source_host_port",
            "x-llm-d-kv-cache-source-host-port",
            "x_llm_d-kv-cache-source-host-port",
            "x-prefiller-host-port",
            "x-llm-d-prefiller-host-port",
            "x-prefiller-url",
            "x-encoder-hosts-ports",
            "x-llm-d-encoder-hosts-ports",
            "x-data-parallel-host-port",
        ] {
            let client = map(&[(name, "10.0.0.7:8000"), (name, "10.0.0.8:8000")]);
            let request = upstream_head(&client, HeaderValue::from_static("engine"), None);
            assert_eq!(request, map(&[("host", "engine")]), "{name}");
        }
        let targets = map(&[("x-llm-d-slo-ttft-ms", "200")]);
        let request = upstream_head(&targets, HeaderValue::from_static("engine"), None);
        assert!(request.contains_key("x-llm-d-slo-ttft-ms"));
    }

    #[test]
    fn a_length_beside_a_transfer_encoding_is_a_conflict_and_neither_alone_is() {
        let (length, encoding) = (("content-length", "5"), ("transfer-encoding", "chunked"));
        assert!(has_conflicting_lengths(&map(&[length, encoding])));
        for fields in [&[length][..], &[encoding], &[length, length], &[]] {
            assert!(!has_conflicting_lengths(&map(fields)), "{fields:?}");
        }
    }

    #[test]
    fn a_value_that_would_break_a_head_is_not_inserted() {
        let mut fields = HeaderMap::new();
        let name = HeaderName::from_static("x-a");
        insert(&mut fields, name.clone(), "one");
        insert(&mut fields, name, "two\r\nx-forged: 1");
        assert_eq!(fields, map(&[("x-a", "one")]));
    }
}
