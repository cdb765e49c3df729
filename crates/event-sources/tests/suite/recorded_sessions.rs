//! A recorded session of a real engine, published again: the index holds the blocks that the
//! recording implies, whatever faults the stream has.

use std::collections::BTreeSet;

use contract_id::contract;
use event_sources::{Endpoint, StreamReport};
use kv_events::frames::{self, ReplayForm};
use kv_index::TargetDigest;
use zmtp::Pub;

use crate::{
    engine::{self, ReplaySocket, Replies, TestSource, any, live, publisher},
    recording::{ImpliedBlocks, RecordedBatch, memberships, recorded_answer, session},
};

/// An engine and the source that follows it.
struct RecordedEngine {
    publisher: Pub,
    endpoint: Endpoint,
    replay: ReplaySocket,
    reader: TestSource,
}

impl RecordedEngine {
    async fn followed() -> Self {
        Self::joined(&[], ReplayForm::New).await
    }

    /// Starts an engine that published `history` before the source connected.
    async fn joined(history: &[RecordedBatch], form: ReplayForm) -> Self {
        let (publisher, endpoint) = publisher(&any()).await;
        let mut replay = ReplaySocket::bind(answers(history, form)).await;
        let reader = TestSource::follow(&endpoint, Some(&replay.endpoint));
        assert_eq!(
            replay.requests.recv().await,
            Some(0),
            "the whole history is requested"
        );
        reader.until_subscribed(&publisher).await;
        let engine = Self {
            publisher,
            endpoint,
            replay,
            reader,
        };
        engine.at(history.last().map(|batch| batch.seq)).await;
        engine
    }

    /// Publishes a batch without keeping it for replay.
    fn send(&self, batch: &RecordedBatch) {
        self.publisher.send(&live(batch.seq, &batch.payload));
    }

    /// Sets the history of the replay socket from the next request on.
    fn set_history(&self, batches: &[RecordedBatch]) {
        self.replay.then(answers(batches, ReplayForm::New));
    }

    /// Waits until all batches up to this number are applied.
    async fn at(&self, last_seq: Option<u64>) -> StreamReport {
        let what = format!("number {last_seq:?}");
        self.reader
            .until(&what, |report, _| {
                report.last_seq == last_seq && report.state == "live"
            })
            .await
    }

    async fn follow(&self, batches: &[RecordedBatch]) -> StreamReport {
        batches.iter().for_each(|batch| self.send(batch));
        self.at(batches.last().map(|batch| batch.seq)).await
    }

    fn digest(&self) -> Vec<TargetDigest> {
        self.reader.index.digest()
    }
}

fn answers(batches: &[RecordedBatch], form: ReplayForm) -> Replies {
    Replies::History(
        batches
            .iter()
            .map(|batch| (batch.seq, batch.payload.clone()))
            .collect(),
        form,
    )
}

/// Returns the digest of an index built by a replay of these batches alone.
async fn rebuilt(batches: &[RecordedBatch]) -> Vec<TargetDigest> {
    let digest = RecordedEngine::joined(batches, ReplayForm::New)
        .await
        .digest();
    assert!(!digest.is_empty());
    digest
}

#[tokio::test]
#[contract("V9", "V12", "V19")]
async fn after_every_batch_the_index_holds_the_blocks_the_recording_implies() {
    let engine = RecordedEngine::followed().await;
    let mut reading = ImpliedBlocks::default();
    let mut most = 0;
    for batch in session() {
        engine.send(&batch);
        let report = engine.at(Some(batch.seq)).await;
        reading.take(&batch);
        assert!(!reading.as_set().is_empty());
        reading.agrees_with(&engine.reader.index, &report);
        most = most.max(memberships(&engine.reader.index).len());
    }
    assert!(most > 100, "the session fills the cache: {most}");
    assert_eq!(
        memberships(&engine.reader.index).len(),
        5,
        "the last batch clears it and stores five blocks"
    );
    let report = engine.reader.source.report();
    let counts = report.counts;
    assert_eq!(
        (
            counts.batches,
            counts.orphans,
            counts.ignored,
            counts.decode_errors
        ),
        (38, 0, 0, 0)
    );
    assert_eq!(
        (
            counts.gaps,
            counts.lost_batches,
            counts.duplicates,
            counts.restarts
        ),
        (0, 0, 0, 0)
    );
    assert_eq!(engine.digest(), rebuilt(&session()).await);
}

