//! Faults that a test requests, and client disconnects.

use std::time::Duration;

use bytes::Bytes;
use engine_sim::RunningEngine;
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::support::{
    self, chat, engine, eventually, fault, get, open, post, request, send, stats, streamed,
};

async fn faulty(
    kind: &str,
    body: &Value,
) -> (RunningEngine, Result<support::CollectedReply, hyper::Error>) {
    let engine = engine("--no-kv-events").await;
    fault(&engine, kind).await;
    let reply = send(
        &engine,
        request(Method::POST, "/v1/chat/completions", &[], body),
    )
    .await;
    (engine, reply)
}

#[tokio::test]
async fn a_status_fault_answers_without_running_the_model_and_applies_once() {
    for status in [500, 503, 429] {
        let (engine, reply) = faulty(&status.to_string(), &chat("Hi", 2)).await;
        let reply = reply.unwrap();
        assert_eq!(reply.status, status);
        assert_eq!(reply.json()["error"]["code"], status);
        assert_eq!(
            post(&engine, "/v1/chat/completions", &chat("Hi", 2))
                .await
                .status,
            200
        );
        let stats = stats(&engine).await;
        assert_eq!(
            (&stats["requests"], &stats["executions"]),
            (&json!(2), &json!(1))
        );
        engine.stop().await;
    }
}

#[tokio::test]
async fn a_reset_closes_the_connection_without_a_byte() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let engine = engine("--no-kv-events").await;
    fault(&engine, "reset").await;
    let mut stream = tokio::net::TcpStream::connect(&engine.http_addr)
        .await
        .unwrap();
    let body = chat("Hi", 2).to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    // Either end is fine: a clean one or a reset.
    let _ = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut received))
        .await
        .unwrap();
    assert_eq!(received, b"");
    assert_eq!(stats(&engine).await["executions"], 0);
    engine.stop().await;
}

#[tokio::test]
async fn a_hang_never_answers_and_ends_with_its_client() {
    let engine = engine("--no-kv-events").await;
    fault(&engine, "hang").await;
    let never = open(
        &engine,
        request(Method::POST, "/v1/chat/completions", &[], &chat("Hi", 2)),
    );
    assert!(
        tokio::time::timeout(Duration::from_millis(200), never)
            .await
            .is_err()
    );
    assert_eq!(get(&engine, "/health").await.status, 200);
    assert_eq!(stats(&engine).await["executions"], 0);
    engine.stop().await;
}

#[tokio::test]
async fn reset_mid_resets_a_stream_after_the_given_number_of_events() {
    for after in [0, 1, 4] {
        let (engine, reply) =
            faulty(&format!("reset_mid:{after}"), &streamed(chat("Hi", 20))).await;
        let reply = reply.unwrap();
        assert_eq!(
            (reply.status, reply.whole, reply.events().len()),
            (200, false, after)
        );
        eventually("the rest is not generated", || async {
            stats(&engine).await["running"] == 0
        })
        .await;
        assert_eq!(
            stats(&engine).await["aborted"],
            0,
            "the client did not leave"
        );
        engine.stop().await;
    }
}

#[tokio::test]
async fn reset_mid_resets_a_plain_body_after_the_given_number_of_bytes() {
    let (engine, reply) = faulty("reset_mid:10", &chat("Hi", 3)).await;
    let reply = reply.unwrap();
    assert_eq!(
        (reply.status, reply.whole, reply.body.len()),
        (200, false, 10)
    );
    engine.stop().await;
}

#[tokio::test]
async fn stall_mid_stalls_after_the_given_number_of_events() {
    let engine = engine("--no-kv-events").await;
    fault(&engine, "stall_mid:3").await;
    let call = request(
        Method::POST,
        "/v1/chat/completions",
        &[],
        &streamed(chat("Hi", 20)),
    );
    let mut response = open(&engine, call).await.unwrap();
    let mut events = 0;
    while events < 3 {
        let frame = tokio::time::timeout(Duration::from_secs(60), response.body_mut().frame());
        let frame = frame.await.unwrap().unwrap().unwrap();
        events += String::from_utf8_lossy(frame.data_ref().unwrap_or(&Bytes::new()))
            .matches("data: ")
            .count();
    }
    assert_eq!(events, 3);
    let more = tokio::time::timeout(Duration::from_millis(500), response.body_mut().frame()).await;
    assert!(more.is_err(), "{more:?}");
    engine.stop().await;
}

