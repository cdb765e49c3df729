//! A stream over a WebSocket: one JSON object per text message.

use contract_id::contract;
use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio_tungstenite::{WebSocketStream, accept_async, tungstenite::Message};

use crate::stream_server::{StreamServer, Watcher, hash, soon};

fn url(server: &StreamServer) -> String {
    format!("ws://127.0.0.1:{}/v1/kv_events", server.port)
}

async fn accept(server: &StreamServer) -> WebSocketStream<TcpStream> {
    soon(accept_async(server.accept().await)).await.unwrap()
}

fn text(kind: &str, n: u8) -> Message {
    let hash = hash(n);
    Message::text(format!(
        "{{\"event\": \"{kind}\", \"prefix_hash\": \"{hash}\", \"token_count\": 64}}"
    ))
}

async fn send(socket: &mut WebSocketStream<TcpStream>, message: Message) {
    soon(socket.send(message)).await.unwrap();
}

#[tokio::test]
#[contract("CK42")]
async fn each_text_message_is_an_event_with_its_type() {
    let server = StreamServer::bind().await;
    let watcher = Watcher::follow(&url(&server));
    let mut socket = accept(&server).await;
    send(&mut socket, text("cache_created", 1)).await;
    send(&mut socket, text("cache_created", 2)).await;
    send(&mut socket, text("cache_purged", 1)).await;
    let report = watcher.until_resident(&[(2, 64)]).await;
    assert_eq!(
        (&*report.source, &*report.state, report.counts.applied),
        ("ws", "live", 3)
    );
    assert_eq!(report.endpoint, url(&server));

    // A ping is answered; otherwise the server would close the connection.
    send(
        &mut socket,
        Message::Ping(bytes::Bytes::from_static(b"there?")),
    )
    .await;
    assert_eq!(
        soon(socket.next()).await.unwrap().unwrap(),
        Message::Pong(bytes::Bytes::from_static(b"there?"))
    );
    watcher.source.stop().await;
}

#[tokio::test]
async fn a_message_that_is_no_event_is_counted_and_loses_only_itself() {
    let server = StreamServer::bind().await;
    let watcher = Watcher::follow(&url(&server));
    let mut socket = accept(&server).await;
    send(&mut socket, text("cache_created", 1)).await;
    send(&mut socket, Message::text("not json")).await;
    send(
        &mut socket,
        Message::text("{\"prefix_hash\": \"0000000000000001\"}"),
    )
    .await;
    send(
        &mut socket,
        Message::Binary(bytes::Bytes::from_static(b"{}")),
    )
    .await;
    send(&mut socket, text("cache_created", 2)).await;
    let report = watcher.until_resident(&[(1, 64), (2, 64)]).await;
    assert_eq!((report.counts.decode_errors, &*report.state), (3, "live"));
    watcher.source.stop().await;
}

#[tokio::test]
#[contract("CK47", "CK48")]
async fn a_message_over_a_mebibyte_ends_the_connection_and_the_stream_recovers() {
    let server = StreamServer::bind().await;
    let watcher = Watcher::follow(&url(&server));
    let mut socket = accept(&server).await;
    send(&mut socket, text("cache_created", 1)).await;
    watcher.until_resident(&[(1, 64)]).await;
    // The source may close before the whole message is written.
    let _ = socket.send(Message::text("x".repeat(2 << 20))).await;
    let limit = |error: &String| error.contains("1048576 bytes at most");
    watcher
        .until("the refusal", |report, _| {
            report.last_error.as_ref().is_some_and(limit)
        })
        .await;

    let mut socket = accept(&server).await;
    send(&mut socket, text("cache_created", 2)).await;
    watcher.until_resident(&[(1, 64), (2, 64)]).await;
    soon(socket.close(None)).await.unwrap();
    let mut socket = accept(&server).await;
    send(&mut socket, text("cache_created", 3)).await;
    watcher.until_resident(&[(1, 64), (2, 64), (3, 64)]).await;
    assert_eq!(watcher.source.counters().reconnects, 2);
    watcher.source.stop().await;
}

#[tokio::test]
async fn a_server_without_web_sockets_is_named() {
    let server = StreamServer::bind().await;
    let watcher = Watcher::follow(&url(&server));
    let mut request = server.next_request().await;
    assert!(
        request
            .head
            .to_ascii_lowercase()
            .contains("upgrade: websocket\r\n"),
        "{}",
        request.head
    );
    request
        .send(b"HTTP/1.1 426 Upgrade Required\r\ncontent-length: 0\r\n\r\n")
        .await;
    let report = watcher
        .until("the refusal", |report, _| report.last_error.is_some())
        .await;
    assert!(
        report
            .last_error
            .unwrap()
            .contains("status 426: expected 101 and a web socket")
    );
    watcher.source.stop().await;
}
