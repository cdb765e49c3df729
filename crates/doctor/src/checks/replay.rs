//! Checks whether missed batches can be replayed.

use config::ReplayEndpoint;
use fleet::WorkerProbe;

use super::{
    CheckSubject, Finding,
    events::followed,
    flags::{EngineFlags, USUAL_PORT, replay_port},
    ranks::shared_ranks,
};
use crate::observe::{ReplayAnswer, ReplayObservation};

/// Consequence of a missing replay.
const LOST: &str = "what is missed once, at a restart for example, is never learned";

pub(super) fn check(subject: &CheckSubject<'_>, probe: &WorkerProbe) -> Finding {
    let key = subject.key("kv_events.replay_endpoint");
    if let Some(finding) = switched_off(subject, &key) {
        return finding;
    }
    // Sockets of ranks that only one side counts do not belong to this engine.
    let ranks = shared_ranks(subject, probe);
    if let Some(finding) = collision(subject, probe, &key, ranks) {
        return finding;
    }
    let mut seen = subject
        .seen
        .replays
        .iter()
        .filter(|seen| seen.rank < ranks)
        .peekable();
    let Some(first) = seen.peek().copied() else {
        return unknown(subject, probe, &key, ranks);
    };
    let mut unclear = None;
    for replay in seen {
        match status(replay, probe, &key) {
            ReplayStatus::Answers => {}
            ReplayStatus::Unclear(reason) => unclear = Some(reason),
            ReplayStatus::Wrong(finding) => return finding,
        }
    }
    let endpoint = &first.endpoint;
    unclear.map_or_else(
        || Finding::ok(format!("{endpoint} answers")).found(endpoint),
        Finding::skip,
    )
}

fn switched_off(subject: &CheckSubject<'_>, key: &str) -> Option<Finding> {
    let off = |message, fix| Finding::fail(message, fix).found("off").expected("on");
    if !subject.settings.kv_events.replay {
        return Some(off(
            format!("kv_events.replay is false: {LOST}"),
            "set kv_events.replay: true".to_owned(),
        ));
    }
    (subject.worker.kv_events.replay_endpoint == ReplayEndpoint::None)
        .then(|| off(format!("{key} is none: {LOST}"), format!("set {key}: auto")))
}

/// Reports that no replay endpoint is known.
fn unknown(subject: &CheckSubject<'_>, probe: &WorkerProbe, key: &str, ranks: u32) -> Finding {
    let setting = EngineFlags::of(probe.engine).events_setting();
    let port = replay_port(first_port(subject, probe), ranks);
    let fix = format!(
        "start the engine with \"replay_endpoint\": \"tcp://*:{port}\" in {setting}, or set {key} to where it is"
    );
    let message = match &probe.announced {
        Some(_) => format!("the engine offers no replay: {LOST}"),
        None => format!("no replay endpoint is known: set {key}; {LOST}"),
    };
    Finding::fail(message, fix)
        .found("none")
        .expected("a replay endpoint")
}

/// The result of querying one replay socket.
enum ReplayStatus {
    Answers,
    /// The reason why the query shows nothing.
    Unclear(String),
    Wrong(Finding),
}

fn status(seen: &ReplayObservation, probe: &WorkerProbe, key: &str) -> ReplayStatus {
    let setting = EngineFlags::of(probe.engine).events_setting();
    let endpoint = &seen.endpoint;
    let wrong = |message: String, fix: String| {
        ReplayStatus::Wrong(Finding::fail(message, fix).found(endpoint))
    };
    let no_replay_socket = |reason: String| {
        let fix = match announced(probe) {
            Some(there) => format!(
                "set {key}: \"{there}\", or leave it at auto: that is what the engine announces"
            ),
            None => format!("set {key} to the replay_endpoint in {setting}, or leave it at auto"),
        };
        wrong(
            format!("{endpoint} does not answer as a replay socket: {reason}"),
            fix,
        )
    };
    match &seen.answer {
        ReplayAnswer::Answered {
            requested: Some(seq),
            found: false,
        } => wrong(
            format!("{endpoint} answers, but without batch {seq}, which was just heard"),
            format!("check that {key} is this engine's, and raise buffer_steps in {setting}"),
        ),
        ReplayAnswer::Answered { .. } => ReplayStatus::Answers,
        ReplayAnswer::Silent {
            requested: Some(_),
            waited,
        } => no_replay_socket(format!("no answer within {waited:.1?}")),
        ReplayAnswer::Silent {
            requested: None, ..
        } => ReplayStatus::Unclear(format!(
            "{endpoint} is a replay socket, and nothing was published that it could tell"
        )),
        ReplayAnswer::Failed(reason) => no_replay_socket(reason.to_string()),
        ReplayAnswer::NotSent(reason) => ReplayStatus::Unclear((*reason).to_owned()),
    }
}

