//! Tests of the listener with correct and faulty publishers.

use std::{sync::Arc, time::Duration};

use kv_events::{
    frames::encode_live,
    vllm::{EventEncoding, WireEvent, WireHash, WireStored, encode},
};
use net::{Clock, Destinations};
use zmtp::{Pub, PubSettings};

use super::{
    Budget, ProbeSession,
    announcements::{self, ExpectedAnnouncement},
    event_listener::EventListener,
    publisher_observation::{LinkStatus, PublisherObservation},
};
use crate::checks::fixture::{self, CheckFixture};

const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a publisher and its listener.
async fn listening(topic: &str) -> (Pub, EventListener) {
    let any = "tcp://127.0.0.1:0".parse().expect("an endpoint");
    let (publisher, endpoint) = Pub::bind(&any, PubSettings::default())
        .await
        .expect("a free port");
    let mut fixture = CheckFixture::healthy();
    let mut stream = fixture.probe().streams[0].clone();
    (stream.endpoint, stream.topic) = (endpoint.to_string(), topic.to_owned());
    let settings = fixture::settings("");
    let session = ProbeSession {
        worker_probe: fixture.probe(),
        destinations: &Destinations::Any,
        budget: Budget::of(PATIENCE),
        clock: Clock::system(),
    };
    let mut listener = EventListener::open(stream, true, &settings, session);
    listener.wait_connected(PATIENCE).await;
    assert!(listener.connected());
    publisher
        .watch_subscribers()
        .wait_for(|count| *count == 1)
        .await
        .expect("the publisher lives");
    (publisher, listener)
}

/// Returns a batch that stores one block of these tokens.
fn stored(hash: u64, parent: Option<u64>, tokens: &[u32]) -> Vec<u8> {
    let event = WireEvent::Stored(WireStored {
        hashes: vec![hash.into()],
        parent: parent.map(WireHash::from),
        tokens: tokens.to_vec(),
        block_size: u32::try_from(tokens.len()).expect("a short block"),
        ..WireStored::default()
    });
    encode(1.0, Some(0), &[event], EventEncoding::CURRENT)
}

async fn observe_until(
    listener: &mut EventListener,
    until: impl FnMut(&PublisherObservation) -> bool,
) -> PublisherObservation {
    listener
        .observation
        .wait_for(until)
        .await
        .expect("the listener lives")
        .clone()
}

#[tokio::test]
async fn nonsense_is_counted_and_what_follows_is_still_heard() {
    let (publisher, mut listener) = listening("").await;
    publisher.send(&[b"one frame"]);
    publisher.send(&[&b"topic"[..], &[0; 8], &[0xc1; 16]]);
    publisher.send(&[&b""[..], &[1, 2, 3], b"short number"]);
    publisher.send(&encode_live(b"", 4, &stored(7, None, &[1, 2])));
    let found = observe_until(&mut listener, |observation| observation.batches == 1).await;
    assert_eq!(
        (found.unreadable, found.stores, found.numbers.last),
        (3, 1, Some(4))
    );
    assert_eq!(found.block_size.map(|size| size.tokens()), Some(2));
}

#[tokio::test]
async fn numbers_left_out_are_counted_and_a_restart_is_not_one() {
    let (publisher, mut listener) = listening("").await;
    for seq in [5, 6, 9, 10, 0, 1] {
        publisher.send(&encode_live(b"", seq, &stored(seq, None, &[1, 2])));
    }
    publisher.send(&[Vec::new(), stored(8, None, &[1, 2])]);
    let found = observe_until(&mut listener, |observation| observation.batches == 7).await;
    assert_eq!(
        (
            found.numbers.missed,
            found.numbers.unnumbered,
            found.numbers.last
        ),
        (2, 1, Some(1))
    );
}

#[tokio::test]
async fn a_prompts_blocks_are_found_under_the_topic_that_they_came_with() {
    let (publisher, listener) = listening("kv@here").await;
    publisher.send(&encode_live(b"kv@elsewhere", 0, &stored(7, None, &[1, 2])));
    publisher.send(&encode_live(
        b"kv@elsewhere",
        1,
        &stored(8, Some(7), &[3, 4]),
    ));
    let listeners = [listener];
    let ids = [1, 2, 3, 4, 5];
    let announcement = ExpectedAnnouncement {
        ids: Some(&ids),
        guess: None,
        lora: None,
        stores_before: vec![0],
    };
    // The two blocks may arrive one after the other: the wait lasts as long as the second is
    // missing.
    let arrival = announcements::wait(
        &listeners,
        &announcement,
        PATIENCE / 10,
        Budget::of(PATIENCE),
    )
    .await
    .expect("both blocks");
    assert_eq!(
        (arrival.topic.as_str(), arrival.subscribed),
        ("kv@elsewhere", false)
    );
    assert_eq!((arrival.blocks, arrival.whole), (2, 2));

    publisher.send(&encode_live(b"kv@here/1", 2, &stored(7, None, &[1, 2])));
    publisher.send(&encode_live(b"kv@here/1", 3, &stored(8, Some(7), &[3, 4])));
    let arrival = announcements::wait(&listeners, &announcement, PATIENCE, Budget::of(PATIENCE))
        .await
        .expect("both blocks again");
    assert_eq!(
        (arrival.topic.as_str(), arrival.subscribed, arrival.blocks),
        ("kv@here/1", true, 2)
    );
}

