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

pub(super) fn check(subject: &CheckSubject<'_>, meeting: &WorkerProbe, findings: &mut Findings) {
    if findings.failed("engine_version") {
        findings.skip_rest(&["events_enabled"], "this release publishes no events");
    }
    findings.set("events_enabled", events_enabled::check(subject, meeting));
    if findings.status("events_enabled") != Some(CheckStatus::Ok) {
        findings.skip_rest(&STREAM, "there are no events to look at");
        return;
    }
    findings.set("events_endpoint", endpoint::check(subject, meeting));
    if findings.failed("events_endpoint") {
        findings.skip_rest(&STREAM, "the events' endpoint is wrong");
        return;
    }
    findings.set("replay", replay::check(subject, meeting));
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
        .is_some_and(|arrival| arrival.wanted);
    if findings.failed("dp_ranks") && !arrives {
        findings.skip_rest(
            &["events_arriving"],
            "the ranks are miscounted: the request may have run on one that is not followed",
        );
    }
    let stores: u64 = followed(subject, meeting)
        .map(|stream| stream.heard.stores)
        .sum();
    if findings.failed("tokenizer") && !arrives && stores > 0 {
        findings.skip_rest(
            &["events_arriving"],
            "the tokenizers differ: which blocks are our request's is not known",
        );
    }
    findings.set("events_arriving", events_arriving(subject, meeting));
    if findings.failed("events_arriving") {
        findings.skip_rest(&["events_age"], "no events arrive");
    }
    findings.set("events_age", events_age(subject));
}

/// Returns the streams that both sides know.
pub(super) fn followed<'a>(
    subject: &'a CheckSubject<'_>,
    meeting: &WorkerProbe,
) -> impl Iterator<Item = &'a StreamObservation> {
    let ranks = shared_ranks(subject, meeting);
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