#[tokio::test]
#[contract("V12", "V17")]
async fn a_recorded_copy_survives_one_removal_and_a_repeated_report_does_not() {
    let session = session();
    let before_the_clear = &session[..37];
    // The last block of a prompt of three blocks is computed three times; nine blocks are reported
    // because they are reused.
    let (copied, reported) = (session[26].names()[0], session[35].names()[8]);
    let engine = RecordedEngine::followed().await;
    engine.follow(before_the_clear).await;
    let removal = RecordedBatch::removing(37, &[copied, reported]);
    engine.send(&removal);
    let report = engine.at(Some(37)).await;
    let mut reading = ImpliedBlocks::of(before_the_clear);
    reading.take(&removal);
    reading.agrees_with(&engine.reader.index, &report);
    let resident = memberships(&engine.reader.index);
    let [copied, reported] = [copied, reported].map(|name| reading.block(name));
    assert!(resident.contains(&copied) && !reading.as_set().contains(&copied));
    assert!(!resident.contains(&reported) && reading.as_counter().contains(&reported));
}

#[tokio::test]
#[contract("MC11", "V9")]
async fn a_router_that_joins_late_replays_the_history() {
    let session = session();
    let recorded = recorded_answer();
    let (end, batches) = recorded.split_last().unwrap();
    for (batch, answer) in session.iter().zip(batches) {
        let sent = frames::encode_replay(ReplayForm::New, b"", batch.seq, &batch.payload);
        assert_eq!(
            sent, *answer,
            "the replay socket here sends the same as the engine's"
        );
    }
    assert_eq!(frames::encode_replay_end(ReplayForm::New), *end);

    let (before, after) = session.split_at(20);
    for form in [ReplayForm::Old, ReplayForm::New] {
        let engine = RecordedEngine::joined(before, form).await;
        ImpliedBlocks::of(before).agrees_with(&engine.reader.index, &engine.reader.source.report());
        let report = engine.follow(&after[..17]).await;
        ImpliedBlocks::of(&session[..37]).agrees_with(&engine.reader.index, &report);
        assert_eq!(engine.digest(), rebuilt(&session[..37]).await);
        assert_eq!(
            (
                report.counts.gaps,
                report.counts.duplicates,
                report.counts.orphans
            ),
            (0, 0, 0)
        );
        engine.follow(&after[17..]).await;
        assert_eq!(engine.digest(), rebuilt(&session).await);
    }
}

#[tokio::test]
#[contract("MC8", "MC11")]
async fn a_batch_lost_on_the_live_socket_is_replayed() {
    let session = &session()[..37];
    for form in [ReplayForm::Old, ReplayForm::New] {
        for lost in [1, 4, 26, 36] {
            let mut engine = RecordedEngine::followed().await;
            engine.replay.then(answers(session, form));
            // The next number reveals a missing one; behind the last one it is the clear, which is
            // not sent here.
            let removal = RecordedBatch::removing(37, &[]);
            for batch in session
                .iter()
                .chain([&removal])
                .filter(|batch| batch.seq != lost)
            {
                engine.send(batch);
            }
            let report = engine.at(Some(37)).await;
            assert_eq!(
                engine.replay.requests.recv().await,
                Some(lost),
                "only the missing batches are requested"
            );
            ImpliedBlocks::of(session).agrees_with(&engine.reader.index, &report);
            assert_eq!(engine.digest(), rebuilt(session).await, "without {lost}");
            assert_eq!(
                (
                    report.counts.gaps,
                    report.counts.lost_batches,
                    report.counts.orphans
                ),
                (1, 0, 0)
            );
        }
    }
}

