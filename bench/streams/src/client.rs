//! The clients: one connection per stream, all on one thread.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use crate::Load;

/// The streams begin one after the other over this time, for each thousand of them.
const RAMP: Duration = Duration::from_secs(1);
/// What stands before the time at which an event was sent.
const STAMP: &[u8] = b"\"content\":\"";

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Returns the microseconds since the first call.
pub(crate) fn now_us() -> u64 {
    u64::try_from(START.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// What the clients saw.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    pub(crate) events: u64,
    /// Of each event, the microseconds from the engine to the client.
    pub(crate) late: Vec<u64>,
    /// Of each event but the first of a stream, the microseconds since the one before.
    pub(crate) gaps: Vec<u64>,
    pub(crate) took: Duration,
}

/// Reads all streams of a load from this port.
pub(crate) fn run(port: u16, load: Load) -> Result<Samples> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let started = Instant::now();
        let mut all = Samples::default();
        let mut streams = JoinSet::new();
        let begins = RAMP / 1000;
        for number in 0..load.streams {
            let after = begins * u32::try_from(number).unwrap_or(u32::MAX);
            streams.spawn(async move {
                tokio::time::sleep(after).await;
                read_stream(port, load.prompt_bytes).await
            });
        }
        while let Some(stream) = streams.join_next().await {
            let stream = stream?.context("a stream did not arrive as it should")?;
            ensure!(
                stream.events == u64::from(load.events),
                "a stream has {} events",
                stream.events
            );
            all.events += stream.events;
            all.late.extend(stream.late);
            all.gaps.extend(stream.gaps);
        }
        all.took = started.elapsed();
        Ok(all)
    })
}

/// Sends one request and reads its stream to the end.
async fn read_stream(port: u16, prompt_bytes: usize) -> Result<Samples> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    let prompt = "What is a cog? ".repeat(prompt_bytes.div_ceil(15));
    let body = format!(
        r#"{{"model":"m","stream":true,"messages":[{{"role":"user","content":"{prompt}"}}]}}"#
    );
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let (mut samples, mut last) = (Samples::default(), None);
    let (mut chunks, mut received, mut text) = (Chunks::Head, Vec::new(), Vec::new());
    loop {
        ensure!(stream.read_buf(&mut received).await? > 0, "it was cut");
        let now = now_us();
        chunks.take(&mut received, &mut text)?;
        let mut read = 0;
        while let Some(at) = find(&text[read..], STAMP) {
            let stamp = read + at + STAMP.len();
            let Some(digits) = text.get(stamp..stamp + 16) else {
                break;
            };
            let sent: u64 = std::str::from_utf8(digits)?.parse()?;
            samples.events += 1;
            samples.late.push(now.saturating_sub(sent));
            samples
                .gaps
                .extend(last.map(|last| now.saturating_sub(last)));
            last = Some(now);
            read = stamp + 16;
        }
        if matches!(chunks, Chunks::End) {
            return Ok(samples);
        }
        // A stamp may arrive in two parts.
        let kept = text.len().saturating_sub(STAMP.len() + 16).max(read);
        text.drain(..kept);
    }
}

/// How far a chunked reply is read.
#[derive(Clone, Copy, Debug)]
enum Chunks {
    Head,
    /// At the line with a chunk's size.
    Size,
    /// The bytes of the chunk that are left, with the end of line behind them.
    Data(usize),
    End,
}

impl Chunks {
    /// Moves the body's bytes of `received` to `text`.
    fn take(&mut self, received: &mut Vec<u8>, text: &mut Vec<u8>) -> Result<()> {
        let mut read = 0;
        loop {
            let rest = &received[read..];
            match *self {
                Self::Head => match find(rest, b"\r\n\r\n") {
                    Some(end) => {
                        ensure!(rest.starts_with(b"HTTP/1.1 200"), "it is refused");
                        (*self, read) = (Self::Size, read + end + 4);
                    }
                    None => break,
                },
                Self::Size => match find(rest, b"\r\n") {
                    Some(end) => {
                        let digits = std::str::from_utf8(&rest[..end])?;
                        let size = usize::from_str_radix(digits, 16)?;
                        *self = match size {
                            0 => Self::End,
                            size => Self::Data(size + 2),
                        };
                        read += end + 2;
                    }
                    None => break,
                },
                Self::Data(left) => {
                    let taken = left.min(rest.len());
                    // The last two bytes are the end of line.
                    text.extend_from_slice(&rest[..taken.min(left.saturating_sub(2))]);
                    read += taken;
                    *self = match left - taken {
                        0 => Self::Size,
                        left => Self::Data(left),
                    };
                    if taken == 0 {
                        break;
                    }
                }
                Self::End => break,
            }
        }
        received.drain(..read);
        Ok(())
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}
