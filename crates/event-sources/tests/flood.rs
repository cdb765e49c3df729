//! A publisher sends as fast as the machine can, over real sockets, into an index with a small
//! budget.
//!
//! `FLOOD_SECONDS=60 cargo test --release -p event-sources --test flood -- --ignored --nocapture`
//! measures; the short form only asserts the promises: the publisher never waits, memory is
//! bounded, and the stream is soon up to date again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "the suite uses the rest")]
mod engine;
#[path = "../../kv-index/tests/soak/memory.rs"]
mod memory;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use engine::{BLOCK, PATIENCE, TestSource, any};
use kv_events::{
    frames,
    vllm::{self, EventEncoding, WireEvent, WireRemoved, WireStored},
};
use kv_index::{IndexSettings, KvIndex};
use net::Clock;
use zmtp::{Pub, PubSettings};

/// The memory budget of the index.
const BUDGET: u64 = 64 << 20;
/// The bound of the publisher's queue, which is in this process.
const QUEUE_BYTES: usize = 32 << 20;
/// Allowance beside both: sockets, the runtime, one message at each end, memory that the allocator
/// keeps.
const SLACK: u64 = 96 << 20;
const EVENTS: u64 = 32;
const BLOCKS: u64 = 4;
/// Number of sequences held before the oldest are removed.
const RESIDENT: u64 = 2_000;
/// The time after the flood until the stream must be up to date, and the lag that counts as up to
/// date.
const RECOVERY: Duration = Duration::from_secs(5);
const UP_TO_DATE_MS: f64 = 100.0;
/// A longer send either waited or its thread was not scheduled. The second is rare, so the count
/// tells the two apart.
const LONG_SEND: Duration = Duration::from_millis(10);

/// The publisher's figures of a flood.
#[derive(Clone, Copy, Debug, Default)]
struct OfferedLoad {
    batches: u64,
    long_sends: u64,
    longest_send: Duration,
}

/// The figures of a flood.
struct FloodFigures {
    length: Duration,
    offered: OfferedLoad,
    /// Batches dropped by the publisher's full queue.
    dropped: u64,
    /// Events applied by the end of the flood.
    applied: u64,
    /// Memory of this process in bytes, before the flood and at its peak.
    resident: (Option<u64>, Option<u64>),
    index_bytes: u64,
    highest_lag: f64,
    recovery: Duration,
}

impl fmt::Display for FloodFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OfferedLoad {
            batches,
            long_sends,
            longest_send,
        } = self.offered;
        let rate = |events: u64| u128::from(events) * 1000 / self.length.as_millis();
        let mib = |bytes: Option<u64>| bytes.map_or(0, |bytes| bytes >> 20);
        writeln!(
            f,
            "offered {} events/s, applied {} events/s",
            rate(batches * EVENTS),
            rate(self.applied)
        )?;
        writeln!(
            f,
            "dropped by the publisher's queue: {} of {batches} batches",
            self.dropped
        )?;
        writeln!(
            f,
            "longest send {longest_send:?}; over {LONG_SEND:?}: {long_sends}"
        )?;
        let (before, most) = (mib(self.resident.0), mib(self.resident.1));
        writeln!(
            f,
            "resident {before} MiB before, {most} MiB at most; index {} MiB",
            self.index_bytes >> 20
        )?;
        write!(
            f,
            "highest lag {:.0} ms; up to date {:?} after the flood",
            self.highest_lag, self.recovery
        )
    }
}

/// Returns batch `seq`: sequences are stored, and every other one is removed later. Time is in
/// seconds since 1970.
fn batch(seq: u64, time: f64) -> Vec<u8> {
    let event = |number: u64| {
        let sequence = seq * EVENTS / 2 + number / 2;
        let names = |sequence: u64| {
            (1..=BLOCKS)
                .map(|block| (sequence * BLOCKS + block).into())
                .collect()
        };
        if number.is_multiple_of(2) {
            let token =
                |at: u64| u32::try_from((sequence + at) & 0xffff_ffff).expect("32 bits of it");
            WireEvent::Stored(WireStored {
                hashes: names(sequence),
                tokens: (0..BLOCKS * u64::from(BLOCK)).map(token).collect(),
                block_size: BLOCK,
                medium: Some("GPU".into()),
                ..WireStored::default()
            })
        } else {
            let removed = sequence.saturating_sub(RESIDENT) & !1;
            WireEvent::Removed(WireRemoved {
                hashes: names(removed),
                medium: Some("GPU".into()),
            })
        }
    };
    let events: Vec<_> = (0..EVENTS).map(event).collect();
    vllm::encode(time, Some(0), &events, EventEncoding::CURRENT)
}