/// Returns the replay endpoint that the engine announces for its first rank.
fn announced(probe: &WorkerProbe) -> Option<&str> {
    probe
        .announced
        .iter()
        .flatten()
        .find(|endpoint| endpoint.rank == 0)?
        .replay_endpoint
        .as_deref()
}

/// Returns the port on which the first rank publishes.
fn first_port(subject: &CheckSubject<'_>, probe: &WorkerProbe) -> u16 {
    let first = followed(subject, probe).find(|stream| stream.endpoint.rank == 0);
    let port = first.and_then(|stream| stream.endpoint.endpoint.rsplit_once(':')?.1.parse().ok());
    port.unwrap_or(USUAL_PORT)
}

/// Detects overlapping ports: ranks count up both sockets' ports, so the second rank's events may
/// be on the first rank's replay port.
fn collision(
    subject: &CheckSubject<'_>,
    probe: &WorkerProbe,
    key: &str,
    ranks: u32,
) -> Option<Finding> {
    let replays = subject
        .seen
        .streams
        .iter()
        .filter(|stream| stream.followed && stream.endpoint.rank < ranks);
    let (replay, rank) = replays.into_iter().find_map(|stream| {
        let replay = stream.endpoint.replay_endpoint.as_ref()?;
        let publisher =
            followed(subject, probe).find(|other| other.endpoint.endpoint == *replay)?;
        Some((replay, publisher.endpoint.rank))
    })?;
    let message =
        format!("{replay} is where rank {rank} publishes its events: nobody answers replays there");
    let fix = match announced(probe).filter(|there| there != replay) {
        Some(there) => format!(
            "set {key}: \"{there}\", or leave it at auto: that is what the engine announces"
        ),
        None => {
            let port = replay_port(first_port(subject, probe), ranks);
            let setting = EngineFlags::of(probe.engine).events_setting();
            format!(
                "start the engine with \"replay_endpoint\": \"tcp://*:{port}\" in {setting}, and set {key} likewise"
            )
        }
    };
    Some(Finding::fail(message, fix).found(replay))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::fixture::CheckFixture, *};
    use api::CheckStatus;

    #[test]
    fn a_replay_socket_that_the_engine_does_not_announce_must_be_configured() {
        let mut fixture =
            CheckFixture::configured("kv_events: {endpoint: \"tcp://127.0.0.1:5557\"}");
        fixture.probe().announced = None;
        assert_eq!(fixture.failed(), [""; 0]);
        fixture.seen.replays.clear();
        assert_eq!(fixture.failed(), ["replay"]);
        let message = fixture.check("replay").message;
        assert!(
            message.starts_with(
                "no replay endpoint is known: set workers[0].kv_events.replay_endpoint"
            ),
            "{message}"
        );
    }

    #[test]
    fn a_replay_without_time_left_is_skipped_and_a_missing_rank_is_not_checked() {
        let mut fixture = CheckFixture::healthy();
        fixture.seen.replays[0].answer = ReplayAnswer::NotSent("no time was left");
        assert_eq!(
            (fixture.failed(), fixture.check("replay").status),
            (vec![], CheckStatus::Skip)
        );
        let mut fixture = CheckFixture::configured("dp_ranks: 2");
        let guessed = ReplayObservation {
            rank: 1,
            endpoint: "tcp://127.0.0.1:5559".to_owned(),
            answer: ReplayAnswer::Failed("another engine's".to_owned()),
        };
        fixture.seen.replays.push(guessed);
        assert_eq!(fixture.failed(), ["dp_ranks"]);
    }

    #[test]
    fn a_replay_that_is_off_or_does_not_answer_is_one_failure() {
        let mut fixture = CheckFixture::healthy();
        fixture.seen.replays.clear();
        assert_eq!(fixture.failed(), ["replay"]);
        assert!(
            fixture
                .check("replay")
                .fix
                .is_some_and(|fix| fix.contains("\"replay_endpoint\": \"tcp://*:5558\""))
        );
        for answer in [
            ReplayAnswer::Failed("connection refused".to_owned()),
            ReplayAnswer::Answered {
                requested: Some(3),
                found: false,
            },
            ReplayAnswer::Silent {
                requested: Some(3),
                waited: Duration::from_secs(5),
            },
        ] {
            let mut fixture = CheckFixture::healthy();
            fixture.seen.replays[0].answer = answer;
            assert_eq!(fixture.failed(), ["replay"]);
        }
        for (fixture, fix) in [
            (
                CheckFixture::configured("kv_events: {replay_endpoint: none}"),
                "set workers[0].kv_events.replay_endpoint: auto",
            ),
            (
                CheckFixture::with_sections("kv_events: {replay: false}"),
                "set kv_events.replay: true",
            ),
        ] {
            assert_eq!(fixture.failed(), ["replay"], "{fix}");
            assert_eq!(fixture.check("replay").fix.as_deref(), Some(fix));
        }
    }
}
