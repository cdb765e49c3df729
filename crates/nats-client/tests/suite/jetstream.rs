//! Streams, consumers and publications.

use std::time::Duration;

use futures_util::StreamExt;
use nats_client::{
    ConsumerConfig, DeliveredMessage, HeaderMap, JetStream, JetStreamError, StreamConfig,
};

use super::{connect, nats_server::NatsServer};

fn stream() -> StreamConfig {
    StreamConfig::new("events", vec!["events.>".to_owned()]).max_age(Duration::from_secs(600))
}

#[tokio::test]
async fn a_message_with_a_known_id_is_stored_once() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let jetstream = JetStream::new(connect(&server).await.client.clone());
    jetstream.ensure_stream(&stream()).await.unwrap();
    jetstream.ensure_stream(&stream()).await.unwrap();
    let changed = stream().max_age(Duration::from_secs(900));
    let info = jetstream.ensure_stream(&changed).await.unwrap();
    assert_eq!(info.config.max_age, changed.max_age);
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", "a/1");
    let publish = || jetstream.publish("events.a", headers.clone(), "x".into());
    let (first, second) = (publish().await.unwrap(), publish().await.unwrap());
    assert_eq!((first.seq, first.duplicate), (1, false));
    assert_eq!((second.seq, second.duplicate), (1, true));
}

#[tokio::test]
async fn a_durable_consumer_continues_behind_what_it_acknowledged() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let jetstream = JetStream::new(connect(&server).await.client.clone());
    jetstream.ensure_stream(&stream()).await.unwrap();
    for number in 0..5 {
        let payload = format!("{number}").into();
        jetstream
            .publish("events.a", HeaderMap::new(), payload)
            .await
            .unwrap();
    }
    let consumer = ConsumerConfig {
        name: "router-a".to_owned(),
        from: 2,
        inactive_after: Duration::from_secs(60),
        max_unacknowledged: 100,
    };
    jetstream
        .ensure_consumer("events", &consumer)
        .await
        .unwrap();
    let client = jetstream.client();
    let inbox = client.new_inbox();
    let mut messages = client.subscribe(inbox.clone()).await.unwrap();
    let pull = || jetstream.pull(("events", "router-a"), &inbox, 3, Duration::from_secs(5));
    pull().await.unwrap();
    for seq in 2..=4 {
        let message = messages.next().await.unwrap();
        let delivered = DeliveredMessage::of(&message).unwrap();
        assert_eq!((delivered.stream_seq, delivered.pending), (seq, 5 - seq));
        if seq == 3 {
            let reply = message.reply.unwrap();
            client.publish(reply, "+ACK".into()).await.unwrap();
        }
    }
    let floor = async || {
        let info = jetstream.consumer_info("events", "router-a").await;
        info.unwrap().ack_floor.stream_seq
    };
    while floor().await < 3 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(floor().await, 3);
    jetstream.purge_before("events", 4).await.unwrap();
    let state = jetstream.stream_info("events").await.unwrap().state;
    assert_eq!((state.first_seq, state.last_seq), (4, 5));
    jetstream
        .delete_consumer("events", "router-a")
        .await
        .unwrap();
    jetstream
        .delete_consumer("events", "router-a")
        .await
        .unwrap();
}

#[tokio::test]
async fn what_does_not_exist_is_named_in_the_error() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let jetstream = JetStream::new(connect(&server).await.client.clone());
    let missing = jetstream.stream_info("events").await.unwrap_err();
    assert!(missing.is_missing(), "{missing}");
    let nobody = jetstream
        .publish("events.a", HeaderMap::new(), "x".into())
        .await
        .unwrap_err();
    assert!(matches!(nobody, JetStreamError::Nobody { .. }), "{nobody}");
    let plain = NatsServer::start(&[]);
    let jetstream = JetStream::new(connect(&plain).await.client.clone());
    let error = jetstream.stream_info("events").await.unwrap_err();
    assert!(error.to_string().contains("start it with -js"), "{error}");
}
