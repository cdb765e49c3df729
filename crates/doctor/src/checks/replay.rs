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

pub(super) fn check(subject: &CheckSubject<'_>, meeting: &WorkerProbe) -> Finding {
    let key = subject.key("kv_events.replay_endpoint");
    if let Some(finding) = switched_off(subject, &key) {
        return finding;
    }
    // Sockets of ranks that only one side counts do not belong to this engine.
    let ranks = shared_ranks(subject, meeting);
    if let Some(finding) = collision(subject, meeting, &key, ranks) {
        return finding;
    }
    let mut seen = subject
        .seen
        .replays
        .iter()
        .filter(|seen| seen.rank < ranks)
        .peekable();
    let Some(first) = seen.peek().copied() else {
        return unknown(subject, meeting, &key, ranks);
    };
    let mut unclear = None;
    for replay in seen {
        match verdict(replay, meeting, &key) {
            ReplayVerdict::Answers => {}
            ReplayVerdict::Unclear(reason) => unclear = Some(reason),
            ReplayVerdict::Wrong(finding) => return finding,
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
fn unknown(subject: &CheckSubject<'_>, meeting: &WorkerProbe, key: &str, ranks: u32) -> Finding {
    let setting = EngineFlags::of(meeting.engine).events_setting();
    let port = replay_port(first_port(subject, meeting), ranks);
    let fix = format!(
        "start the engine with \"replay_endpoint\": \"tcp://*:{port}\" in {setting}, or set {key} to where it is"
    );
    let message = match &meeting.announced {
        Some(_) => format!("the engine offers no replay: {LOST}"),
        None => format!("no replay endpoint is known: set {key}; {LOST}"),
    };
    Finding::fail(message, fix)
        .found("none")
        .expected("a replay endpoint")
}

/// The result of querying one replay socket.
enum ReplayVerdict {
    Answers,
    /// The reason why the query shows nothing.
    Unclear(String),
    Wrong(Finding),
}

fn verdict(seen: &ReplayObservation, meeting: &WorkerProbe, key: &str) -> ReplayVerdict {
    let setting = EngineFlags::of(meeting.engine).events_setting();
    let endpoint = &seen.endpoint;
    let wrong = |message: String, fix: String| {
        ReplayVerdict::Wrong(Finding::fail(message, fix).found(endpoint))
    };
    let no_replay_socket = |reason: String| {
        let fix = match announced(meeting) {
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
            asked_for: Some(seq),
            found: false,
        } => wrong(
            format!("{endpoint} answers, but without batch {seq}, which was just heard"),
            format!("check that {key} is this engine's, and raise buffer_steps in {setting}"),
        ),
        ReplayAnswer::Answered { .. } => ReplayVerdict::Answers,
        ReplayAnswer::Silent {
            asked_for: Some(_),
            waited,
        } => no_replay_socket(format!("no answer within {waited:.1?}")),
        ReplayAnswer::Silent {
            asked_for: None, ..
        } => ReplayVerdict::Unclear(format!(
            "{endpoint} is a replay socket, and nothing was published that it could tell"
        )),
        ReplayAnswer::Failed(reason) => no_replay_socket(reason.to_string()),
        ReplayAnswer::NotAsked(reason) => ReplayVerdict::Unclear((*reason).to_owned()),
    }
}

/// Returns the replay endpoint that the engine announces for its first rank.
fn announced(meeting: &WorkerProbe) -> Option<&str> {
    meeting
        .announced
        .iter()
        .flatten()
        .find(|place| place.rank == 0)?
        .replay_endpoint
        .as_deref()
}

/// Returns the port on which the first rank publishes.
fn first_port(subject: &CheckSubject<'_>, meeting: &WorkerProbe) -> u16 {
    let first = followed(subject, meeting).find(|stream| stream.endpoint.rank == 0);
    let port = first.and_then(|stream| stream.endpoint.endpoint.rsplit_once(':')?.1.parse().ok());
    port.unwrap_or(USUAL_PORT)
}

/// Detects overlapping ports: ranks count up both sockets' ports, so the second rank's events may
/// be on the first rank's replay port.
fn collision(
    subject: &CheckSubject<'_>,
    meeting: &WorkerProbe,
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
            followed(subject, meeting).find(|other| other.endpoint.endpoint == *replay)?;
        Some((replay, publisher.endpoint.rank))
    })?;
    let message =
        format!("{replay} is where rank {rank} publishes its events: nobody answers replays there");
    let fix = match announced(meeting).filter(|there| there != replay) {
        Some(there) => format!(
            "set {key}: \"{there}\", or leave it at auto: that is what the engine announces"
        ),
        None => {
            let port = replay_port(first_port(subject, meeting), ranks);
            let setting = EngineFlags::of(meeting.engine).events_setting();
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
        let mut scene = CheckFixture::configured("kv_events: {endpoint: \"tcp://127.0.0.1:5557\"}");
        scene.meeting().announced = None;
        assert_eq!(scene.failed(), [""; 0]);
        scene.seen.replays.clear();
        assert_eq!(scene.failed(), ["replay"]);
        let message = scene.check("replay").message;
        assert!(
            message.starts_with(
                "no replay endpoint is known: set workers[0].kv_events.replay_endpoint"
            ),
            "{message}"
        );
    }

    #[test]
    fn a_replay_without_time_left_is_skipped_and_a_missing_rank_is_not_checked() {
        let mut scene = CheckFixture::healthy();
        scene.seen.replays[0].answer = ReplayAnswer::NotAsked("no time was left");
        assert_eq!(
            (scene.failed(), scene.check("replay").status),
            (vec![], CheckStatus::Skip)
        );
        let mut scene = CheckFixture::configured("dp_ranks: 2");
        let guessed = ReplayObservation {
            rank: 1,
            endpoint: "tcp://127.0.0.1:5559".to_owned(),
            answer: ReplayAnswer::Failed("another engine's".to_owned()),
        };
        scene.seen.replays.push(guessed);
        assert_eq!(scene.failed(), ["dp_ranks"]);
    }

    #[test]
    fn a_replay_that_is_off_or_does_not_answer_is_one_failure() {
        let mut scene = CheckFixture::healthy();
        scene.seen.replays.clear();
        assert_eq!(scene.failed(), ["replay"]);
        assert!(
            scene
                .check("replay")
                .fix
                .is_some_and(|fix| fix.contains("\"replay_endpoint\": \"tcp://*:5558\""))
        );
        for answer in [
            ReplayAnswer::Failed("connection refused".to_owned()),
            ReplayAnswer::Answered {
                asked_for: Some(3),
                found: false,
            },
            ReplayAnswer::Silent {
                asked_for: Some(3),
                waited: Duration::from_secs(5),
            },
        ] {
            let mut scene = CheckFixture::healthy();
            scene.seen.replays[0].answer = answer;
            assert_eq!(scene.failed(), ["replay"]);
        }
        for (scene, fix) in [
            (
                CheckFixture::configured("kv_events: {replay_endpoint: none}"),
                "set workers[0].kv_events.replay_endpoint: auto",
            ),
            (
                CheckFixture::with_sections("kv_events: {replay: false}"),
                "set kv_events.replay: true",
            ),
        ] {
            assert_eq!(scene.failed(), ["replay"], "{fix}");
            assert_eq!(scene.check("replay").fix.as_deref(), Some(fix));
        }
    }
}
