//! Checks whether the engine's events reach the router: enabled, at the right endpoint, under the
//! right topic, replayable.

use fleet::WorkerProbe;

use super::{
    CheckSubject, Finding, Findings, cache::unprobed, endpoint, events_enabled, flags::EngineFlags,
    ranks::shared_ranks, replay,
};
use crate::observe::{AnnouncedBlocks, ProbeOutcome, StreamObservation};
use api::CheckStatus;

/// A batch should arrive this soon after its request's reply, in seconds.
const LATE_S: f64 = 1.0;
/// Later than this, decisions use outdated state: the next turn of a conversation comes before the
/// events of the last one. In seconds.
const TOO_LATE_S: f64 = 2.5;

const STREAM: [&str; 10] = [
    "events_endpoint",
    "events_arriving",
    "events_age",
    "replay",
    "sequence",
    "hash_alias",
    "medium_known",
    "hybrid_groups",
    "clock",
    "identity_unique",
];

pub(super) fn check(subject: &CheckSubject<'_>, probe: &WorkerProbe, findings: &mut Findings) {
    if findings.failed("engine_version") {
        findings.skip_rest(&["events_enabled"], "this release publishes no events");
    }
    findings.set("events_enabled", events_enabled::check(subject, probe));
    if findings.status("events_enabled") != Some(CheckStatus::Ok) {
        findings.skip_rest(&STREAM, "there are no events to look at");
        return;
    }
    findings.set("events_endpoint", endpoint::check(subject, probe));
    if findings.failed("events_endpoint") {
        findings.skip_rest(&STREAM, "the events' endpoint is wrong");
        return;
    }
    findings.set("replay", replay::check(subject, probe));
    if findings.failed("prefix_caching") {
        findings.skip_rest(
            &["events_arriving"],
            "prefix caching is off: nothing is published",
        );
    }
    let arrives = subject
        .seen
        .probes
        .arrival
        .as_ref()
        .is_some_and(|arrival| arrival.subscribed);
    if findings.failed("dp_ranks") && !arrives {
        findings.skip_rest(
            &["events_arriving"],
            "the ranks are miscounted: the request may have run on one that is not followed",
        );
    }
    let stores: u64 = followed(subject, probe)
        .map(|stream| stream.observation.stores)
        .sum();
    if findings.failed("tokenizer") && !arrives && stores > 0 {
        findings.skip_rest(
            &["events_arriving"],
            "the tokenizers differ: which blocks are our request's is not known",
        );
    }
    findings.set("events_arriving", events_arriving(subject, probe));
    if findings.failed("events_arriving") {
        findings.skip_rest(&["events_age"], "no events arrive");
    }
    findings.set("events_age", events_age(subject));
}

/// Returns the streams that both sides know.
pub(super) fn followed<'a>(
    subject: &'a CheckSubject<'_>,
    probe: &WorkerProbe,
) -> impl Iterator<Item = &'a StreamObservation> {
    let ranks = shared_ranks(subject, probe);
    subject
        .seen
        .streams
        .iter()
        .filter(move |stream| stream.followed && stream.endpoint.rank < ranks)
}

/// Returns the key that sets the subscribed topic.
fn topic_key(subject: &CheckSubject<'_>) -> String {
    let own = subject.key("kv_events.topic");
    let global = &subject.settings.kv_events.topic_filter;
    if !subject.settings.is_set(&own)
        && !global.is_empty()
        && subject.worker.kv_events.topic == *global
    {
        "kv_events.topic_filter".to_owned()
    } else {
        own
    }
}

