//! Checks whether the engine publishes events, and the router follows them.

use config::EventSource;
use fleet::WorkerProbe;

use super::{
    CheckSubject, Finding, connection,
    flags::{EngineFlags, keeps_blocks},
    ranks::engine_ranks,
};

pub(super) fn check(subject: &CheckSubject<'_>, probe: &WorkerProbe) -> Finding {
    let engine = EngineFlags::of(probe.engine).events(engine_ranks(subject, probe).unwrap_or(1));
    if subject.settings.routing.overlap_weight == 0.0 {
        return Finding::skip(
            "routing.overlap_weight is 0: caches do not count, and no events are followed",
        );
    }
    if !keeps_blocks(probe.engine) && probe.streams.is_empty() {
        let kind = probe.engine.as_str();
        return Finding::skip(format!(
            "{kind} publishes no events: what it has cached is guessed"
        ));
    }
    if connection::publishes_none(probe) && !subject.wants_events() {
        return Finding::skip("this release publishes no events, and none are wanted");
    }
    if let Some(finding) = switched_off(subject) {
        return finding;
    }
    if let Some(way) = another_way(&subject.worker.kv_events) {
        return Finding::skip(format!(
            "events come {way}, which only a running router follows: GET /admin/streams shows how the stream stands"
        ));
    }
    if probe.announced.as_ref().is_some_and(Vec::is_empty) {
        let message =
            "the engine says that it publishes no events: what it has cached can only be guessed";
        return Finding::fail(message, engine).found("off").expected("on");
    }
    let endpoints: Vec<&str> = probe
        .streams
        .iter()
        .map(|endpoint| endpoint.endpoint.as_str())
        .collect();
    if !endpoints.is_empty() {
        return Finding::ok(format!("published at {}", endpoints.join(", "))).found("on");
    }
    let fix = format!(
        "{engine}, and set {} if it does not announce where",
        subject.key("kv_events.endpoint")
    );
    Finding::fail("no publisher of events is known", fix)
        .found("none")
        .expected("on")
}

fn switched_off(subject: &CheckSubject<'_>) -> Option<Finding> {
    let off =
        |message: &str, fix: String| Some(Finding::fail(message, fix).found("off").expected("on"));
    if !subject.settings.kv_events.enabled {
        return off(
            "kv_events.enabled is false: the router follows no events and guesses what is cached",
            "set kv_events.enabled: true (leave out --no-kv-events)".to_owned(),
        );
    }
    if subject.worker.kv_events.source == EventSource::None {
        let key = subject.key("kv_events.source");
        let message = format!(
            "{key} is none: the router follows no events of this worker and guesses what is cached"
        );
        return off(&message, format!("set {key}: auto"));
    }
    None
}

/// Returns the name of an event transport without a publisher to connect to.
fn another_way(events: &config::WorkerKvEvents) -> Option<&'static str> {
    match events.source {
        _ if events.bind => Some("to a socket of the router's"),
        EventSource::Sse => Some("over HTTP"),
        EventSource::Ws => Some("over a WebSocket"),
        EventSource::Poll => Some("in lists that are asked for, and can be asked for once"),
        EventSource::Nats => Some("over NATS"),
        EventSource::Auto | EventSource::Zmq | EventSource::None => None,
    }
}