#[tokio::test]
async fn a_short_body_ends_before_its_announced_end() {
    let (engine, reply) = faulty("short_body", &chat("Hi", 3)).await;
    let reply = reply.unwrap();
    assert!(!reply.whole && !reply.body.is_empty());
    assert!(serde_json::from_slice::<Value>(&reply.body).is_err());
    fault(&engine, "short_body").await;
    let stream = post(&engine, "/v1/chat/completions", &streamed(chat("Hi", 3))).await;
    assert!(!stream.whole && !stream.text().contains("[DONE]"));
    assert!(stream.text().contains("finish_reason\":\"length"));
    engine.stop().await;
}

#[tokio::test]
async fn no_done_ends_a_stream_cleanly_without_its_last_event() {
    let (engine, reply) = faulty("no_done", &streamed(chat("Hi", 3))).await;
    let reply = reply.unwrap();
    assert!(reply.whole && !reply.text().contains("[DONE]"));
    assert_eq!(reply.events().len(), 1 + 3 + 1);
    engine.stop().await;
}

#[tokio::test]
async fn error_mid_sends_an_error_event_and_done_as_a_dying_engine_core_does() {
    let (engine, reply) = faulty("error_mid:2", &streamed(chat("Hi", 20))).await;
    let reply = reply.unwrap();
    assert!(reply.whole);
    let events = reply.events();
    assert_eq!(events.len(), 4);
    let error: Value = serde_json::from_str(events[2]).unwrap();
    assert_eq!(error["error"]["code"], 500);
    assert_eq!(events[3], "[DONE]");
    fault(&engine, "error_mid:2").await;
    assert_eq!(
        post(&engine, "/v1/chat/completions", &chat("Hi", 3))
            .await
            .status,
        500
    );
    engine.stop().await;
}

#[tokio::test]
async fn none_clears_a_fault_and_a_count_repeats_it() {
    let engine = engine("--no-kv-events").await;
    post(&engine, "/sim/fault", &json!({"kind": "500", "count": 2})).await;
    for status in [500, 500, 200] {
        assert_eq!(
            post(&engine, "/v1/completions", &json!({"prompt": "a"}))
                .await
                .status,
            status
        );
    }
    fault(&engine, "503").await;
    fault(&engine, "none").await;
    assert_eq!(
        post(&engine, "/v1/completions", &json!({"prompt": "a"}))
            .await
            .status,
        200
    );
    assert_eq!(
        post(&engine, "/sim/fault", &json!({"kind": "melt"}))
            .await
            .status,
        400
    );
    engine.stop().await;
}

#[tokio::test]
async fn a_client_disconnect_aborts_the_request_at_once() {
    for stream in [true, false] {
        let engine = engine("--no-kv-events --speed 1").await;
        assert_eq!(stats(&engine).await["last_abort_ms"], Value::Null);
        let mut body = chat("Hi", 20_000);
        body["stream"] = json!(stream);
        let connection = tokio::net::TcpStream::connect(&engine.http_addr)
            .await
            .unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(connection))
                .await
                .unwrap();
        let connection = tokio::spawn(connection);
        let reply = tokio::spawn(async move {
            let mut reply = sender
                .send_request(request(Method::POST, "/v1/chat/completions", &[], &body))
                .await?;
            while reply.body_mut().frame().await.is_some() {}
            Ok::<_, hyper::Error>(())
        });
        eventually("it runs", || async { stats(&engine).await["running"] == 1 }).await;
        connection.abort();
        reply.abort();
        eventually("it is gone", || async {
            stats(&engine).await["aborted"] == 1
        })
        .await;
        let stats = stats(&engine).await;
        assert_eq!(
            (&stats["running"], &stats["blocks_used"]),
            (&json!(0), &json!(0))
        );
        assert!(stats["last_abort_ms"].as_u64().unwrap() > 1_700_000_000_000);
        engine.stop().await;
    }
}

#[tokio::test]
async fn a_client_that_read_everything_does_not_count_as_disconnected() {
    let engine = engine("--no-kv-events").await;
    post(&engine, "/v1/chat/completions", &chat("Hi", 5)).await;
    post(&engine, "/v1/chat/completions", &streamed(chat("Hi", 5))).await;
    let stats = stats(&engine).await;
    assert_eq!(
        (&stats["aborted"], &stats["last_abort_ms"]),
        (&json!(0), &Value::Null)
    );
    engine.stop().await;
}