fn events_arriving(subject: &CheckSubject<'_>, probe: &WorkerProbe) -> Finding {
    let probes = &subject.seen.probes;
    let batches: u64 = followed(subject, probe)
        .map(|stream| stream.observation.batches)
        .sum();
    match &probes.arrival {
        Some(arrival) if arrival.subscribed => {
            Finding::ok("blocks of a request were announced").found(batches)
        }
        // A stream that is not followed says nothing about topics.
        Some(AnnouncedBlocks { stream, topic, .. }) if followed_at(subject, *stream) => {
            let subscription = subject
                .seen
                .streams
                .get(*stream)
                .map(|stream| stream.endpoint.topic.clone())
                .unwrap_or_default();
            let setting = EngineFlags::of(probe.engine).events_setting();
            let message = format!(
                "events come under the topic {topic:?}, the router listens for {subscription:?} only"
            );
            let fix = format!(
                "set {}: {topic:?}, or set \"topic\": {subscription:?} in {setting}",
                topic_key(subject)
            );
            Finding::fail(message, fix)
                .found(format!("{topic:?}"))
                .expected(format!("{subscription:?}"))
        }
        None if probes.outcome != ProbeOutcome::Answered => match batches {
            0 => Finding::skip(unprobed(&probes.outcome)),
            _ => Finding::ok(format!("{batches} batches were heard")).found(batches),
        },
        // These events can never be credited: another check gives the reason.
        None if only_partial_groups(subject, probe) => {
            Finding::ok(format!("{batches} batches were heard")).found(batches)
        }
        _ => {
            let unreadable: u64 = followed(subject, probe)
                .map(|stream| stream.observation.unreadable)
                .sum();
            let message = match (batches, unreadable) {
                (0, 0) => "a publisher is connected, and nothing came after a request".to_owned(),
                (0, _) => format!("{unreadable} messages came that are no batches of events"),
                _ => format!("{batches} batches came, none with the blocks of our request"),
            };
            let fix = format!(
                "check that {} is this engine's publisher, that {} has \"publisher\": \"zmq\", that blocks are kept ({}), and the engine's log",
                subject.key("kv_events.endpoint"),
                EngineFlags::of(probe.engine).events_setting(),
                EngineFlags::of(probe.engine).prefix_caching(),
            );
            Finding::fail(message, fix).found(batches)
        }
    }
}

fn followed_at(subject: &CheckSubject<'_>, stream: usize) -> bool {
    subject
        .seen
        .streams
        .get(stream)
        .is_some_and(|stream| stream.followed)
}

/// Returns whether all announced blocks belong to groups that do not hold every token.
fn only_partial_groups(subject: &CheckSubject<'_>, probe: &WorkerProbe) -> bool {
    let mut observations = followed(subject, probe)
        .map(|stream| &stream.observation)
        .filter(|observation| observation.stores > 0)
        .peekable();
    observations.peek().is_some()
        && observations.all(|observation| {
            observation.usable_stores == 0 && !observation.partial_groups.is_empty()
        })
}

