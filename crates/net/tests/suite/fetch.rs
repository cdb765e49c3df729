//! The one-shot client against a scripted server.

use std::time::Duration;

use contract_id::contract;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use net::{
    ListenAddr, Stream, WorkerUrl,
    fetch::{self, FetchError},
    listen,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinHandle,
};

const SOON: Duration = Duration::from_secs(60);

/// Answers one request with `reply`, and returns the request. `Hold` keeps the connection open
/// afterwards.
async fn server(reply: Vec<u8>, after: CloseMode) -> (WorkerUrl, JoinHandle<String>) {
    let listener = listen(&ListenAddr::tcp("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/base", listener.address())
        .parse()
        .unwrap();
    let task = tokio::spawn(async move {
        let mut stream = listener.accept().await.unwrap();
        let request = read_request(&mut stream).await;
        stream.write_all(&reply).await.unwrap();
        if let CloseMode::Hold = after {
            // Ends when the client closes.
            let _ = stream.read(&mut [0; 1]).await;
        }
        request
    });
    (url, task)
}

enum CloseMode {
    Close,
    Hold,
}

async fn read_request(stream: &mut Stream) -> String {
    let mut bytes = Vec::new();
    loop {
        stream.read_buf(&mut bytes).await.unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .unwrap_or("0");
        if body.len() >= length.parse().unwrap() {
            return text;
        }
    }
}

#[tokio::test]
async fn a_fetch_returns_the_whole_reply_and_sends_a_plain_request() {
    let (url, request) = server(
        b"HTTP/1.1 200 OK\r\nx-a: b\r\ncontent-length: 5\r\n\r\nhello".to_vec(),
        CloseMode::Hold,
    )
    .await;
    let mut headers = HeaderMap::new();
    headers.insert(
        header::AUTHORIZATION,
        HeaderValue::from_static("Bearer key"),
    );
    let fetched = fetch::get(&url, "/v1/models", &headers, SOON, 5)
        .await
        .unwrap();
    assert_eq!(
        (fetched.status, &fetched.body[..]),
        (StatusCode::OK, &b"hello"[..])
    );
    assert_eq!(fetched.headers["x-a"], "b");
    let request = request.await.unwrap();
    assert!(
        request.starts_with("GET /base/v1/models HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(
        request.contains(&format!("host: {}\r\n", url.authority())),
        "{request}"
    );
    assert!(
        request.contains("authorization: Bearer key\r\n"),
        "{request}"
    );
}

#[tokio::test]
async fn chunked_and_close_delimited_replies_are_read() {
    for reply in [
        &b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"[..],
        b"HTTP/1.0 200 OK\r\n\r\nhello",
    ] {
        let (url, _request) = server(reply.to_vec(), CloseMode::Close).await;
        let fetched = fetch::get(&url, "/x", &HeaderMap::new(), SOON, 100)
            .await
            .unwrap();
        assert_eq!(&fetched.body[..], b"hello");
    }
}

#[tokio::test]
async fn a_posted_body_is_json_by_default() {
    let ok = b"HTTP/1.1 204 No Content\r\n\r\n";
    let (url, request) = server(ok.to_vec(), CloseMode::Close).await;
    let body = Some("{\"a\":1}".into());
    let fetched = fetch::post(&url, "/tokenize", &HeaderMap::new(), body, SOON, 100)
        .await
        .unwrap();
    assert_eq!(fetched.status, StatusCode::NO_CONTENT);
    let request = request.await.unwrap();
    assert!(
        request.starts_with("POST /base/tokenize HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(
        request.contains("content-type: application/json\r\n") && request.ends_with("{\"a\":1}"),
        "{request}"
    );

    let (url, request) = server(ok.to_vec(), CloseMode::Close).await;
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    fetch::post(&url, "/x", &headers, Some("a".into()), SOON, 100)
        .await
        .unwrap();
    let request = request.await.unwrap();
    assert!(
        request.contains("content-type: text/plain\r\n") && !request.contains("application/json"),
        "{request}"
    );
}

#[tokio::test]
#[contract("S41")]
async fn a_redirect_is_returned_and_not_followed() {
    let reply = b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
        .to_vec();
    let (url, _request) = server(reply, CloseMode::Close).await;
    assert_eq!(
        fetch::get(&url, "/x", &HeaderMap::new(), SOON, 100)
            .await
            .unwrap()
            .status,
        StatusCode::FOUND
    );
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_however_it_is_framed() {
    for reply in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello!"[..],
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nhello!\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nhello!",
    ] {
        let (url, _request) = server(reply.to_vec(), CloseMode::Close).await;
        let error = fetch::get(&url, "/x", &HeaderMap::new(), SOON, 5)
            .await
            .unwrap_err();
        assert!(
            matches!(error, FetchError::TooLarge { limit: 5, .. }),
            "{error}"
        );
    }
}

#[tokio::test]
async fn an_announced_body_is_not_allocated_before_it_arrives() {
    let reply = b"HTTP/1.1 200 OK\r\ncontent-length: 4611686018427387904\r\n\r\nx".to_vec();
    let (url, _request) = server(reply, CloseMode::Close).await;
    assert!(
        fetch::get(&url, "/x", &HeaderMap::new(), SOON, usize::MAX)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_silent_or_slow_worker_is_bounded_by_the_time_limit() {
    for reply in ["", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel"] {
        let (url, request) = server(reply.into(), CloseMode::Hold).await;
        let limit = Duration::from_millis(100);
        let error = fetch::get(&url, "/x", &HeaderMap::new(), limit, 100)
            .await
            .unwrap_err();
        assert!(matches!(error, FetchError::TimedOut { .. }), "{error}");
        assert!(error.to_string().contains("/x within 100ms"), "{error}");
        // The server's task ends because the call closed the connection.
        request.await.unwrap();
    }
}

#[tokio::test]
async fn broken_replies_and_refused_connections_have_different_errors() {
    for reply in [
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel",
        "",
    ] {
        let (url, _request) = server(reply.into(), CloseMode::Close).await;
        let error = fetch::get(&url, "/x", &HeaderMap::new(), SOON, 100)
            .await
            .unwrap_err();
        assert!(
            matches!(error, FetchError::Protocol { .. }) && !error.is_refused(),
            "{error}"
        );
    }
    let listener = listen(&ListenAddr::tcp("127.0.0.1", 0)).await.unwrap();
    let url: WorkerUrl = format!("http://{}", listener.address()).parse().unwrap();
    drop(listener);
    let error = fetch::get(&url, "/x", &HeaderMap::new(), SOON, 100)
        .await
        .unwrap_err();
    assert!(error.is_refused(), "{error}");
    assert!(
        error.to_string().contains("check that the engine runs"),
        "{error}"
    );
}

#[tokio::test]
async fn a_path_that_cannot_be_sent_is_refused_before_connecting() {
    let url: WorkerUrl = "http://127.0.0.1:1".parse().unwrap();
    let error = fetch::get(&url, "/a b\r\nx: y", &HeaderMap::new(), SOON, 100)
        .await
        .unwrap_err();
    assert!(matches!(error, FetchError::Request { .. }), "{error}");
}