#[tokio::test]
async fn a_batch_lost_for_good_loses_only_its_own_events() {
    let session = session();
    for lost in [4, 26, 36] {
        let left: Vec<_> = session
            .iter()
            .filter(|batch| batch.seq != lost)
            .cloned()
            .collect();
        let before_the_clear: Vec<_> = left
            .iter()
            .filter(|batch| batch.seq < 37)
            .cloned()
            .collect();
        // The next number reveals the hole; behind the last one it is a batch without content.
        let nothing = RecordedBatch::removing(37, &[]);
        let shown: Vec<_> = before_the_clear.iter().chain([&nothing]).cloned().collect();
        let engine = RecordedEngine::followed().await;
        engine.set_history(&shown);
        let report = engine.follow(&shown).await;
        ImpliedBlocks::of(&shown).agrees_with(&engine.reader.index, &report);
        assert_eq!(
            (report.counts.gaps, report.counts.lost_batches),
            (1, 1),
            "without {lost}"
        );
        assert_eq!(
            report.counts.orphans > 0,
            lost == 4,
            "blocks behind lost blocks are not credited"
        );
        assert!(!memberships(&engine.reader.index).is_empty());
    }
}

#[tokio::test]
async fn after_a_batch_lost_for_good_no_copy_is_counted() {
    let session = session();
    // Batches 25, 26 and 27 store the same block; the removals in 28 are unknown.
    let copied = session[26].names()[0];
    let mut shown: Vec<_> = session[..37]
        .iter()
        .filter(|batch| batch.seq != 28)
        .cloned()
        .collect();
    shown.push(RecordedBatch::removing(37, &[copied]));
    let engine = RecordedEngine::followed().await;
    engine.set_history(&shown);
    let report = engine.follow(&shown).await;
    let reading = ImpliedBlocks::of(&shown);
    reading.agrees_with(&engine.reader.index, &report);
    assert!(!memberships(&engine.reader.index).contains(&reading.block(copied)));
    assert_eq!(report.counts.lost_batches, 1);
}

#[tokio::test]
#[contract("V9")]
async fn a_replaced_engine_is_followed_from_its_first_batch() {
    let session = session();
    let second_epoch = &session[..20];
    let RecordedEngine {
        publisher: first,
        endpoint,
        replay,
        reader,
    } = RecordedEngine::followed().await;
    session[..37]
        .iter()
        .for_each(|batch| first.send(&live(batch.seq, &batch.payload)));
    reader
        .until("the first life", |report, _| report.last_seq == Some(36))
        .await;

    // The process and its connection are gone.
    drop(first);
    reader
        .until("the disconnect", |report, _| report.state == "connecting")
        .await;
    replay.then(Replies::History(vec![], ReplayForm::New));
    let (second, _) = publisher(&endpoint).await;
    reader.until_subscribed(&second).await;
    let engine = RecordedEngine {
        publisher: second,
        endpoint,
        replay,
        reader,
    };
    let report = engine.follow(second_epoch).await;
    ImpliedBlocks::of(second_epoch).agrees_with(&engine.reader.index, &report);
    assert_eq!(engine.digest(), rebuilt(second_epoch).await);
    assert_eq!(
        (
            report.epoch,
            report.counts.restarts,
            report.counts.lost_batches
        ),
        (2, 1, 0)
    );
}

#[tokio::test]
async fn falling_numbers_on_an_open_connection_are_a_restart() {
    let session = session();
    for missed in [0, 3] {
        let second_epoch = &session[..20];
        let engine = RecordedEngine::followed().await;
        engine.follow(&session[..37]).await;
        // The first batches after the restart may be missed: the replay has them.
        engine.set_history(second_epoch);
        let report = engine.follow(&second_epoch[missed..]).await;
        ImpliedBlocks::of(second_epoch).agrees_with(&engine.reader.index, &report);
        assert_eq!(
            engine.digest(),
            rebuilt(second_epoch).await,
            "{missed} missed"
        );
        assert_eq!(
            (
                report.epoch,
                report.counts.restarts,
                report.counts.lost_batches
            ),
            (2, 1, 0)
        );
    }
}

