//! The routes of the data listener, as data.
//!
//! A path that is not in the table is not proxied: engines expose control endpoints beside their
//! API, and a catch-all would expose those to every client.

use dialect::{ApiError, Dialect};
use http::Method;
use tenants::Scope;

/// The handler of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteHandler {
    /// A generation, through the request path.
    Generate(Dialect),
    /// The same, neither cached nor coalesced: equal requests have different replies.
    GenerateAnew(Dialect),
    /// A form with files, which may be too long to be buffered.
    Form,
    /// A WebSocket conversation with one worker.
    Realtime,
    /// A stored response: the rest of the path is its id and what is done with it.
    StoredResponse,
    /// The token count of a response's prompt.
    InputTokens,
    /// The token count of a message's prompt.
    CountTokens,
    /// Token ids of a prompt.
    Tokenize,
    /// The text of token ids.
    Detokenize,
    /// The decision for a request, with an optional reservation.
    Route,
    /// The load that each worker would have with a request.
    PotentialLoads,
    /// Reports a reservation's prompt as computed: the rest of the path is its id and
    /// `/prefill_complete`.
    PrefillComplete,
    /// Ends a reservation: the rest of the path is its id.
    FreeReservation,
    /// The list of models.
    Models,
    /// One model: the rest of the path is its id.
    Model,
    /// Health in detail.
    Health,
    /// Liveness of the process.
    Live,
    /// Readiness to serve requests.
    Ready,
}

/// One route.
#[derive(Clone, Debug)]
pub struct Route {
    /// The only method it answers.
    pub method: Method,
    /// The path; with a trailing `/` everything below it.
    pub path: &'static str,
    /// The handler.
    pub endpoint: RouteHandler,
    /// The scope that a key needs; `None`: no key is needed.
    pub scope: Option<Scope>,
    /// Whether the route reads a body.
    pub body: BodyMode,
}

/// Whether a route reads a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyMode {
    /// Up to the configured limit.
    Limited,
    /// The same; only the beginning is buffered.
    Form,
    /// None is read.
    None,
}

/// Every route, in the order of the documentation.
pub static ROUTES: &[Route] = &[
    generation("/v1/chat/completions", Dialect::Chat),
    generation("/v1/chat/completions/batch", Dialect::ChatBatch),
    generation("/v1/completions", Dialect::Completions),
    scoring("/v1/embeddings", Dialect::Embeddings),
    scoring("/v1/rerank", Dialect::Rerank),
    scoring("/v1/score", Dialect::Score),
    scoring("/v2/rerank", Dialect::Rerank),
    scoring("/rerank", Dialect::Rerank),
    scoring("/score", Dialect::Score),
    scoring("/classify", Dialect::Embeddings),
    scoring("/pooling", Dialect::Embeddings),
    media("/v1/audio/speech"),
    media("/v1/images/generations"),
    form("/v1/audio/transcriptions"),
    form("/v1/audio/translations"),
    form("/v1/images/edits"),
    form("/v1/images/variations"),
    generation("/v1/responses", Dialect::Responses),
    tokenizing("/v1/responses/input_tokens", RouteHandler::InputTokens),
    stored_response(Method::GET),
    stored_response(Method::POST),
    stored_response(Method::DELETE),
    reading("/v1/realtime", RouteHandler::Realtime, Some(Scope::Media)),
    generation("/v1/messages", Dialect::Messages),
    generation("/anthropic/v1/messages", Dialect::Messages),
    generation("/inference/v1/generate", Dialect::TokenIds),
    generation("/generate", Dialect::SglangGenerate),
    tokenizing("/v1/messages/count_tokens", RouteHandler::CountTokens),
    tokenizing("/tokenize", RouteHandler::Tokenize),
    tokenizing("/detokenize", RouteHandler::Detokenize),
    posting("/v1/route", RouteHandler::Route, Scope::Route),
    posting(
        "/v1/route/potential_loads",
        RouteHandler::PotentialLoads,
        Scope::Route,
    ),
    reservation(Method::POST, RouteHandler::PrefillComplete),
    reservation(Method::DELETE, RouteHandler::FreeReservation),
    reading("/v1/models", RouteHandler::Models, Some(Scope::Models)),
    reading("/v1/models/", RouteHandler::Model, Some(Scope::Models)),
    reading("/health", RouteHandler::Health, None),
    reading("/livez", RouteHandler::Live, None),
    reading("/readyz", RouteHandler::Ready, None),
];

const fn posting(path: &'static str, endpoint: RouteHandler, scope: Scope) -> Route {
    Route {
        method: Method::POST,
        path,
        endpoint,
        scope: Some(scope),
        body: BodyMode::Limited,
    }
}

const fn generation(path: &'static str, dialect: Dialect) -> Route {
    posting(path, RouteHandler::Generate(dialect), Scope::Chat)
}

const fn scoring(path: &'static str, dialect: Dialect) -> Route {
    posting(path, RouteHandler::Generate(dialect), Scope::Embeddings)
}

const fn tokenizing(path: &'static str, endpoint: RouteHandler) -> Route {
    posting(path, endpoint, Scope::Tokenize)
}

