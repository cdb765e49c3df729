//! A stream that says more than can be applied.

use std::sync::{Arc, Condvar, Mutex};

use contract_id::contract;
use event_sources::{EventSink, SinkCounts, StreamMessage};
use kv_blocks::Moment;

use crate::stream_server::{PATIENCE, StreamServer, follow, soon};

/// A sink that does not come back from an event until it is let go.
#[derive(Clone, Debug, Default)]
struct SlowSink(Arc<(Mutex<SinkState>, Condvar)>);

#[derive(Debug, Default)]
struct SinkState {
    open: bool,
    asked: bool,
    taken: Vec<String>,
    forgotten: u32,
    connected: u32,
}

impl EventSink for SlowSink {
    fn connected(&mut self) {
        self.0.0.lock().unwrap().connected += 1;
    }

    fn take(&mut self, message: &StreamMessage, _: Moment, tally: &mut SinkCounts) {
        let mut seen = self.0.0.lock().unwrap();
        seen.asked = true;
        self.0.1.notify_all();
        while !seen.open {
            seen = self.0.1.wait(seen).unwrap();
        }
        seen.taken
            .push(String::from_utf8(message.data.to_vec()).unwrap());
        tally.counts.events += 1;
        tally.counts.applied += 1;
    }

    fn forget(&mut self) {
        let mut seen = self.0.0.lock().unwrap();
        seen.forgotten += 1;
        seen.taken.clear();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[contract("CK49")]
async fn events_that_come_too_fast_are_dropped_and_counted_and_the_reader_never_waits() {
    let server = StreamServer::bind().await;
    let slow = SlowSink::default();
    let source = follow(&server.url(), Box::new(slow.clone()), |spec| {
        spec.settings.queue_batches = 8
    });
    let mut stream = server.streaming().await;
    let (lock, changed) = &*slow.0;
    let filler = "x".repeat(64 << 10);
    let event = |n: u32| format!("data: {n} {filler}\n\n");
    // Were some lost before the sink had one in its hands, the connection would be given up at once.
    stream.send(event(0).as_bytes()).await;
    assert!(
        changed
            .wait_timeout_while(lock.lock().unwrap(), PATIENCE, |seen| !seen.asked)
            .unwrap()
            .0
            .asked
    );
    // Far more than the sockets' buffers hold: the writes end only if somebody reads.
    for n in 1..400 {
        stream.send(event(n).as_bytes()).await;
    }
    assert!(
        lock.lock().unwrap().taken.is_empty(),
        "the sink has not taken anything yet"
    );
    lock.lock().unwrap().open = true;
    changed.notify_all();
    // What it believed is gone, and the stream is asked anew.
    stream.closed().await;
    let mut stream = server.streaming().await;
    stream.send(b"data: after\n\n").await;
    let mut changes = source.changes();
    while lock.lock().unwrap().taken != ["after"] {
        soon(changes.changed()).await.unwrap();
    }
    let mut report = source.report();
    while report.counts.applied != 2 {
        soon(changes.changed()).await.unwrap();
        report = source.report();
    }
    // One was in the sink's hands when the rest was lost, and one came afterwards. The last of the rest may still have
    // been on their way when the connection was closed.
    assert_eq!(report.state, "live");
    assert!((200..=399).contains(&report.counts.dropped), "{report:?}");
    let told = |seen: &SinkState| (seen.forgotten, seen.connected);
    assert_eq!(told(&lock.lock().unwrap()), (1, 2));
    source.stop().await;
}