fn events_age(subject: &CheckSubject<'_>) -> Finding {
    let Some(arrival) = subject
        .seen
        .probes
        .arrival
        .as_ref()
        .filter(|arrival| arrival.subscribed)
    else {
        return Finding::skip(unprobed(&subject.seen.probes.outcome));
    };
    let late_s = arrival.after.as_secs_f64();
    if late_s > LATE_S {
        let fix = "look at the load of the engine and of the network between: decisions are made on what events said";
        let message = format!("events came {late_s:.1} s after the reply");
        let finding = if late_s > TOO_LATE_S {
            Finding::fail(message, fix)
        } else {
            Finding::warn(message, fix)
        };
        return finding
            .found(format!("{late_s:.1} s"))
            .expected(format!("at most {LATE_S:.1} s"));
    }
    Finding::ok(format!(
        "events came {:.0} ms after the reply",
        late_s * 1e3
    ))
    .found(format!("{:.0} ms", late_s * 1e3))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use config::EngineKind;

    use super::{super::fixture::CheckFixture, *};
    use crate::observe::{LinkStatus, PublisherObservation, ReplayAnswer};

    #[test]
    fn events_switched_off_on_either_side_are_one_failure() {
        let mut fixture = CheckFixture::healthy();
        fixture.probe().announced = Some(Vec::new());
        fixture.silence();
        assert_eq!(fixture.failed(), ["events_enabled"]);
        assert!(
            fixture
                .check("events_enabled")
                .fix
                .is_some_and(|fix| fix.contains("--kv-events-config"))
        );
        for (mut fixture, fix) in [
            (
                CheckFixture::configured("kv_events: {source: none}"),
                "set workers[0].kv_events.source: auto",
            ),
            (
                CheckFixture::with_sections("kv_events: {enabled: false}"),
                "set kv_events.enabled: true (leave out --no-kv-events)",
            ),
        ] {
            fixture.silence();
            assert_eq!(fixture.failed(), ["events_enabled"], "{fix}");
            assert_eq!(fixture.check("events_enabled").fix.as_deref(), Some(fix));
        }
    }

    #[test]
    fn a_router_without_overlap_weight_needs_no_events() {
        let mut fixture = CheckFixture::with_sections("routing: {overlap_weight: 0}");
        fixture.silence();
        assert_eq!(fixture.failed(), [""; 0]);
        assert_eq!(fixture.check("events_enabled").status, CheckStatus::Skip);
    }

    #[test]
    fn an_engine_of_a_kind_without_events_is_no_failure() {
        for mut fixture in [
            CheckFixture::healthy(),
            CheckFixture::configured("kv_events: {source: none}"),
            CheckFixture::with_sections("kv_events: {enabled: false}"),
        ] {
            fixture.probe().engine = EngineKind::Llamacpp;
            fixture.probe().announced = None;
            fixture.silence();
            assert_eq!(fixture.failed(), [""; 0]);
            assert_eq!(fixture.check("events_enabled").status, CheckStatus::Skip);
        }
    }

    #[test]
    fn a_wrong_topic_is_one_failure_that_names_both_and_the_key() {
        for (mut fixture, key) in [
            (
                CheckFixture::configured("kv_events: {topic: kv}"),
                "workers[0].kv_events.topic",
            ),
            (
                CheckFixture::with_sections("kv_events: {topic_filter: kv}"),
                "kv_events.topic_filter",
            ),
        ] {
            fixture.seen.streams[0].endpoint.topic = "kv".to_owned();
            let arrival = fixture
                .seen
                .probes
                .arrival
                .as_mut()
                .expect("a healthy scene has one");
            arrival.subscribed = false;
            assert_eq!(fixture.failed(), ["events_arriving"], "{key}");
            let fix = format!(
                "set {key}: \"\", or set \"topic\": \"kv\" in the engine's --kv-events-config"
            );
            assert_eq!(fixture.check("events_arriving").fix, Some(fix));
        }
    }

    #[test]
    fn a_silent_publisher_is_one_failure() {
        let mut fixture = CheckFixture::healthy();
        fixture.clear_observation();
        assert_eq!(fixture.failed(), ["events_arriving"]);
        // Some replay sockets do not answer at all if they have nothing to replay.
        fixture.seen.replays[0].answer = ReplayAnswer::Silent {
            requested: None,
            waited: Duration::from_secs(5),
        };
        assert_eq!(fixture.failed(), ["events_arriving"]);
    }

    #[test]
    fn late_events_are_not_reported_as_missing() {
        for (after_s, status) in [
            (0.2, CheckStatus::Ok),
            (1.5, CheckStatus::Warn),
            (4.0, CheckStatus::Fail),
        ] {
            let mut fixture = CheckFixture::healthy();
            fixture.observation().age_s = Some(after_s);
            fixture
                .seen
                .probes
                .arrival
                .as_mut()
                .expect("a healthy scene has one")
                .after = Duration::from_secs_f64(after_s);
            assert_eq!(fixture.check("events_age").status, status, "{after_s}");
            assert_eq!(
                fixture.failed(),
                if status == CheckStatus::Fail {
                    &["events_age"][..]
                } else {
                    &[]
                },
                "{after_s}"
            );
        }
    }

    #[test]
    fn miscounted_ranks_explain_the_failures_of_a_single_rank() {
        let mut fixture = CheckFixture::configured("dp_ranks: 1");
        fixture.announce(2);
        fixture.seen.probes.second.cached_tokens = Some(0);
        fixture.probe().prefix_caching = None;
        // The request ran on the rank that is not followed.
        let mut other = StreamObservation {
            followed: false,
            ..fixture.seen.streams.remove(0)
        };
        (other.endpoint.rank, other.endpoint.endpoint) = (1, "tcp://127.0.0.1:5600".to_owned());
        let observation = PublisherObservation {
            link: LinkStatus::Connected,
            ..PublisherObservation::default()
        };
        fixture.seen.streams = vec![
            StreamObservation {
                endpoint: fixture.probe().streams[0].clone(),
                followed: true,
                observation,
            },
            other,
        ];
        let arrival = fixture
            .seen
            .probes
            .arrival
            .as_mut()
            .expect("a healthy scene has one");
        (arrival.stream, arrival.subscribed) = (1, false);
        assert_eq!(fixture.failed(), ["dp_ranks"]);
        fixture.seen.probes.arrival = None;
        assert_eq!(fixture.failed(), ["dp_ranks"]);
    }
}
