//! `workers[].kv_events`: the kind of stream, and the requirements of that kind.

use super::problem_at;
use crate::{
    EventSource, ReplayEndpoint, WorkerKvEvents, checked_value::CheckedValue, problem::ProblemDraft,
};

/// Builds the section; `entry` is that of worker number `at`.
pub(super) fn kv_events(
    section: &CheckedValue,
    entry: &CheckedValue,
    at: usize,
    problems: &mut Vec<ProblemDraft>,
) -> WorkerKvEvents {
    let (endpoint, replay) = (section.key("endpoint"), section.key("replay_endpoint"));
    let source = source(section);
    let bind = section.key("bind").bool();
    let mut file = |key: &str, message: String, expected: &str| {
        let at_key = section.key(key);
        let draft =
            ProblemDraft::new(format!("workers[{at}].kv_events.{key}"), message).expected(expected);
        problems.push(problem_at(
            draft.value(at_key.shown()).in_context(),
            at_key,
            entry,
        ));
    };
    if !endpoint.failed && !section.key("source").failed {
        let scheme = endpoint.text().and_then(scheme);
        let word = section.key("source").word().unwrap_or("auto");
        let schemes = schemes(source);
        match scheme {
            Some(scheme) if !schemes.contains(&scheme) => {
                let expected = match schemes {
                    [] => "no endpoint: the worker's own URL is asked".to_owned(),
                    schemes => format!("one of {}://", schemes.join("://, ")),
                };
                file(
                    "endpoint",
                    format!("{scheme}:// is no place for source `{word}`"),
                    &expected,
                );
            }
            None if matches!(
                source,
                EventSource::Sse | EventSource::Ws | EventSource::Nats
            ) =>
            {
                file(
                    "endpoint",
                    format!("source `{word}` has no endpoint"),
                    &format!("{}://...", schemes.join(":// or ")),
                );
            }
            _ => {}
        }
        let zmq = matches!(source, EventSource::Auto | EventSource::Zmq);
        let off = source == EventSource::None;
        if bind && !off && (!zmq || scheme.is_none()) {
            file(
                "bind",
                "there is nothing to listen at".to_owned(),
                "an endpoint with tcp:// or ipc://, or `bind: false`",
            );
        }
        if replay.text().is_some() && !off && !zmq {
            file(
                "replay_endpoint",
                format!("source `{word}` is never asked for history there"),
                "this key left out",
            );
        }
    }
    WorkerKvEvents {
        source,
        endpoint: endpoint.text().map(Into::into),
        replay_endpoint: match (replay.text(), replay.word()) {
            (Some(endpoint), _) => ReplayEndpoint::At(endpoint.into()),
            (None, Some("none")) => ReplayEndpoint::None,
            _ => ReplayEndpoint::Auto,
        },
        topic: section.key("topic").text().unwrap_or_default().to_owned(),
        bind,
        token_file: section.key("token_file").text().map(Into::into),
    }
}

/// Returns the configured kind, or the kind that follows from the endpoint.
fn source(section: &CheckedValue) -> EventSource {
    match section.key("source").word() {
        Some("zmq") => EventSource::Zmq,
        Some("sse") => EventSource::Sse,
        Some("ws") => EventSource::Ws,
        Some("poll") => EventSource::Poll,
        Some("nats") => EventSource::Nats,
        Some("none") => EventSource::None,
        _ => match section.key("endpoint").text().and_then(scheme) {
            Some("http" | "https") => EventSource::Sse,
            Some("ws" | "wss") => EventSource::Ws,
            Some("nats" | "tls") => EventSource::Nats,
            _ => EventSource::Auto,
        },
    }
}

fn schemes(source: EventSource) -> &'static [&'static str] {
    match source {
        EventSource::Auto | EventSource::Zmq => &["tcp", "ipc"],
        EventSource::Sse => &["http", "https"],
        EventSource::Ws => &["ws", "wss"],
        EventSource::Nats => &["nats", "tls"],
        EventSource::Poll => &[],
        // An unused endpoint may keep any scheme.
        EventSource::None => &["tcp", "ipc", "http", "https", "ws", "wss", "nats", "tls"],
    }
}

fn scheme(endpoint: &str) -> Option<&str> {
    endpoint.split_once("://").map(|(scheme, _)| scheme)
}