fn events_arriving(subject: &CheckSubject<'_>, meeting: &WorkerProbe) -> Finding {
    let probes = &subject.seen.probes;
    let heard: u64 = followed(subject, meeting)
        .map(|stream| stream.heard.batches)
        .sum();
    match &probes.arrival {
        Some(arrival) if arrival.wanted => {
            Finding::ok("blocks of a request were announced").found(heard)
        }
        // A stream that is not followed says nothing about topics.
        Some(AnnouncedBlocks { stream, topic, .. }) if followed_at(subject, *stream) => {
            let wanted = subject
                .seen
                .streams
                .get(*stream)
                .map(|stream| stream.endpoint.topic.clone())
                .unwrap_or_default();
            let setting = EngineFlags::of(meeting.engine).events_setting();
            let message = format!(
                "events come under the topic {topic:?}, the router listens for {wanted:?} only"
            );
            let fix = format!(
                "set {}: {topic:?}, or set \"topic\": {wanted:?} in {setting}",
                topic_key(subject)
            );
            Finding::fail(message, fix)
                .found(format!("{topic:?}"))
                .expected(format!("{wanted:?}"))
        }
        None if probes.outcome != ProbeOutcome::Answered => match heard {
            0 => Finding::skip(unprobed(&probes.outcome)),
            _ => Finding::ok(format!("{heard} batches were heard")).found(heard),
        },
        // These events can never be credited: another check gives the reason.
        None if only_partial_groups(subject, meeting) => {
            Finding::ok(format!("{heard} batches were heard")).found(heard)
        }
        _ => {
            let unreadable: u64 = followed(subject, meeting)
                .map(|stream| stream.heard.unreadable)
                .sum();
            let message = match (heard, unreadable) {
                (0, 0) => "a publisher is connected, and nothing came after a request".to_owned(),
                (0, _) => format!("{unreadable} messages came that are no batches of events"),
                _ => format!("{heard} batches came, none with the blocks of our request"),
            };
            let fix = format!(
                "check that {} is this engine's publisher, that {} has \"publisher\": \"zmq\", that blocks are kept ({}), and the engine's log",
                subject.key("kv_events.endpoint"),
                EngineFlags::of(meeting.engine).events_setting(),
                EngineFlags::of(meeting.engine).prefix_caching(),
            );
            Finding::fail(message, fix).found(heard)
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
fn only_partial_groups(subject: &CheckSubject<'_>, meeting: &WorkerProbe) -> bool {
    let mut heard = followed(subject, meeting)
        .map(|stream| &stream.heard)
        .filter(|heard| heard.stores > 0)
        .peekable();
    heard.peek().is_some()
        && heard.all(|heard| heard.usable_stores == 0 && !heard.partial_groups.is_empty())
}

fn events_age(subject: &CheckSubject<'_>) -> Finding {
    let Some(arrival) = subject
        .seen
        .probes
        .arrival
        .as_ref()
        .filter(|arrival| arrival.wanted)
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
        let mut scene = CheckFixture::healthy();
        scene.meeting().announced = Some(Vec::new());
        scene.silence();
        assert_eq!(scene.failed(), ["events_enabled"]);
        assert!(
            scene
                .check("events_enabled")
                .fix
                .is_some_and(|fix| fix.contains("--kv-events-config"))
        );
        for (mut scene, fix) in [
            (
                CheckFixture::configured("kv_events: {source: none}"),
                "set workers[0].kv_events.source: auto",
            ),
            (
                CheckFixture::with_sections("kv_events: {enabled: false}"),
                "set kv_events.enabled: true (leave out --no-kv-events)",
            ),
        ] {
            scene.silence();
            assert_eq!(scene.failed(), ["events_enabled"], "{fix}");
            assert_eq!(scene.check("events_enabled").fix.as_deref(), Some(fix));
        }
    }

    #[test]
    fn a_router_without_overlap_weight_needs_no_events() {
        let mut scene = CheckFixture::with_sections("routing: {overlap_weight: 0}");
        scene.silence();
        assert_eq!(scene.failed(), [""; 0]);
        assert_eq!(scene.check("events_enabled").status, CheckStatus::Skip);
    }

    #[test]
    fn an_engine_of_a_kind_without_events_is_no_failure() {
        for mut scene in [
            CheckFixture::healthy(),
            CheckFixture::configured("kv_events: {source: none}"),
            CheckFixture::with_sections("kv_events: {enabled: false}"),
        ] {
            scene.meeting().engine = EngineKind::Llamacpp;
            scene.meeting().announced = None;
            scene.silence();
            assert_eq!(scene.failed(), [""; 0]);
            assert_eq!(scene.check("events_enabled").status, CheckStatus::Skip);
        }
    }

    #[test]
    fn a_wrong_topic_is_one_failure_that_names_both_and_the_key() {
        for (mut scene, key) in [
            (
                CheckFixture::configured("kv_events: {topic: kv}"),
                "workers[0].kv_events.topic",
            ),
            (
                CheckFixture::with_sections("kv_events: {topic_filter: kv}"),
                "kv_events.topic_filter",
            ),
        ] {
            scene.seen.streams[0].endpoint.topic = "kv".to_owned();
            let arrival = scene
                .seen
                .probes
                .arrival
                .as_mut()
                .expect("a healthy scene has one");
            arrival.wanted = false;
            assert_eq!(scene.failed(), ["events_arriving"], "{key}");
            let fix = format!(
                "set {key}: \"\", or set \"topic\": \"kv\" in the engine's --kv-events-config"
            );
            assert_eq!(scene.check("events_arriving").fix, Some(fix));
        }
    }

    #[test]
    fn a_silent_publisher_is_one_failure() {
        let mut scene = CheckFixture::healthy();
        scene.hears_nothing();
        assert_eq!(scene.failed(), ["events_arriving"]);
        // Some replay sockets do not answer at all if they have nothing to replay.
        scene.seen.replays[0].answer = ReplayAnswer::Silent {
            asked_for: None,
            waited: Duration::from_secs(5),
        };
        assert_eq!(scene.failed(), ["events_arriving"]);
    }

    #[test]
    fn late_events_are_not_reported_as_missing() {
        for (after_s, status) in [
            (0.2, CheckStatus::Ok),
            (1.5, CheckStatus::Warn),
            (4.0, CheckStatus::Fail),
        ] {
            let mut scene = CheckFixture::healthy();
            scene.heard().age_s = Some(after_s);
            scene
                .seen
                .probes
                .arrival
                .as_mut()
                .expect("a healthy scene has one")
                .after = Duration::from_secs_f64(after_s);
            assert_eq!(scene.check("events_age").status, status, "{after_s}");
            assert_eq!(
                scene.failed(),
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
        let mut scene = CheckFixture::configured("dp_ranks: 1");
        scene.announce(2);
        scene.seen.probes.second.cached_tokens = Some(0);
        scene.meeting().prefix_caching = None;
        // The request ran on the rank that is not followed.
        let mut other = StreamObservation {
            followed: false,
            ..scene.seen.streams.remove(0)
        };
        (other.endpoint.rank, other.endpoint.endpoint) = (1, "tcp://127.0.0.1:5600".to_owned());
        let heard = PublisherObservation {
            link: LinkStatus::Connected,
            ..PublisherObservation::default()
        };
        scene.seen.streams = vec![
            StreamObservation {
                endpoint: scene.meeting().streams[0].clone(),
                followed: true,
                heard,
            },
            other,
        ];
        let arrival = scene
            .seen
            .probes
            .arrival
            .as_mut()
            .expect("a healthy scene has one");
        (arrival.stream, arrival.wanted) = (1, false);
        assert_eq!(scene.failed(), ["dp_ranks"]);
        scene.seen.probes.arrival = None;
        assert_eq!(scene.failed(), ["dp_ranks"]);
    }
}
