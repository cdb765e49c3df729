//! The request that a worker gets: the client's bytes under a head of the router.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Uri, header};
use proxy::{BodyRest, headers};
use tenants::Tenant;
use xxhash_rust::xxh3::xxh3_128;

use super::{accept::AcceptedRequest, dispatch::AttemptTarget, rights};

/// Builds the request for the worker: the body, spliced or not, under a head of the router.
pub(super) fn upstream_request(
    call: &AcceptedRequest,
    bytes: Bytes,
    to: &AttemptTarget,
) -> Request<Bytes> {
    let AttemptTarget {
        worker,
        target,
        span,
        kv_source,
    } = to;
    let (host, credentials) = (worker.connection.host.clone(), worker.credentials());
    let mut fields = headers::upstream_head(&call.headers, host, credentials);
    // A request that has no body by its method announces none.
    if call.method == Method::POST
        && let Some(length) = body_length(call, &bytes)
    {
        let length = length_value(length, call.headers.get(header::CONTENT_LENGTH));
        fields.insert(header::CONTENT_LENGTH, length);
    }
    // The reply has the counts that its tenant's limits need.
    if call.tenant.as_deref().is_some_and(Tenant::limits_tokens) {
        let identity = HeaderValue::from_static("identity");
        fields.insert(header::ACCEPT_ENCODING, identity);
    }
    if let Ok(id) = HeaderValue::try_from(&*request_id(call)) {
        fields.insert(headers::REQUEST_ID, id);
    }
    if let Some(span) = span {
        headers::insert(&mut fields, headers::TRACEPARENT, &span.to_string());
    }
    if call.upgrade.is_some() {
        headers::add_websocket(&mut fields);
    }
    if worker.dp_ranks() > 1 {
        fields.insert(headers::DP_RANK, HeaderValue::from(target.rank.0));
    }
    if let Some(source) = kv_source {
        fields.insert(headers::KV_SOURCE, source.clone());
    }
    let mut request = Request::new(bytes);
    *request.method_mut() = call.method.clone();
    // The route table matched the path byte for byte: joined to the worker's base URL it is a valid
    // target.
    let url = &worker.connection.url;
    *request.uri_mut() = if url.base().is_empty() {
        Uri::from(call.target.clone())
    } else {
        let target = url.path(call.target.as_str());
        Uri::try_from(target).unwrap_or_else(|_| Uri::from_static("/"))
    };
    *request.headers_mut() = fields;
    request
}

/// Returns the id that the worker gets. Engines tell requests apart by it, and some read more in it:
/// the id that a tenant chose is sent as a digest that no other tenant's is, unless it may override
/// decisions.
fn request_id(call: &AcceptedRequest) -> Cow<'_, str> {
    let tenant = call.tenant.as_deref();
    match tenant.filter(|_| !rights::may_override(tenant)) {
        Some(tenant) if call.headers.contains_key(headers::REQUEST_ID) => {
            let chosen = format!("{}\0{}", tenant.name(), call.request_id);
            Cow::Owned(format!("req-{:032x}", xxh3_128(chosen.as_bytes())))
        }
        _ => Cow::Borrowed(&call.request_id),
    }
}

/// Returns the value of `Content-Length`: the client's own, where it says the same in the same form.
fn length_value(length: u64, client: Option<&HeaderValue>) -> HeaderValue {
    let same = client.filter(|value| {
        let digits = value.as_bytes();
        let is_plain = digits.iter().all(u8::is_ascii_digit) && digits.first() != Some(&b'0');
        is_plain && value.to_str().is_ok_and(|text| text.parse() == Ok(length))
    });
    same.cloned().unwrap_or_else(|| HeaderValue::from(length))
}

/// Returns the length of a request's body; `None`: its client does not announce it.
fn body_length(call: &AcceptedRequest, first: &Bytes) -> Option<u64> {
    let rest = call.rest.as_ref().map_or(Some(0), BodyRest::announced);
    rest.map(|rest| rest + first.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_has_one_form_however_the_client_writes_it() {
        for client in ["12", "012", "+12", " 12", "13", "", "x"] {
            let client = HeaderValue::from_static(client);
            assert_eq!(length_value(12, Some(&client)), "12", "{client:?}");
        }
        assert_eq!(length_value(0, None), "0");
    }
}
