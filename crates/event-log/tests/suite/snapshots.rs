//! Snapshots: whole whatever step a replica ended at, and discarded only on purpose.

use std::{sync::Arc, time::Duration};

use contract_id::contract;
use event_log::{
    LogBatch, LogMessage, ResetError, SnapshotPointer, SnapshotSettings, SnapshotSource,
    SnapshotStore, SnapshotTask, StreamRole, reset,
};
use nats_client::JetStream;

use super::{NatsServer, client, names, start, until};

/// A source whose snapshot is this text.
#[derive(Debug)]
struct Text(&'static str);

impl SnapshotSource for Text {
    fn save(&self) -> Result<Vec<u8>, String> {
        Ok(self.0.repeat(100_000).into_bytes())
    }
}

async fn open(server: &NatsServer, replica: &str) -> SnapshotStore {
    let client = client(server).await;
    SnapshotStore::open(&client, &names(), &replica.into())
        .await
        .unwrap()
}

fn pointer(object: &str, covered: u64) -> SnapshotPointer {
    SnapshotPointer {
        object: Some(object.to_owned()),
        covered,
        stream_created: String::new(),
        replica: "a".to_owned(),
        unix_ms: 0,
        bytes: 0,
    }
}

/// Makes a snapshot of these bytes, through each step.
async fn make(store: &SnapshotStore, bytes: &[u8], covered: u64) {
    let mut lock = store.lock().await.unwrap().unwrap();
    let object = store.upload(&mut lock, bytes).await.unwrap().unwrap();
    let switched = store.switch(&mut lock, &pointer(&object, covered)).await;
    assert!(switched.unwrap());
    store.remove_others().await.unwrap();
    store.unlock(lock).await.unwrap();
}

async fn restored(store: &SnapshotStore) -> Option<Vec<u8>> {
    let restored = store.restore(1 << 30).await.unwrap();
    restored.map(|restored| restored.bytes)
}

/// Waits until the lock of a replica that ended has expired.
async fn lock_of_a_dead_replica(store: &SnapshotStore) -> event_log::SnapshotLock {
    for _ in 0..1_000 {
        if let Some(lock) = store.lock().await.unwrap() {
            return lock;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the lock never expired");
}

#[tokio::test]
#[contract("DY21")]
async fn whoever_ends_between_two_steps_leaves_a_whole_snapshot() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let store = open(&server, "a").await;
    assert_eq!(restored(&store).await, None, "there is none yet");
    let first = b"first".repeat(100_000);
    make(&store, &first, 5).await;
    assert_eq!(restored(&store).await, Some(first.clone()));

    // Killed after the upload, before the switch: the first one is in force, and the next replica
    // removes the rest.
    let mut lock = store.lock().await.unwrap().unwrap();
    let second = b"second".repeat(100_000);
    let object = store.upload(&mut lock, &second).await.unwrap().unwrap();
    assert_eq!(restored(&store).await, Some(first.clone()));
    let other = open(&server, "b").await;
    assert!(other.lock().await.unwrap().is_none(), "the lock is held");
    let mut taken = lock_of_a_dead_replica(&other).await;
    assert_eq!(restored(&other).await, Some(first.clone()));

    // The first replica was not dead, only slow: it cannot renew, upload or switch any more.
    assert!(!store.renew(&mut lock).await.unwrap());
    assert_eq!(store.upload(&mut lock, &second).await.unwrap(), None);
    let switched = store.switch(&mut lock, &pointer(&object, 6)).await;
    assert!(!switched.unwrap());
    other.remove_others().await.unwrap();
    assert_eq!(restored(&other).await, Some(first));

    // Killed after the switch, before the old one is removed: the new one is in force.
    let third = b"third".repeat(100_000);
    let object = other.upload(&mut taken, &third).await.unwrap().unwrap();
    let switched = other.switch(&mut taken, &pointer(&object, 7)).await;
    assert!(switched.unwrap());
    assert_eq!(restored(&other).await, Some(third));
}

#[tokio::test]
#[contract("DY21")]
async fn a_snapshot_replaces_the_messages_that_it_covers_and_all_replicas_have() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let log = start(&server, "a");
    let member = log.join("w", 0);
    member.set_past_read();
    until("the owner", || member.role() == StreamRole::Owner).await;
    let publish = |range: std::ops::Range<u64>| {
        for seq in range {
            member.publish(LogMessage::Batch(LogBatch {
                seq,
                previous: None,
                payload: format!("batch {seq}").into(),
            }));
        }
    };
    publish(0..20);
    // The replica tells the others every half second how far it is.
    until("the messages", || log.acknowledged_by_all() == 20).await;
    let source: Arc<dyn SnapshotSource> = Arc::new(Text("index"));
    let made = log.make_snapshot(&source).await.unwrap().unwrap();
    assert_eq!(made.covered, 20);
    publish(20..25);
    until("the rest", || log.report().taken == 25).await;
    let jetstream = JetStream::new(client(&server).await);
    let info = jetstream.stream_info(names().stream()).await.unwrap();
    assert_eq!((info.state.messages, info.state.last_seq), (5, 25));
    let store = open(&server, "b").await;
    let restored = store.restore(1 << 30).await.unwrap().unwrap();
    assert_eq!(restored.next, 21);
    assert_eq!(restored.bytes, source.save().unwrap());

    // A snapshot covers nothing of another stream with the same name.
    jetstream.delete_stream(names().stream()).await.unwrap();
    until("the new stream", || log.report().taken < 20).await;
    let restored = store.restore(1 << 30).await.unwrap().unwrap();
    assert_eq!(restored.next, 1);
}

#[tokio::test]
#[contract("DY21")]
async fn a_snapshot_that_is_replaced_while_it_is_read_gives_its_successor() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let store = open(&server, "a").await;
    make(&store, b"first", 5).await;
    let object = store.pointer().await.unwrap().unwrap().object.unwrap();
    // The reader has the description and waits for chunks, which the maker of the second removed.
    let objects = names().bucket("snapshots");
    let jetstream = JetStream::new(client(&server).await);
    let (stream, chunks) = (format!("OBJ_{objects}"), format!("$O.{objects}.C.{object}"));
    jetstream.purge_subject(&stream, &chunks).await.unwrap();
    let reader = open(&server, "b").await;
    let (read, ()) = tokio::join!(restored(&reader), make(&store, b"second", 6));
    assert_eq!(read, Some(b"second".to_vec()));
}

