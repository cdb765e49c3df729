//! One client's connection: request after request, until one of the two sides closes it.

use std::{io, time::Duration};

use anyhow::Result;
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    time::{Instant, sleep_until},
};

use crate::{
    EngineState,
    replies::{self, CompletionRequest},
    request::read_request,
};

/// Whether the client still reads the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Reads,
    Left,
}

pub(crate) async fn serve(mut stream: TcpStream, state: &EngineState, index: usize) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(64 * 1024);
    while let Some(request) = read_request(&mut stream, &mut buffer).await? {
        if request.path.split('?').next() == Some("/v1/chat/completions") {
            let count = &state.requests[index];
            count.set(count.get() + 1);
            let wanted = CompletionRequest::of(&request.body);
            if complete(&mut stream, state, &wanted).await? == Client::Left {
                return Ok(());
            }
        } else {
            let reply = replies::other(state, &request.path, &request.body);
            stream.write_all(&reply).await?;
        }
        if !request.keeps_alive {
            break;
        }
    }
    Ok(())
}

async fn complete(
    stream: &mut TcpStream,
    state: &EngineState,
    wanted: &CompletionRequest,
) -> Result<Client> {
    let delay_us = state.delay_us.get();
    if wanted.streamed {
        return stream_tokens(stream, delay_us, wanted.tokens).await;
    }
    let wait = Duration::from_micros(delay_us.saturating_mul(wanted.tokens));
    if !wait.is_zero() && wait_until(stream, Instant::now() + wait).await == Client::Left {
        return Ok(Client::Left);
    }
    stream
        .write_all(&replies::completion(wanted.tokens))
        .await?;
    Ok(Client::Reads)
}

/// Writes each token as one event with one write, the first at once, the others `delay_us` apart.
async fn stream_tokens(stream: &mut TcpStream, delay_us: u64, tokens: u64) -> Result<Client> {
    let token = replies::event(" tok", "null");
    let first = [replies::STREAM_HEAD, &token].concat();
    let start = Instant::now();
    for number in 0..tokens {
        if number > 0 && delay_us > 0 {
            let due = start + Duration::from_micros(delay_us.saturating_mul(number));
            if wait_until(stream, due).await == Client::Left {
                return Ok(Client::Left);
            }
        } else {
            // The streams take turns, as in an engine that computes them as one batch.
            tokio::task::yield_now().await;
        }
        stream
            .write_all(if number == 0 { &first } else { &token })
            .await?;
    }
    let end = [&replies::event("", "\"length\""), replies::STREAM_END].concat();
    stream.write_all(&end).await?;
    Ok(Client::Reads)
}

/// Waits until `due` or until the client closes the connection.
async fn wait_until(stream: &TcpStream, due: Instant) -> Client {
    loop {
        tokio::select! {
            biased;
            ready = stream.readable() => {
                let mut byte = [0];
                match ready.and_then(|()| stream.try_read(&mut byte)) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    // A client that sends its next request before the reply is not expected either.
                    Ok(_) | Err(_) => return Client::Left,
                }
            }
            () = sleep_until(due) => return Client::Reads,
        }
    }
}
