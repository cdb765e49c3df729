//! The engine: one thread that answers every request with a stream of events.

use std::{net::TcpListener, thread, time::Duration};

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, MissedTickBehavior},
};

use crate::{Load, client::now_us};

const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
/// The answer to everything that is no generation: a health check, or a list of models.
const LIST: &str = r#"{"object":"list","data":[{"id":"m","object":"model","max_model_len":8192}]}"#;

/// Starts the engine; returns its port. It runs as long as the process.
pub(crate) fn start(load: Load) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no port for the engine")?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    thread::spawn(move || {
        runtime.block_on(async move {
            let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
                return;
            };
            while let Ok((stream, _)) = listener.accept().await {
                // The proxy may close a connection at any time.
                tokio::spawn(async move { drop(answer_all(stream, load).await) });
            }
        });
    });
    Ok(port)
}

/// Answers the requests of one connection.
async fn answer_all(mut stream: TcpStream, load: Load) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut received = Vec::new();
    loop {
        while !is_whole(&received) {
            if stream.read_buf(&mut received).await? == 0 {
                return Ok(());
            }
        }
        let generates = received.starts_with(b"POST /v1/chat");
        received.clear();
        if generates {
            send_events(&mut stream, load).await?;
        } else {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length";
            let reply = format!("{head}: {}\r\n\r\n{LIST}", LIST.len());
            stream.write_all(reply.as_bytes()).await?;
        }
    }
}

/// Returns whether the bytes end with a whole request.
fn is_whole(received: &[u8]) -> bool {
    let text = String::from_utf8_lossy(received).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    body.len() >= length.unwrap_or(0)
}

/// Sends a stream, each event with the time at which it is sent and as one write.
async fn send_events(stream: &mut TcpStream, load: Load) -> Result<()> {
    stream.write_all(STREAM_HEAD.as_bytes()).await?;
    let paced = !load.interval.is_zero();
    let interval = load.interval.max(Duration::from_millis(1));
    let mut ticks = tokio::time::interval_at(Instant::now(), interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 1..=load.events {
        if paced {
            ticks.tick().await;
        }
        let reason = if number == load.events {
            "\"stop\""
        } else {
            "null"
        };
        let event = format!(
            "data: {{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\
             \"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{:016}\"}},\"logprobs\":null,\
             \"finish_reason\":{reason}}}]}}\n\n",
            now_us()
        );
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        stream.write_all(chunk.as_bytes()).await?;
    }
    let done = "data: [DONE]\n\n";
    let end = format!("{:x}\r\n{done}\r\n0\r\n\r\n", done.len());
    stream.write_all(end.as_bytes()).await?;
    Ok(())
}