#[tokio::test]
#[contract("DY21")]
async fn a_message_that_grows_old_by_the_servers_clock_makes_a_snapshot_due() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let log = start(&server, "a");
    let member = log.join("w", 0);
    member.set_past_read();
    until("the owner", || member.role() == StreamRole::Owner).await;
    member.publish(LogMessage::Batch(LogBatch {
        seq: 0,
        previous: None,
        payload: "batch".into(),
    }));
    until("the message", || log.covered() == 1).await;
    let settings = SnapshotSettings {
        threshold: 1_000,
        retention: Duration::from_secs(2),
    };
    let source: Arc<dyn SnapshotSource> = Arc::new(Text("index"));
    let _task = SnapshotTask::spawn(Arc::clone(&log), source, settings);
    let store = open(&server, "b").await;
    let made = async {
        while restored(&store).await.is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let within = tokio::time::timeout(Duration::from_secs(60), made).await;
    assert!(within.is_ok(), "no snapshot was made");
}

#[tokio::test]
#[contract("DY22")]
async fn a_reset_discards_stream_and_snapshot_and_refuses_while_others_are_present() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let store = open(&server, "a").await;
    let log = start(&server, "a");
    let client = client(&server).await;
    let me: Arc<str> = "b".into();
    let mut refused = Ok(());
    // Where the machine stands still, the presence expires for a while.
    for _ in 0..20 {
        make(&store, b"snapshot", 0).await;
        until("the presence", || log.report().replicas.len() == 1).await;
        refused = reset(&client, &names(), &me, false).await;
        if refused.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let expected = ResetError::InUse {
        replicas: vec!["a".to_owned()],
    };
    assert_eq!(refused, Err(expected));
    assert_eq!(restored(&store).await, Some(b"snapshot".to_vec()));
    reset(&client, &names(), &me, true).await.unwrap();
    assert_eq!(restored(&store).await, None);
    make(&store, b"snapshot", 0).await;
    drop(log);
    let others = async || reset(&client, &names(), &me, false).await;
    let expiry = async {
        while matches!(others().await, Err(ResetError::InUse { .. })) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let expired = tokio::time::timeout(Duration::from_secs(120), expiry).await;
    assert!(expired.is_ok(), "the presence never expires");
    assert_eq!(restored(&store).await, None);
    others().await.unwrap();
}