#[tokio::test]
#[contract("V17")]
async fn a_batch_that_arrives_twice_counts_once() {
    let session = &session()[..37];
    let engine = RecordedEngine::followed().await;
    for batch in session {
        engine.send(batch);
        engine.send(batch);
    }
    engine.at(Some(36)).await;
    let report = engine
        .reader
        .until("the last duplicate", |report, _| {
            report.counts.duplicates == 37
        })
        .await;
    ImpliedBlocks::of(session).agrees_with(&engine.reader.index, &report);
    assert_eq!(engine.digest(), rebuilt(session).await);
    assert_eq!((report.counts.batches, report.counts.restarts), (37, 0));
}

#[tokio::test]
async fn a_resync_restores_blocks_that_the_index_lost() {
    let session = &session()[..37];
    let mut engine = RecordedEngine::followed().await;
    engine.follow(session).await;
    let right = engine.digest();
    engine.set_history(session);
    engine.reader.index.clear(engine::TARGET);
    assert!(engine.digest().is_empty());

    engine.reader.source.resync();
    let rebuilt =
        |report: &StreamReport, _: &[u32]| report.counts.batches == 74 && report.state == "live";
    let report = engine.reader.until("the second pass", rebuilt).await;
    assert_eq!(
        engine.replay.requests.recv().await,
        Some(0),
        "the whole history is requested"
    );
    assert_eq!(engine.digest(), right);
    assert_eq!(
        (
            report.epoch,
            report.counts.lost_batches,
            report.counts.orphans
        ),
        (1, 0, 0)
    );
}

#[tokio::test]
async fn a_resync_from_a_truncated_history_forgets_nothing_and_counts_nothing_twice() {
    let session = &session()[..37];
    let engine = RecordedEngine::followed().await;
    engine.follow(session).await;
    let right = engine.digest();
    // Blocks of the first batches are held and not stored again.
    engine.set_history(&session[20..]);
    engine.reader.source.resync();
    let again = |report: &StreamReport, _: &[u32]| {
        report.counts.batches == 37 + 17 && report.state == "live"
    };
    let report = engine.reader.until("the second pass", again).await;
    assert_eq!(engine.digest(), right);
    assert_eq!(
        (
            report.epoch,
            report.counts.lost_batches,
            report.counts.orphans
        ),
        (1, 0, 0)
    );

    let names: Vec<_> = session
        .iter()
        .flat_map(RecordedBatch::names)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    engine.follow(&[RecordedBatch::removing(37, &names)]).await;
    assert!(
        engine.digest().is_empty(),
        "one removal of each block is enough"
    );
}

#[tokio::test]
async fn without_a_replay_endpoint_a_resync_ends_only_uncertain_credits() {
    let session = session();
    let (engine, endpoint) = publisher(&any()).await;
    let reader = TestSource::follow(&endpoint, None);
    reader.until_subscribed(&engine).await;
    // One copy of a block that was computed three times is removed.
    let copied = session[26].names()[0];
    let removal = RecordedBatch::removing(37, &[copied]);
    for batch in session[..37].iter().chain([&removal]) {
        engine.send(&live(batch.seq, &batch.payload));
    }
    reader
        .until("the removal", |report, _| report.last_seq == Some(37))
        .await;
    let copied = ImpliedBlocks::of(&session[..37]).block(copied);
    let mut resident = memberships(&reader.index);
    assert!(resident.remove(&copied));

    reader.source.resync();
    let wait = async {
        while memberships(&reader.index).contains(&copied) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(engine::PATIENCE, wait).await.unwrap();
    assert_eq!(memberships(&reader.index), resident);
    // Batch of the clear.
    engine.send(&live(38, &session[37].payload));
    let report = reader
        .until("the next batch", |report, _| report.last_seq == Some(38))
        .await;
    assert_eq!(memberships(&reader.index).len(), 5);
    assert_eq!(
        (report.epoch, report.counts.gaps, report.counts.restarts),
        (1, 0, 0)
    );
}
