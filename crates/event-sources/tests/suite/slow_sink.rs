//! A stream that sends faster than its sink applies.

use std::sync::{Arc, Condvar, Mutex};

use contract_id::contract;
use event_sources::{EventSink, SinkCounts, StreamMessage};
use kv_blocks::Moment;

use crate::stream_server::{PATIENCE, StreamServer, follow, soon};

/// A sink that blocks in each event until it is released.
#[derive(Clone, Debug, Default)]
struct SlowSink(Arc<(Mutex<SinkState>, Condvar)>);

#[derive(Debug, Default)]
struct SinkState {
    open: bool,
    is_requested: bool,
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
        seen.is_requested = true;
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
async fn excess_events_are_dropped_and_counted_and_the_reader_never_waits() {
    let server = StreamServer::bind().await;
    let slow = SlowSink::default();
    let source = follow(&server.url(), Box::new(slow.clone()), |spec| {
        spec.settings.queue_batches = 8
    });
    let mut stream = server.streaming().await;
    let (lock, changed) = &*slow.0;
    let filler = "x".repeat(64 << 10);
    let event = |n: u32| format!("data: {n} {filler}\n\n");
    // If events were lost before the sink has one, the connection would close at once.
    stream.send(event(0).as_bytes()).await;
    assert!(
        changed
            .wait_timeout_while(lock.lock().unwrap(), PATIENCE, |seen| !seen.is_requested)
            .unwrap()
            .0
            .is_requested
    );
    // Far more than the sockets' buffers hold: the writes end only if the reader reads.
    for n in 1..400 {
        stream.send(event(n).as_bytes()).await;
    }
    assert!(
        lock.lock().unwrap().taken.is_empty(),
        "the sink has applied nothing yet"
    );
    lock.lock().unwrap().open = true;
    changed.notify_all();
    // The known prefixes are cleared, and the stream is requested again.
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
    // The sink had one event when the rest was lost, and one came afterwards. The last of the rest
    // may have been in transit when the connection closed.
    assert_eq!(report.state, "live");
    assert!((200..=399).contains(&report.counts.dropped), "{report:?}");
    let reported = |seen: &SinkState| (seen.forgotten, seen.connected);
    assert_eq!(reported(&lock.lock().unwrap()), (1, 2));
    source.stop().await;
}