fn seconds(clock: &Clock) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "milliseconds since 1970 fit into 53 bits for a long time"
    )]
    let ms = clock.unix_ms() as f64;
    ms / 1e3
}

fn publish(engine: &Pub, clock: &Clock, offered: &mut OfferedLoad) {
    let message = frames::encode_live(
        b"",
        offered.batches,
        &batch(offered.batches, seconds(clock)),
    );
    let before = clock.now();
    engine.send(&message);
    let took = clock.now().since(before);
    offered.batches += 1;
    offered.long_sends += u64::from(took > LONG_SEND);
    offered.longest_send = offered.longest_send.max(took);
}

async fn flood(length: Duration) -> FloodFigures {
    let clock = Clock::system();
    let settings = PubSettings {
        queue_bytes: QUEUE_BYTES,
        ..PubSettings::default()
    };
    let (engine, endpoint) = Pub::bind(&any(), settings).await.unwrap();
    let index = KvIndex::new(IndexSettings {
        memory_budget: BUDGET,
        ..IndexSettings::default()
    });
    let reader = TestSource::on(index, &endpoint, None, |_| {});
    reader.until_subscribed(&engine).await;
    let before = memory::resident_bytes();

    let engine = Arc::new(engine);
    let progress = Arc::new(Mutex::new(OfferedLoad::default()));
    let (reported_progress, publisher) = (Arc::clone(&progress), Arc::clone(&engine));
    let end = clock.now() + length;
    let flooding = std::thread::spawn(move || {
        let mut offered = OfferedLoad::default();
        while clock.now() < end {
            publish(&publisher, &clock, &mut offered);
        }
        *reported_progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = offered;
    });
    let (mut largest, mut highest_lag) = (before, 0.0_f64);
    while clock.now() < end {
        tokio::time::sleep(Duration::from_millis(50)).await;
        largest = largest.max(memory::resident_bytes());
        highest_lag = highest_lag.max(reader.source.report().lag_ms.unwrap_or(0.0));
    }
    tokio::task::spawn_blocking(move || flooding.join().unwrap())
        .await
        .unwrap();
    let mut offered = *progress.lock().unwrap_or_else(PoisonError::into_inner);
    let at_the_end = reader.source.counters();
    let flooded = offered;

    // The engine continues at its normal pace.
    let mut up_to_date = None;
    while up_to_date.is_none() {
        let waited = clock.now().since(end);
        assert!(
            waited < RECOVERY,
            "still behind after {waited:?}: {:?}",
            reader.source.report()
        );
        publish(&engine, &clock, &mut offered);
        tokio::time::sleep(Duration::from_millis(10)).await;
        let report = reader.source.report();
        let newest = report
            .last_seq
            .is_some_and(|last| last + 2 >= offered.batches);
        up_to_date =
            Some(waited).filter(|_| newest && report.lag_ms.is_some_and(|lag| lag < UP_TO_DATE_MS));
    }
    largest = largest.max(memory::resident_bytes());

    let applied = at_the_end.stored + at_the_end.removed;
    let (stats, report) = (reader.index.stats(), reader.source.report());
    let figures = FloodFigures {
        length,
        offered: flooded,
        dropped: engine.dropped(),
        applied,
        resident: (before, largest),
        index_bytes: stats.bytes,
        highest_lag,
        recovery: up_to_date.unwrap(),
    };
    assert!(
        applied > 0 && report.counts.decode_errors == 0,
        "{report:?}"
    );
    assert!(
        flooded.long_sends * 1000 <= flooded.batches,
        "the publisher waited: {flooded:?}"
    );
    assert!(stats.bytes <= BUDGET, "{stats:?}");
    if let (Some(before), Some(largest)) = (before, largest) {
        assert!(
            largest - before <= BUDGET + QUEUE_BYTES as u64 + SLACK,
            "{before} to {largest} bytes"
        );
    }
    tokio::time::timeout(PATIENCE, reader.source.stop())
        .await
        .unwrap();
    figures
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_never_delays_its_publisher_and_the_stream_soon_catches_up() {
    println!("{}", flood(Duration::from_secs(2)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute, or FLOOD_SECONDS; a release build measures something"]
async fn a_long_flood_never_delays_its_publisher() {
    let length = std::env::var("FLOOD_SECONDS").map_or(60, |seconds| {
        seconds.parse().expect("FLOOD_SECONDS is a number")
    });
    println!("{}", flood(Duration::from_secs(length)).await);
}
