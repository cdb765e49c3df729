//! Objects.

use nats_client::ObjectStore;

use super::{connect, nats_server::NatsServer};

#[tokio::test]
async fn an_object_of_many_chunks_is_read_as_it_was_stored() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let connection = connect(&server).await;
    let store = ObjectStore::open(&connection.client, "snapshots")
        .await
        .unwrap();
    let bytes: Vec<u8> = (0..1_000_000_u32)
        .map(|byte| byte.to_le_bytes()[1])
        .collect();
    let info = store.put("first", &bytes).await.unwrap();
    assert_eq!((info.size, info.chunks), (1_000_000, 8));
    assert_eq!(store.get("first", 1 << 20).await.unwrap(), Some(bytes));
    store.put("empty", &[]).await.unwrap();
    assert_eq!(store.get("empty", 1 << 20).await.unwrap(), Some(vec![]));
    assert_eq!(store.get("other", 1 << 20).await.unwrap(), None);
    let error = store.get("first", 1_000).await.unwrap_err();
    assert!(error.to_string().contains("at most 1000"), "{error}");
}

#[tokio::test]
async fn an_object_whose_upload_was_interrupted_does_not_exist_and_is_removed() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let connection = connect(&server).await;
    let store = ObjectStore::open(&connection.client, "snapshots")
        .await
        .unwrap();
    store.put("kept", b"kept").await.unwrap();
    store.put_chunk("half", &[1; 200_000], 0).await.unwrap();
    assert_eq!(store.get("half", 1 << 20).await.unwrap(), None);
    store.remove_others(Some("kept")).await.unwrap();
    assert_eq!(
        store.get("kept", 1 << 20).await.unwrap(),
        Some(b"kept".to_vec())
    );
    store.describe("half", &[1; 200_000]).await.unwrap();
    assert!(
        store.get("half", 1 << 20).await.is_err(),
        "its chunks are gone"
    );
}
