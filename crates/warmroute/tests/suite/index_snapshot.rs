//! A router that is killed or stopped continues with the index of its snapshot.

use std::{fs, path::PathBuf, time::Duration};

use contract_id::contract;
use serde_json::Value;

use crate::harness::{
    Program, RawClient, RoutedFleet, RouterQueries as _, chat, chat_message, eventually, words,
};

/// Fast engines that keep few batches: what a snapshot does not have is mostly lost.
const SHORT_HISTORY: &[&str] = &["--buffer-steps", "3"];

/// A router with a snapshot file, and its engines.
struct SnapshotRouter {
    routed: RoutedFleet,
    folder: tempfile::TempDir,
}

impl SnapshotRouter {
    fn start(engines: &[&[&str]], interval: &str) -> Self {
        Self::with(engines, interval, "")
    }

    fn with(engines: &[&[&str]], interval: &str, routing: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let config = format!(
            "{routing}kv_events:\n  snapshot: {{path: {}, interval: {interval}}}\n",
            path.display()
        );
        let routed = RoutedFleet::with(engines, &config, &[]);
        Self { routed, folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("index")
    }

    /// Asks about some topics, so that each engine holds blocks.
    fn ask(&self, topics: std::ops::Range<u32>) {
        for topic in topics {
            self.routed.chat(&[question(topic)], &[]);
        }
    }

    fn saves(&self, result: &str) -> f64 {
        let labels = format!("result=\"{result}\"");
        self.routed
            .router
            .metric("warmroute_snapshot_saves_total", &labels)
    }

    fn rejections(&self, reason: &str) -> f64 {
        self.routed
            .router
            .metric("warmroute_snapshot_rejected_total", reason)
    }

    /// Waits for a save that began after this call.
    fn wait_until_saved(&self) {
        let before = self.saves("ok");
        eventually("the index to be saved", || {
            (self.saves("ok") >= before + 2.0).then_some(())
        });
    }

    fn logged(&self, text: &str) -> bool {
        self.routed.router.stderr().contains(text)
    }

    fn until_logged(&self, text: &str) {
        eventually(text, || self.logged(text).then_some(()));
    }

    /// The digests of a router that starts now without a snapshot: it replays what the engines
    /// still have.
    fn replayed_digest(&self) -> Value {
        let workers: Vec<String> = ('a'..)
            .zip(&self.routed.engines)
            .map(|(name, engine)| format!("{name}={}", engine.url()))
            .collect();
        let router = Program::serve(&workers, &[]).ready(workers.len());
        router.follows_events(workers.len());
        RawClient::get(&router.admin(), "/admin/kv-index/digest").json()
    }

    /// Sends a request to an engine past the router.
    fn ask_engine(&self, engine: usize, topic: u32) {
        let body = chat("sim", &text(topic), 8).to_string();
        let data = self.routed.engines[engine].data();
        let reply = RawClient::post(&data, "/v1/chat/completions", body.as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
}

const CONTINUED: &str = "continues where the snapshot of the index ends";

fn text(topic: u32) -> String {
    words(&format!("topic{topic}x"), 60)
}

fn question(topic: u32) -> Value {
    chat_message("user", &text(topic))
}

/// The rows of a digest about one worker.
fn of_worker<'a>(digest: &'a Value, worker: &str) -> Vec<&'a Value> {
    let rows = digest["targets"].as_array().expect("a list of targets");
    let of = rows.iter().filter(|row| row["worker"] == worker);
    of.collect()
}

#[test]
#[contract("F73")]
fn after_kill_9_the_first_repeated_prompt_is_predicted_as_the_engine_has_it() {
    let mut router = SnapshotRouter::start(&[SHORT_HISTORY, SHORT_HISTORY], "1s");
    router.ask(0..12);
    router.wait_until_saved();
    let before = router.routed.digest();
    router.routed.restart_router();
    assert_eq!(router.routed.digest(), before, "nothing was forgotten");
    for topic in 0..12 {
        let reply = router.routed.chat(&[question(topic)], &[]);
        assert!(reply.cached > 0, "the engine still has it: {reply:?}");
        assert_eq!(reply.predicted, reply.cached, "topic {topic}");
    }
    router.until_logged("snapshot of the index loaded");
    router.until_logged(CONTINUED);
    assert_eq!(router.rejections(""), 0.0);
}

#[test]
#[contract("F73")]
fn events_that_were_missed_while_the_router_was_down_are_replayed() {
    let mut router = SnapshotRouter::start(&[&[], &[]], "1s");
    router.ask(0..6);
    router.wait_until_saved();
    router.ask(6..8);
    router.routed.router.kill();
    for topic in 20..26 {
        router.ask_engine((topic % 2) as usize, topic);
    }
    router.routed.restart_router();
    router.routed.caught_up();
    router.until_logged(CONTINUED);
    assert_eq!(router.routed.digest(), router.replayed_digest());
}

#[test]
fn an_engine_that_restarted_meanwhile_loses_only_its_own_blocks() {
    let mut router = SnapshotRouter::start(&[SHORT_HISTORY, SHORT_HISTORY], "1s");
    router.ask(0..12);
    router.wait_until_saved();
    let before = router.routed.digest();
    router.routed.router.kill();
    let restarted = {
        let old = &mut router.routed.engines[0];
        let port = old.url().rsplit_once(':').unwrap().1.to_owned();
        let endpoint = |name: &str| old.ready[name][0].as_str().unwrap().to_owned();
        let (events, replay) = (endpoint("kv_events"), endpoint("replay"));
        old.kill();
        let sockets = ["--port", &port, "--kv-events", &events, "--replay", &replay];
        Program::engine(&[&["--speed", "20"], &sockets[..], SHORT_HISTORY].concat())
    };
    // The old one keeps its port reserved.
    let old = std::mem::replace(&mut router.routed.engines[0], restarted);
    // It has as many batches as before, or more.
    for topic in 40..60 {
        router.ask_engine(0, topic);
    }
    router.routed.restart_router();
    router.routed.caught_up();
    let after = router.routed.digest();
    assert!(!of_worker(&before, "b").is_empty());
    assert_eq!(of_worker(&after, "b"), of_worker(&before, "b"));
    let replayed = router.replayed_digest();
    assert_eq!(of_worker(&after, "a"), of_worker(&replayed, "a"));
    drop(old);
}

#[test]
fn an_engine_that_keeps_too_little_history_starts_empty_for_that_worker_alone() {
    let mut router = SnapshotRouter::start(&[SHORT_HISTORY, SHORT_HISTORY], "1s");
    router.ask(0..12);
    router.wait_until_saved();
    let before = router.routed.digest();
    router.routed.router.kill();
    for topic in 20..30 {
        router.ask_engine(0, topic);
    }
    router.routed.restart_router();
    router.routed.caught_up();
    let after = router.routed.digest();
    assert_eq!(of_worker(&after, "b"), of_worker(&before, "b"));
    let replayed = router.replayed_digest();
    assert_eq!(of_worker(&after, "a"), of_worker(&replayed, "a"));
    assert_ne!(of_worker(&after, "a"), of_worker(&before, "a"));
}

#[test]
fn a_worker_under_another_name_gets_nothing_of_the_snapshot() {
    let mut router = SnapshotRouter::start(&[SHORT_HISTORY], "1s");
    router.ask(0..8);
    router.wait_until_saved();
    router.routed.router.kill();
    let config = router.routed.path("warmroute.yaml").display().to_string();
    let worker = [format!("z={}", router.routed.engines[0].url())];
    let other = Program::serve(&worker, &["-c", &config]).ready(1);
    other.follows_events(1);
    assert!(!other.stderr().contains(CONTINUED));
    let digest = RawClient::get(&other.admin(), "/admin/kv-index/digest").json();
    let replayed = router.replayed_digest();
    let rows = |digest: &Value, worker| -> Vec<Value> {
        let rows = of_worker(digest, worker).into_iter();
        rows.map(|row| row["digest"].clone()).collect()
    };
    assert!(!rows(&digest, "z").is_empty());
    assert_eq!(rows(&digest, "z"), rows(&replayed, "a"));
}

#[test]
fn a_router_that_is_told_to_stop_saves_its_index() {
    let mut router = SnapshotRouter::start(&[SHORT_HISTORY], "1h");
    router.ask(0..8);
    let before = router.routed.digest();
    router.routed.router.signal("TERM");
    eventually("the file to be written", || {
        router.file().exists().then_some(())
    });
    router.routed.restart_router();
    assert_eq!(router.routed.digest(), before);
    router.until_logged(CONTINUED);
}

#[test]
#[contract("F73")]
fn kill_9_during_a_save_leaves_a_whole_snapshot() {
    let mut router = SnapshotRouter::start(&[SHORT_HISTORY], "1s");
    router.ask(0..8);
    router.wait_until_saved();
    let before = router.routed.digest();
    let beside = router.folder.path().join("index.new");
    for _ in 0..4 {
        eventually("a save to begin", || beside.exists().then_some(()));
        router.routed.restart_router();
        router.until_logged("snapshot of the index loaded");
        assert_eq!(router.rejections(""), 0.0);
        assert_eq!(router.routed.digest(), before);
    }
}

#[test]
#[contract("F92")]
fn a_rejected_snapshot_is_a_cold_start_with_one_warning_and_a_count() {
    let mut router = SnapshotRouter::start(&[SHORT_HISTORY], "1s");
    router.ask(0..8);
    router.wait_until_saved();
    router.routed.router.kill();
    let whole = fs::read(router.file()).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    let mut foreign = whole.clone();
    foreign[8] = 99;
    let cases: [(&str, &[u8]); 4] = [
        ("truncated", &whole[..whole.len() / 2]),
        ("damaged", &damaged),
        ("version", &foreign),
        ("not_a_snapshot", b"something else entirely"),
    ];
    for (reason, content) in cases {
        router.routed.router.kill();
        fs::write(router.file(), content).unwrap();
        router.routed.restart_router();
        let labels = format!("reason=\"{reason}\"");
        assert_eq!(router.rejections(&labels), 1.0, "{reason}");
        assert_eq!(router.rejections(""), 1.0, "{reason}");
        let warnings = || {
            let log = router.routed.router.stderr();
            log.matches("snapshot of the index rejected").count()
        };
        eventually(&format!("a warning about {reason}"), || {
            (warnings() > 0).then_some(())
        });
        let reply = router.routed.chat(&[question(0)], &[]);
        assert_eq!(reply.reply.status, 200);
        assert_eq!(warnings(), 1, "{reason}");
    }
    // The next save replaces the file.
    router.wait_until_saved();
    router.routed.restart_router();
    assert_eq!(router.rejections(""), 0.0);
    router.until_logged("snapshot of the index loaded");
}

#[test]
fn a_snapshot_that_cannot_be_written_is_reported_once_and_tried_again() {
    let router = SnapshotRouter::start(&[&[]], "1s");
    router.wait_until_saved();
    let folder = router.folder.path();
    let away = folder.with_extension("away");
    fs::rename(folder, &away).unwrap();
    eventually("some saves to fail", || {
        (router.saves("failed") >= 2.0).then_some(())
    });
    let errors = router.routed.router.stderr();
    assert_eq!(errors.matches("the index could not be saved").count(), 1);
    assert_eq!(router.routed.chat(&[question(0)], &[]).reply.status, 200);
    fs::rename(&away, folder).unwrap();
    router.wait_until_saved();
    eventually("the recovery to be logged", || {
        router.logged("the index is saved again").then_some(())
    });
    let page = RawClient::get(&router.routed.router.admin(), "/metrics").text();
    for name in ["age_seconds", "bytes", "save_seconds"] {
        assert!(
            page.contains(&format!("warmroute_snapshot_{name} ")),
            "{name}"
        );
    }
    assert!(router.routed.router.metric("warmroute_snapshot_bytes", "") > 0.0);
    let age = router
        .routed
        .router
        .metric("warmroute_snapshot_age_seconds", "");
    assert!(age < Duration::from_secs(600).as_secs_f64());
}

#[test]
#[contract("DY21", "F73")]
fn the_speed_of_workers_and_sessions_outlive_a_kill() {
    let hard = "  session: {mode: hard}\n";
    let mut router = SnapshotRouter::with(&[&[], &[]], "1s", hard);
    let learned = |router: &SnapshotRouter| {
        let page = RawClient::get(&router.routed.router.admin(), "/admin/workers").json();
        let workers = page["workers"].as_array().expect("a list of workers");
        let rates = workers.iter().map(|worker| worker["rates"].clone());
        rates.collect::<Vec<Value>>()
    };
    // By chance, so that only the session explains a repeated choice.
    let homes = |router: &SnapshotRouter| {
        let ask = |session: u32| {
            let name = format!("session-{session}");
            let headers = [("x-session-id", &*name), ("x-warmroute-policy", "random")];
            router.routed.chat(&[question(99)], &headers).worker
        };
        (0..12).map(ask).collect::<Vec<String>>()
    };
    let home = homes(&router);
    router.ask(0..20);
    router.wait_until_saved();
    let before = learned(&router);
    let samples = |rates: &[Value]| -> u64 {
        rates
            .iter()
            .map(|rates| rates["samples"].as_u64().unwrap())
            .sum()
    };
    assert!(samples(&before) >= 10, "{before:?}");
    router.routed.restart_router();
    let after = learned(&router);
    assert!(samples(&after) >= samples(&before), "{after:?}");
    for (was, is) in before.iter().zip(&after) {
        let speed = |rates: &Value| rates["prefill_tokens_per_s"].as_f64().unwrap();
        assert!(
            (speed(was) - speed(is)).abs() < 0.01 * speed(was),
            "{was} {is}"
        );
    }
    assert_eq!(homes(&router), home);
}