const fn media(path: &'static str) -> Route {
    posting(
        path,
        RouteHandler::GenerateAnew(Dialect::Embeddings),
        Scope::Media,
    )
}

const fn form(path: &'static str) -> Route {
    Route {
        method: Method::POST,
        path,
        endpoint: RouteHandler::Form,
        scope: Some(Scope::Media),
        body: BodyMode::Form,
    }
}

const fn stored_response(method: Method) -> Route {
    Route {
        method,
        path: "/v1/responses/",
        endpoint: RouteHandler::StoredResponse,
        scope: Some(Scope::Chat),
        body: BodyMode::None,
    }
}

const fn reservation(method: Method, endpoint: RouteHandler) -> Route {
    Route {
        method,
        path: "/v1/route/",
        endpoint,
        scope: Some(Scope::Route),
        body: BodyMode::None,
    }
}

const fn reading(path: &'static str, endpoint: RouteHandler, scope: Option<Scope>) -> Route {
    Route {
        method: Method::GET,
        path,
        endpoint,
        scope,
        body: BodyMode::None,
    }
}

/// The form of a route's errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorShape {
    Openai,
    Anthropic,
}

impl ErrorShape {
    /// Returns the shape by path, also for a path without a route: its clients expect that shape.
    pub(crate) fn of(path: &str) -> Self {
        let below = |root: &str| {
            path.strip_prefix(root)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if below("/v1/messages") || below("/anthropic") {
            Self::Anthropic
        } else {
            Self::Openai
        }
    }

    pub(crate) fn body(self, error: &ApiError, request_id: &str) -> Vec<u8> {
        match self {
            Self::Openai => error.openai_body(request_id),
            Self::Anthropic => error.anthropic_body(request_id),
        }
    }

    pub(crate) fn stream_event(self, error: &ApiError, request_id: &str) -> Vec<u8> {
        match self {
            Self::Openai => error.stream_event(request_id),
            Self::Anthropic => error.anthropic_stream_event(request_id),
        }
    }
}

/// The table's answer to a request line.
#[derive(Debug)]
pub(crate) enum RouteMatch {
    /// A route answers.
    Route(&'static Route),
    /// The path exists with this other method.
    OtherMethod(&'static Route),
    /// No such path.
    Nothing,
}

/// Looks up a request line. The path is matched byte for byte: nothing is decoded or normalised, so
/// no spelling of a path can reach a handler under another path's scope.
pub(crate) fn find(method: &Method, path: &str) -> RouteMatch {
    let here = |route: &&Route| {
        path == route.path
            || (route.path.ends_with('/')
                && path.len() > route.path.len()
                && path.starts_with(route.path))
    };
    // HEAD matches wherever GET does: the server drops the body of the reply.
    let answers = |route: &&Route| {
        route.method == *method || (route.method == Method::GET && *method == Method::HEAD)
    };
    let mut there = ROUTES.iter().filter(here).peekable();
    let Some(first) = there.peek().copied() else {
        return RouteMatch::Nothing;
    };
    there
        .find(answers)
        .map_or(RouteMatch::OtherMethod(first), RouteMatch::Route)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("S5")]
    fn only_the_exact_spelling_of_a_path_finds_its_route() {
        assert!(matches!(
            find(&Method::GET, "/v1/models"),
            RouteMatch::Route(_)
        ));
        for path in [
            "/V1/models",
            "//v1/models",
            "/v1/%6dodels",
            "/v1;/models",
            "/v1/../v1/models",
            "/v1/models.",
            "",
        ] {
            assert!(
                matches!(find(&Method::GET, path), RouteMatch::Nothing),
                "{path}"
            );
        }
    }

    #[test]
    fn errors_have_the_form_of_the_api_of_the_path() {
        for path in [
            "/v1/messages",
            "/v1/messages/count_tokens",
            "/anthropic/v1/messages",
            "/anthropic/nothing",
        ] {
            assert_eq!(ErrorShape::of(path), ErrorShape::Anthropic, "{path}");
        }
        for path in [
            "/v1/messagesx",
            "/v1/chat/completions",
            "/v1/models",
            "/anthropics",
            "",
        ] {
            assert_eq!(ErrorShape::of(path), ErrorShape::Openai, "{path}");
        }
    }

    #[test]
    #[contract("S43", "V45")]
    fn control_endpoints_of_engines_are_not_routes() {
        for path in [
            "/pause",
            "/sleep",
            "/update_weights",
            "/collective_rpc",
            "/reset_prefix_cache",
            "/invocations",
            "/v1/load_lora_adapter",
            "/v1/audio/speech/",
        ] {
            assert!(
                matches!(find(&Method::POST, path), RouteMatch::Nothing),
                "{path}"
            );
        }
    }

    #[test]
    fn a_known_path_with_another_method_is_distinguished() {
        assert!(matches!(
            find(&Method::GET, "/v1/chat/completions"),
            RouteMatch::OtherMethod(_)
        ));
        assert!(matches!(
            find(&Method::HEAD, "/health"),
            RouteMatch::Route(_)
        ));
        assert!(matches!(
            find(&Method::POST, "/v1/nothing"),
            RouteMatch::Nothing
        ));
    }
}
