//! Routers that are killed in the middle of a snapshot: its upload, its switch, the removal of what
//! it replaces, and its restore.
//!
//! A proxy stops the router's traffic at a chosen message, so that the moment is no chance.

use std::{thread, time::Duration};

use contract_id::contract;
use event_log::{LogNames, RestoredSnapshot, SnapshotStore};
use nats_client::{Client, JetStream};

use super::{
    config, digest,
    proxy::{BusProxy, Direction, MessagePart, StopAt},
    router, until_equal,
};
use crate::{
    harness::{Program, RawClient, RouterQueries, Stopwatch, chat, words},
    nats_server::NatsServer,
};

/// Longest wait for a snapshot: the lock of a killed router lives for 10 s, and a router looks
/// every 5 to 7.5 s whether one is due.
const PATIENCE: Duration = Duration::from_secs(120);
const STORED: &str = "snapshot of the index stored";
const LOADED: &str = "the routers' snapshot of the index is loaded";

/// The snapshot in force after a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InForce {
    Old,
    New,
}

/// A moment of a snapshot, and the snapshot that is in force when its maker is killed then.
fn moment(
    subject: &str,
    number: usize,
    forwarded: MessagePart,
    in_force: InForce,
) -> (StopAt, InForce) {
    let stop_at = StopAt {
        direction: Direction::ToServer,
        subject: subject.to_owned(),
        number,
        forwarded,
    };
    (stop_at, in_force)
}

/// A server, and an engine with many blocks: a snapshot of them has several chunks.
struct SnapshotFleet {
    server: NatsServer,
    engines: [Program; 1],
}

impl SnapshotFleet {
    fn start() -> Self {
        let flags = [
            "--block-size",
            "1",
            "--kv-blocks",
            "200000",
            "--speed",
            "20",
        ];
        Self {
            server: NatsServer::start_with_store(),
            engines: [Program::engine(&flags)],
        }
    }

    /// Lets the engine store blocks.
    fn fill(&self, topic: &str) {
        for number in 0..3 {
            let text = words(&format!("{topic}{number}x"), 1_500);
            let body = chat("sim", &text, 8).to_string();
            let engine = self.engines[0].data();
            let reply = RawClient::post(&engine, "/v1/chat/completions", body.as_bytes());
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
    }

    /// Settings of a router that reaches the server at this URL.
    fn settings(&self, url: &str) -> String {
        format!("mode: nats, nats: {{url: \"{url}\", snapshot_threshold: 3}}")
    }

    fn router(&self, url: &str) -> Program {
        router(&self.engines, &self.settings(url))
    }

    /// Asks the server.
    fn ask<T>(&self, question: impl AsyncFnOnce(Client) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let connection = self.server.dialer().open().await.unwrap();
            question(connection.client.clone()).await
        })
    }

    /// The snapshot in force, whose digest is checked.
    fn snapshot(&self) -> RestoredSnapshot {
        self.ask(async |client| {
            let store = SnapshotStore::open(&client, &names(), &"test".into()).await;
            store.unwrap().restore(1 << 30).await.unwrap().unwrap()
        })
    }

    fn object(&self) -> String {
        self.snapshot().pointer.object.unwrap()
    }

    /// The subjects of the object store: two for each object.
    fn stored_subjects(&self) -> Vec<String> {
        let store = names().bucket("snapshots");
        self.ask(async |client| {
            let jetstream = JetStream::new(client);
            let (stream, all) = (format!("OBJ_{store}"), format!("$O.{store}.>"));
            jetstream.subjects(&stream, &all).await.unwrap()
        })
    }

    /// Starts a router, which loads the snapshot, and compares its index with that of a router that
    /// replayed everything.
    fn restart(&self) -> Program {
        let restarted = self.router_with_snapshot();
        let replayed = router(&self.engines, "mode: none");
        replayed.follows_events(1);
        until_equal(&[&replayed, &restarted]);
        restarted
    }

    /// Starts a router that loads the snapshot. One that does not reach the server within 3 s, as on
    /// a busy machine, starts without it, and is started again.
    fn router_with_snapshot(&self) -> Program {
        let waiting = Stopwatch::start();
        loop {
            let started = self.router(&self.server.url());
            let log = started.stderr();
            if log.contains(LOADED) {
                return started;
            }
            assert!(waiting.elapsed() < PATIENCE, "no router loads it: {log}");
        }
    }

    /// Lets this router make the next snapshot; nothing is left of earlier ones then.
    fn assert_cleaned_by(&self, maker: &Program) {
        let made = maker.stderr().matches(STORED).count();
        self.fill("next");
        at_length("the next snapshot", || {
            maker.stderr().matches(STORED).count() > made
        });
        let object = self.object();
        let subjects = self.stored_subjects();
        assert_eq!(subjects.len(), 2, "{object}: {subjects:?}");
        assert!(subjects.iter().any(|subject| subject.ends_with(&object)));
    }
}

