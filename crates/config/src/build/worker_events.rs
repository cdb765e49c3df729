//! `workers[].kv_events`: the kind of stream, and the requirements of that kind.

use settings::CheckedValue;

use super::problem_at;
use crate::{
    problem::ProblemDraft,
    sections::{EventSource, SCHEMES, WorkerKvEvents},
};

/// Checks the section of worker number `at`, whose entry is `entry`.
pub(super) fn check(
    events: &WorkerKvEvents,
    entry: &CheckedValue,
    at: usize,
    problems: &mut Vec<ProblemDraft>,
) {
    let section = entry.key("kv_events");
    let (endpoint, replay) = (section.key("endpoint"), section.key("replay_endpoint"));
    let (source, bind) = (kind(events), events.bind);
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
    if endpoint.failed || section.key("source").failed {
        return;
    }
    let scheme = endpoint.text().and_then(scheme);
    let word = section.key("source").word().unwrap_or("auto");
    if let Some((message, expected)) = wrong_endpoint(source, word, scheme) {
        file("endpoint", message, &expected);
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

/// Returns what is wrong with the endpoint of a source, and the expected form.
fn wrong_endpoint(
    source: EventSource,
    word: &str,
    scheme: Option<&str>,
) -> Option<(String, String)> {
    let schemes = schemes(source);
    match scheme {
        Some(scheme) if !schemes.contains(&scheme) => {
            let expected = match schemes {
                [] => "no endpoint: the worker's own URL is asked".to_owned(),
                schemes => format!("one of {}://", schemes.join("://, ")),
            };
            Some((
                format!("{scheme}:// is no place for source `{word}`"),
                expected,
            ))
        }
        None if matches!(
            source,
            EventSource::Sse | EventSource::Ws | EventSource::Nats
        ) =>
        {
            Some((
                format!("source `{word}` has no endpoint"),
                format!("{}://...", schemes.join(":// or ")),
            ))
        }
        _ => None,
    }
}

/// Returns the configured kind, or the kind that follows from the endpoint.
pub(super) fn kind(events: &WorkerKvEvents) -> EventSource {
    if events.source != EventSource::Auto {
        return events.source;
    }
    match events.endpoint.as_deref().and_then(scheme) {
        Some("http" | "https") => EventSource::Sse,
        Some("ws" | "wss") => EventSource::Ws,
        Some("nats" | "tls") => EventSource::Nats,
        _ => EventSource::Auto,
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
        EventSource::None => SCHEMES,
    }
}

fn scheme(endpoint: &str) -> Option<&str> {
    endpoint.split_once("://").map(|(scheme, _)| scheme)
}