#[tokio::test]
async fn blocks_of_an_adapter_are_not_the_base_models() {
    let (publisher, listener) = listening("").await;
    let event = WireEvent::Stored(WireStored {
        hashes: vec![7.into()],
        tokens: vec![1, 2],
        block_size: 2,
        lora_name: Some("ad1".to_owned()),
        ..WireStored::default()
    });
    publisher.send(&encode_live(
        b"",
        0,
        &encode(1.0, Some(0), &[event], EventEncoding::CURRENT),
    ));
    let listeners = [listener];
    let name: Arc<str> = "ad1".into();
    let of = |lora| ExpectedAnnouncement {
        ids: Some(&[1, 2]),
        guess: None,
        lora,
        stores_before: vec![0],
    };
    assert!(
        announcements::wait(&listeners, &of(Some(&name)), PATIENCE, Budget::of(PATIENCE))
            .await
            .is_some()
    );
    assert_eq!(listeners[0].announced(&[1, 2], None), None);
}

#[tokio::test]
async fn ids_that_are_only_believed_are_looked_for_and_other_blocks_count_as_foreign() {
    let (publisher, listener) = listening("").await;
    publisher.send(&encode_live(b"", 0, &stored(7, None, &[1, 2])));
    let listeners = [listener];
    let of = |guess| ExpectedAnnouncement {
        ids: None,
        guess,
        lora: None,
        stores_before: vec![0],
    };
    let listen = async |guess, limit| {
        announcements::wait(&listeners, &of(guess), limit, Budget::of(PATIENCE)).await
    };
    let any = listen(None, PATIENCE).await.expect("some store");
    assert_eq!((any.foreign, any.subscribed, any.whole), (false, true, 0));
    let own = listen(Some(&[1, 2]), PATIENCE).await.expect("our block");
    assert_eq!((own.foreign, own.blocks, own.whole), (false, 1, 1));
    let foreign = listen(Some(&[8, 9]), PATIENCE / 100)
        .await
        .expect("some store");
    assert_eq!(
        (foreign.foreign, foreign.blocks, foreign.whole),
        (true, 0, 0)
    );
    let none = ExpectedAnnouncement {
        stores_before: vec![1],
        ..of(Some(&[8, 9]))
    };
    assert_eq!(
        announcements::wait(&listeners, &none, PATIENCE / 100, Budget::of(PATIENCE)).await,
        None,
        "it was there before"
    );
}

#[tokio::test]
async fn blocks_on_unknown_media_and_blocks_without_tokens_are_heard_as_such() {
    let (publisher, mut listener) = listening("").await;
    let event = |tokens: &[u32], medium: &str| {
        let stored = WireStored {
            hashes: vec![7.into()],
            tokens: tokens.to_vec(),
            block_size: 2,
            medium: Some(medium.to_owned()),
            ..WireStored::default()
        };
        encode(
            1.0,
            Some(0),
            &[WireEvent::Stored(stored)],
            EventEncoding::CURRENT,
        )
    };
    publisher.send(&encode_live(b"", 0, &event(&[], "GPU")));
    let found = observe_until(&mut listener, |observation| observation.batches == 1).await;
    assert_eq!(
        (found.stores, found.usable_stores, found.block_size),
        (1, 0, None)
    );
    publisher.send(&encode_live(b"", 1, &event(&[1, 2], "TAPE")));
    observe_until(&mut listener, |observation| observation.batches == 2).await;
    let announced = listener
        .announced(&[1, 2], None)
        .expect("it lies somewhere");
    assert_eq!(
        (announced.blocks, announced.device, announced.whole),
        (1, 0, 1)
    );
}

#[tokio::test]
async fn a_port_where_nobody_listens_is_known_at_once() {
    let mut fixture = CheckFixture::healthy();
    let mut endpoint = fixture.probe().streams[0].clone();
    endpoint.endpoint = "tcp://127.0.0.1:1".to_owned();
    let settings = fixture::settings("");
    let session = ProbeSession {
        worker_probe: fixture.probe(),
        destinations: &Destinations::Any,
        budget: Budget::of(PATIENCE),
        clock: Clock::system(),
    };
    let mut listener = EventListener::open(endpoint, true, &settings, session);
    listener.wait_connected(PATIENCE).await;
    assert!(
        matches!(listener.close().observation.link, LinkStatus::Unreachable(reason) if reason.contains("refused"))
    );
}