fn names() -> LogNames {
    LogNames::new("warmroute-kv", "warmroute", "router").unwrap()
}

/// Waits for what takes its time.
fn at_length(what: &str, condition: impl Fn() -> bool) {
    let waiting = Stopwatch::start();
    while !condition() {
        assert!(
            waiting.elapsed() < PATIENCE,
            "waited {PATIENCE:?} for {what}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// Kills the maker of a second snapshot at this moment.
fn kill_the_maker(stop_at: &StopAt, expected: InForce) {
    let fleet = SnapshotFleet::start();
    let proxy = BusProxy::start(&fleet.server);
    let mut maker = fleet.router(&proxy.url());
    fleet.fill("first");
    at_length("the first snapshot", || maker.stderr().contains(STORED));
    let first = fleet.object();
    proxy.stop_at(stop_at.clone());
    fleet.fill("second");
    proxy.until_stopped();
    maker.kill();
    drop(proxy);
    let is_expected = || (fleet.object() == first) == (expected == InForce::Old);
    // The server reads what was forwarded to it at its own pace.
    at_length(&format!("the snapshot in force, {stop_at:?}"), is_expected);
    let restarted = fleet.restart();
    assert!(is_expected(), "{stop_at:?}");
    fleet.assert_cleaned_by(&restarted);
}

/// Each moment has a fleet of its own, all at the same time.
fn kill_the_maker_at(moments: &[(StopAt, InForce)]) {
    thread::scope(|scope| {
        for (stop_at, expected) in moments {
            scope.spawn(|| kill_the_maker(stop_at, *expected));
        }
    });
}

#[test]
#[contract("DY21", "F73")]
fn kill_9_during_an_upload_leaves_the_old_snapshot_and_the_rest_is_removed() {
    test_programs::require!(NatsServer);
    kill_the_maker_at(&[
        moment("_snapshots.C.", 1, MessagePart::Nothing, InForce::Old),
        moment("_snapshots.C.", 2, MessagePart::Half, InForce::Old),
        moment("_snapshots.M.", 1, MessagePart::Nothing, InForce::Old),
        // The first write of the pointer is that of the lock.
        moment("_state.snapshot", 2, MessagePart::Nothing, InForce::Old),
    ]);
}

#[test]
#[contract("DY21", "F73")]
fn kill_9_during_the_switch_or_a_purge_leaves_the_new_snapshot_and_the_rest_is_removed() {
    test_programs::require!(NatsServer);
    kill_the_maker_at(&[
        moment("_state.snapshot", 2, MessagePart::All, InForce::New),
        // The first of the old object's two subjects is purged, the other one is not.
        moment("STREAM.PURGE.OBJ_", 2, MessagePart::Nothing, InForce::New),
        moment(
            "STREAM.PURGE.warmroute-kv",
            1,
            MessagePart::Nothing,
            InForce::New,
        ),
        moment(
            "STREAM.PURGE.warmroute-kv",
            1,
            MessagePart::All,
            InForce::New,
        ),
    ]);
}

#[test]
#[contract("DY21", "F73")]
fn kill_9_during_a_restore_changes_nothing_and_the_next_start_restores() {
    test_programs::require!(NatsServer);
    let fleet = SnapshotFleet::start();
    let mut maker = fleet.router(&fleet.server.url());
    fleet.fill("first");
    at_length("the snapshot", || maker.stderr().contains(STORED));
    let before = digest(&maker);
    let object = fleet.object();
    maker.kill();
    for (direction, subject, number, forwarded) in [
        // The pointer is read, the description of the object is not.
        (
            Direction::ToServer,
            "STREAM.MSG.GET.OBJ_",
            1,
            MessagePart::Nothing,
        ),
        (Direction::ToRouter, "_snapshots.C.", 2, MessagePart::Half),
    ] {
        let proxy = BusProxy::start(&fleet.server);
        proxy.stop_at(StopAt {
            direction,
            subject: subject.to_owned(),
            number,
            forwarded,
        });
        let restoring =
            Program::serve_unready(&config(&fleet.engines, &fleet.settings(&proxy.url())));
        proxy.until_stopped();
        drop(restoring);
        assert_eq!(fleet.object(), object);
    }
    let restarted = fleet.restart();
    assert_eq!(digest(&restarted), before);
    fleet.assert_cleaned_by(&restarted);
}
