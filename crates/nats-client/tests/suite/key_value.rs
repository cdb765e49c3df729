//! Buckets.

use std::time::Duration;

use nats_client::{Bucket, BucketConfig, Client, JetStream, KeyChange, Storage};

use super::{connect, nats_server::NatsServer};

async fn bucket(client: &Client, max_age: Option<Duration>) -> Bucket {
    let config = BucketConfig {
        name: "leases".to_owned(),
        max_age,
        storage: Storage::Memory,
    };
    Bucket::open(client, &config).await.unwrap()
}

#[tokio::test]
async fn of_two_writers_with_the_same_revision_one_succeeds() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let connection = connect(&server).await;
    let bucket = bucket(&connection.client, None).await;
    let revision = bucket.create("a", "1".into()).await.unwrap().unwrap();
    assert_eq!(bucket.create("a", "2".into()).await.unwrap(), None);
    let next = bucket.update("a", "3".into(), revision).await.unwrap();
    assert_eq!(
        bucket.update("a", "4".into(), revision).await.unwrap(),
        None
    );
    let entry = bucket.get("a").await.unwrap().unwrap();
    assert_eq!(
        (entry.value.as_slice(), Some(entry.revision)),
        (&b"3"[..], next)
    );
    assert!(!bucket.delete("a", revision).await.unwrap());
    assert!(bucket.delete("a", entry.revision).await.unwrap());
    assert_eq!(bucket.get("a").await.unwrap(), None);
    assert!(bucket.keys().await.unwrap().is_empty());
    assert!(bucket.create("a", "5".into()).await.unwrap().is_some());
    assert_eq!(bucket.keys().await.unwrap(), ["a"]);
}

#[tokio::test]
async fn a_value_that_is_not_renewed_disappears() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let connection = connect(&server).await;
    let bucket = bucket(&connection.client, Some(Duration::from_millis(300))).await;
    bucket.create("a", "1".into()).await.unwrap().unwrap();
    while bucket.get("a").await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(bucket.create("a", "2".into()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_watch_reports_present_values_then_changes() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let connection = connect(&server).await;
    let bucket = bucket(&connection.client, None).await;
    bucket.put("a", "1".into()).await.unwrap();
    bucket.put("a", "2".into()).await.unwrap();
    bucket.put("b", "3".into()).await.unwrap();
    let put = |key: &str, value: &'static str, revision| KeyChange::Put {
        key: key.to_owned(),
        value: value.into(),
        revision,
    };
    let mut watch = bucket.watch().await.unwrap();
    assert_eq!(watch.next().await.unwrap(), put("a", "2", 2));
    assert_eq!(watch.next().await.unwrap(), put("b", "3", 3));
    assert_eq!(watch.next().await.unwrap(), KeyChange::Current);
    bucket.update("b", "4".into(), 3).await.unwrap().unwrap();
    bucket.delete("a", 2).await.unwrap();
    assert_eq!(watch.next().await.unwrap(), put("b", "4", 4));
    let deleted = KeyChange::Deleted {
        key: "a".to_owned(),
        revision: 5,
    };
    assert_eq!(watch.next().await.unwrap(), deleted);
    drop(watch);
}

#[tokio::test]
async fn the_watch_of_an_empty_bucket_is_current_at_once() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let connection = connect(&server).await;
    let bucket = bucket(&connection.client, None).await;
    let mut watch = bucket.watch().await.unwrap();
    assert_eq!(watch.next().await.unwrap(), KeyChange::Current);
}

#[tokio::test]
async fn a_forgotten_deletion_is_reported_to_nobody_and_the_key_can_be_created_again() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let connection = connect(&server).await;
    let bucket = bucket(&connection.client, None).await;
    let revision = bucket.create("a", "1".into()).await.unwrap().unwrap();
    assert!(bucket.delete("a", revision).await.unwrap());
    bucket.forget_deletion(revision + 1).await.unwrap();
    // Another process was faster.
    bucket.forget_deletion(revision + 1).await.unwrap();
    let mut changes = bucket.watch().await.unwrap();
    assert_eq!(changes.next().await, Some(KeyChange::Current));
    let again = bucket.create("a", "2".into()).await.unwrap();
    assert!(again.is_some());
    // A late one leaves the new value.
    bucket.forget_deletion(revision + 1).await.unwrap();
    assert_eq!(bucket.get("a").await.unwrap().unwrap().value, b"2");
}

#[tokio::test]
async fn a_watch_ends_with_its_bucket() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let connection = connect(&server).await;
    let bucket = bucket(&connection.client, None).await;
    let watch = bucket.watch().await.unwrap();
    watch.check().await.unwrap();
    let jetstream = JetStream::new(connection.client.clone());
    jetstream.delete_stream("KV_leases").await.unwrap();
    assert!(watch.check().await.unwrap_err().is_missing());
}
