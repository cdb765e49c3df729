//! A replay endpoint whose queue overflows: the index still ends with the whole history.

use std::time::Duration;

use contract_id::contract;

use crate::engine::{
    Overflow, ReplaySocket, Replies, TestSource, any, history, live, publisher, stored, truth,
};

/// Follows an engine with this history and libzmq's default queue; asserts the replay requests by
/// number.
async fn ends_whole(history: Vec<(u64, Vec<u8>)>, every: usize, starts: &[u64]) {
    let mut published = history.clone();
    let next = published.len() as u64;
    let (engine, endpoint) = publisher(&any()).await;
    let mut replay = ReplaySocket::bind(Replies::Overflowing(
        history,
        Overflow { queue: 1000, every },
    ))
    .await;
    let reader = TestSource::follow(&endpoint, Some(&replay.endpoint));
    for start in starts {
        assert_eq!(replay.requests.recv().await, Some(*start));
    }
    reader
        .until("the history", |report, _| {
            report.state == "live" && report.last_seq == Some(next - 1)
        })
        .await;
    assert_eq!(reader.index.digest(), truth(&published));

    reader.until_subscribed(&engine).await;
    published.push((next, stored(9_999)));
    engine.send(&live(next, &published.last().unwrap().1));
    let report = reader
        .until("a live batch", |report, _| report.last_seq == Some(next))
        .await;
    assert_eq!(reader.index.digest(), truth(&published));
    assert_eq!(
        (&*report.state, report.last_error),
        ("live", None),
        "a loss is not an error of the stream"
    );
    assert_eq!(
        (
            report.counts.batches,
            report.counts.gaps,
            report.counts.lost_batches
        ),
        (next + 1, 0, 0)
    );
    assert!(
        replay.requests.try_recv().is_err(),
        "no other replay was requested"
    );
    reader.source.stop().await;
}

#[tokio::test]
#[contract("MC11", "V19")]
async fn batches_dropped_in_the_middle_of_an_answer_are_requested_again() {
    // Each answer is used up to the first number it skips. The last one is whole, but only the end
    // of a short answer is trusted.
    ends_whole(history(5000), 3, &[0, 1000, 2000, 3000, 4000, 5000]).await;
}

#[tokio::test]
#[contract("V19")]
async fn batches_dropped_with_the_end_of_an_answer_are_requested_again() {
    ends_whole(history(1500), usize::MAX, &[0, 1000, 1500]).await;
}

#[tokio::test]
async fn a_short_answer_without_an_end_marker_is_an_error_that_names_where_it_ended() {
    let (_engine, endpoint) = publisher(&any()).await;
    let overflow = Overflow {
        queue: 3,
        every: usize::MAX,
    };
    let replay = ReplaySocket::bind(Replies::Overflowing(history(5), overflow)).await;
    let reader = TestSource::with(&endpoint, Some(&replay.endpoint), |spec| {
        spec.settings.replay_timeout = Duration::from_millis(500);
    });
    let report = reader
        .until("the failure", |report, _| report.state == "stale")
        .await;
    assert!(
        report
            .last_error
            .unwrap()
            .contains("broke off: nothing for 500ms after 3 batches, and no end marker")
    );
    assert_eq!(report.last_seq, Some(2));
    reader.source.stop().await;
}
