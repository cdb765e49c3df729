//! Cross-origin requests of web pages (CORS): what a browser needs to let a page of an allowed
//! origin send a request and read its reply.
//!
//! A browser asks first, without the page's key, whether the page may send the request (preflight).
//! Pages of other origins get no field of CORS, so browsers neither send their requests with a key
//! nor show them the replies.
//!
//! Not here: which requests of pages are refused ([`origin`](super::origin)).

use config::ServerSection;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode,
    header::{
        ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
        ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
        ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
    },
    request::Parts,
};

use proxy::headers::{REQUEST_ID, insert};

use super::{accept, reply, reply_body::ReplyBody};

/// Seconds for which a browser remembers the answer to a preflight.
const MAX_AGE: &str = "600";
/// Fields of replies that pages may read, beside those that begin with one of [`EXPOSED_PREFIXES`].
const EXPOSED: [&str; 3] = ["request-id", "retry-after", "retry-after-ms"];
const EXPOSED_PREFIXES: [&str; 2] = ["x-", "ratelimit"];

/// The allowed origin of the page that sent a request.
#[derive(Clone, Debug)]
pub(crate) struct AllowedPage(HeaderValue);

impl AllowedPage {
    /// Returns the page if `server.allowed_origins` has its origin.
    pub(crate) fn of(server: &ServerSection, headers: &HeaderMap) -> Option<Self> {
        let mut origins = headers.get_all(ORIGIN).iter();
        let origin = origins.next().filter(|_| origins.next().is_none())?;
        let mut allowed = server.allowed_origins.iter();
        allowed
            .any(|allowed| allowed.is(origin.as_bytes()))
            .then(|| Self(origin.clone()))
    }

    /// Adds to a reply that the page may read it.
    pub(crate) fn allow(self, fields: &mut HeaderMap) {
        let exposed: Vec<&str> = fields
            .keys()
            .map(HeaderName::as_str)
            .filter(|name| is_exposed(name))
            .collect();
        let exposed = exposed.join(", ");
        if !exposed.is_empty() {
            insert(fields, ACCESS_CONTROL_EXPOSE_HEADERS, &exposed);
        }
        fields.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.0);
        fields.append(VARY, HeaderValue::from_static("origin"));
    }
}

fn is_exposed(name: &str) -> bool {
    EXPOSED.contains(&name) || EXPOSED_PREFIXES.iter().any(|it| name.starts_with(it))
}

/// Returns the answer to a preflight of an allowed page for a path of the router. It needs no key:
/// browsers send none.
pub(crate) fn preflight(
    server: &ServerSection,
    parts: &Parts,
    request_id: &str,
) -> Option<Response<ReplyBody>> {
    let asks = parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if parts.method != Method::OPTIONS || !asks {
        return None;
    }
    AllowedPage::of(server, &parts.headers)?;
    let mut fields = HeaderMap::new();
    let methods = HeaderValue::from_static(accept::allowed_methods(parts)?);
    fields.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    if let Some(wanted) = parts.headers.get(ACCESS_CONTROL_REQUEST_HEADERS)
        && wanted.as_bytes().iter().all(is_of_names)
    {
        // The routes check what a field may do, whoever sends it.
        fields.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    fields.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
    insert(&mut fields, HeaderName::from_static(REQUEST_ID), request_id);
    let head = (StatusCode::NO_CONTENT, fields);
    Some(reply::with_head(head, ReplyBody::default()))
}

/// Returns whether a byte may stand in a list of field names.
fn is_of_names(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_, ".contains(byte)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use http::Request;

    use super::*;

    fn server(origins: &[&str]) -> ServerSection {
        ServerSection {
            allowed_origins: origins.iter().map(|it| it.parse().unwrap()).collect(),
            ..ServerSection::default()
        }
    }

    fn request(line: (&str, &str), fields: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(line.0).uri(line.1);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    fn answer(
        server: &ServerSection,
        line: (&str, &str),
        fields: &[(&str, &str)],
    ) -> Option<Response<ReplyBody>> {
        preflight(server, &request(line, fields), "r1")
    }

    const ORIGIN: (&str, &str) = ("origin", "https://app.example");
    const ASKS: (&str, &str) = ("access-control-request-method", "POST");
    const CHAT: (&str, &str) = ("OPTIONS", "/v1/chat/completions");

    #[test]
    #[contract("S15")]
    fn a_preflight_of_an_allowed_origin_gets_the_methods_and_fields_of_the_path() {
        let server = server(&["https://other.example", "https://app.example"]);
        let wanted = "authorization,content-type,x-stainless-os";
        let fields = [ORIGIN, ASKS, ("access-control-request-headers", wanted)];
        for (path, methods) in [
            ("/v1/chat/completions", "POST"),
            ("/v1/models", "GET, HEAD"),
            ("/v1/responses/resp_1", "DELETE, GET, HEAD, POST"),
        ] {
            let answer = answer(&server, ("OPTIONS", path), &fields).expect(path);
            assert_eq!(answer.status(), StatusCode::NO_CONTENT);
            let field = |name: HeaderName| answer.headers()[name].to_str().unwrap();
            assert_eq!(field(ACCESS_CONTROL_ALLOW_METHODS), methods);
            assert_eq!(field(ACCESS_CONTROL_ALLOW_HEADERS), wanted);
            assert_eq!(field(ACCESS_CONTROL_MAX_AGE), "600");
        }
    }

    #[test]
    #[contract("S15")]
    fn any_other_request_is_no_preflight() {
        let allowed = server(&["https://app.example"]);
        let foreign = ("origin", "https://evil.test");
        for (line, fields) in [
            (CHAT, &[ORIGIN][..]),
            (CHAT, &[ASKS]),
            (CHAT, &[foreign, ASKS]),
            (CHAT, &[ORIGIN, foreign, ASKS]),
            (CHAT, &[("origin", "null"), ASKS]),
            (("POST", CHAT.1), &[ORIGIN, ASKS]),
            (("OPTIONS", "/nowhere"), &[ORIGIN, ASKS]),
            (("OPTIONS", "/admin/workers"), &[ORIGIN, ASKS]),
        ] {
            let answer = answer(&allowed, line, fields);
            assert!(answer.is_none(), "{line:?} {fields:?}");
        }
        let unlisted = answer(&server(&[]), CHAT, &[ORIGIN, ASKS]);
        assert!(
            unlisted.is_none(),
            "no origin is allowed unless it is listed"
        );
    }

    #[test]
    #[contract("S15")]
    fn a_page_reads_its_reply_with_the_fields_of_the_router_and_of_limits() {
        let server = server(&["*"]);
        let page = |origin| AllowedPage::of(&server, &request(CHAT, &[origin]).headers);
        let mut fields = HeaderMap::new();
        for name in [
            "content-type",
            "retry-after",
            "x-ratelimit-limit",
            "x-warmroute-worker",
            "server-timing",
        ] {
            fields.insert(name, HeaderValue::from_static("1"));
        }
        fields.insert(VARY, HeaderValue::from_static("accept-encoding"));
        page(("origin", "null"))
            .expect("all are")
            .allow(&mut fields);
        assert_eq!(fields[ACCESS_CONTROL_ALLOW_ORIGIN], "null");
        let exposed = "retry-after, x-ratelimit-limit, x-warmroute-worker";
        assert_eq!(fields[ACCESS_CONTROL_EXPOSE_HEADERS], exposed);
        let vary: Vec<_> = fields.get_all(VARY).iter().collect();
        assert_eq!(vary, ["accept-encoding", "origin"]);
        assert!(page(("host", "app.example")).is_none());
    }
}
