//! A proxy in front of a NATS server that stops at a chosen message, or is slow.
//!
//! It reads the protocol as far as messages need it: a line, and behind the lines of a message as
//! many bytes as its last number says.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use crate::{harness::Stopwatch, nats_server::NatsServer};

/// Frames of one direction that a delay holds back.
const DELAYED: usize = 4_096;
/// Longest wait for the message at which the proxy stops.
const PATIENCE: Duration = Duration::from_secs(120);

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    ToServer,
    ToRouter,
}

/// How much of the message is still forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessagePart {
    Nothing,
    Half,
    All,
}

/// The message after which nothing is forwarded any more, in either direction.
#[derive(Clone, Debug)]
pub(super) struct StopAt {
    pub(super) direction: Direction,
    /// Part of its subject.
    pub(super) subject: String,
    /// 1: the first message with it.
    pub(super) number: usize,
    pub(super) forwarded: MessagePart,
}

/// The proxy; dropping it ends its connections.
pub(super) struct BusProxy {
    address: String,
    state: Arc<ProxyState>,
}

#[derive(Default)]
struct ProxyState {
    upstream: String,
    rules: Mutex<Rules>,
    changed: Condvar,
    connections: Mutex<Vec<TcpStream>>,
}

#[derive(Default)]
struct Rules {
    stop_at: Option<StopAt>,
    matched: usize,
    is_stopped: bool,
    delay: Duration,
    bytes_per_second: Option<u32>,
    has_ended: bool,
}

impl BusProxy {
    pub(super) fn start(server: &NatsServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let upstream = server.url().replace("nats://", "");
        let state = Arc::new(ProxyState {
            upstream,
            ..ProxyState::default()
        });
        let accepting = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if accepting.rules.lock().unwrap().has_ended {
                    return;
                }
                // The server may be down.
                if let Ok(server) = TcpStream::connect(&accepting.upstream) {
                    connect(&accepting, &client, &server);
                }
            }
        });
        Self { address, state }
    }

    pub(super) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Stops at this message, counted from now on.
    pub(super) fn stop_at(&self, stop_at: StopAt) {
        let mut rules = self.state.rules.lock().unwrap();
        rules.matched = 0;
        rules.stop_at = Some(stop_at);
    }

    /// Waits until the message has come.
    pub(super) fn until_stopped(&self) {
        let rules = self.state.rules.lock().unwrap();
        let waits = |rules: &mut Rules| !rules.is_stopped;
        let (rules, waited) = self
            .state
            .changed
            .wait_timeout_while(rules, PATIENCE, waits)
            .unwrap();
        assert!(!waited.timed_out(), "{:?} never came", rules.stop_at);
    }

    /// Delays every message of both directions, and lets at most so many bytes a second through.
    pub(super) fn slow_down(&self, delay: Duration, bytes_per_second: Option<u32>) {
        let mut rules = self.state.rules.lock().unwrap();
        rules.delay = delay;
        rules.bytes_per_second = bytes_per_second;
    }
}

impl Drop for BusProxy {
    fn drop(&mut self) {
        self.state.rules.lock().unwrap().has_ended = true;
        self.state.changed.notify_all();
        for connection in self.state.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
        let _woken = TcpStream::connect(&self.address);
    }
}

fn connect(state: &Arc<ProxyState>, client: &TcpStream, server: &TcpStream) {
    let copy = |stream: &TcpStream| stream.try_clone().unwrap();
    state
        .connections
        .lock()
        .unwrap()
        .extend([copy(client), copy(server)]);
    for (direction, from, to) in [
        (Direction::ToServer, client, server),
        (Direction::ToRouter, server, client),
    ] {
        // A full queue makes the reader wait, and with it the sender.
        let (sender, frames) = sync_channel(DELAYED);
        let (from, to, state) = (copy(from), copy(to), Arc::clone(state));
        thread::spawn(move || read(&state, direction, from, &sender));
        thread::spawn(move || write(&frames, to));
    }
}

/// A frame, and when it may be forwarded.
type DelayedFrame = (Stopwatch, Duration, Vec<u8>);

fn read(
    state: &ProxyState,
    direction: Direction,
    from: TcpStream,
    frames: &SyncSender<DelayedFrame>,
) {
    let mut from = BufReader::new(from);
    while let Some(frame) = next_frame(&mut from) {
        let Some((delay, frame)) = pass(state, direction, frame) else {
            return;
        };
        if frames.send((Stopwatch::start(), delay, frame)).is_err() {
            return;
        }
    }
}

/// Applies the rules to a frame; returns its delay and what of it is forwarded, or `None` at the
/// end of the proxy.
fn pass(
    state: &ProxyState,
    direction: Direction,
    mut frame: Vec<u8>,
) -> Option<(Duration, Vec<u8>)> {
    let mut rules = state.rules.lock().unwrap();
    if rules.is_stopped {
        rules = state
            .changed
            .wait_while(rules, |rules| rules.is_stopped && !rules.has_ended)
            .unwrap();
    }
    if rules.has_ended {
        return None;
    }
    if let Some(stop_at) = rules.stop_at.clone()
        && stop_at.direction == direction
        && subject(&frame).is_some_and(|subject| subject.contains(&stop_at.subject))
    {
        rules.matched += 1;
        if rules.matched == stop_at.number {
            rules.is_stopped = true;
            state.changed.notify_all();
            frame.truncate(match stop_at.forwarded {
                MessagePart::Nothing => 0,
                MessagePart::Half => frame.len() / 2,
                MessagePart::All => frame.len(),
            });
        }
    }
    let (delay, rate) = (rules.delay, rules.bytes_per_second);
    drop(rules);
    if let (Some(rate), Ok(bytes)) = (rate, u32::try_from(frame.len())) {
        thread::sleep(Duration::from_secs(1) * bytes / rate);
    }
    Some((delay, frame))
}

fn write(frames: &Receiver<DelayedFrame>, mut to: TcpStream) {
    for (read_at, delay, frame) in frames {
        thread::sleep(delay.saturating_sub(read_at.elapsed()));
        if to.write_all(&frame).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Reads a line, and the payload that belongs to it.
fn next_frame(from: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut frame = Vec::new();
    if from.read_until(b'\n', &mut frame).ok()? == 0 {
        return None;
    }
    if subject(&frame).is_some() {
        let line = String::from_utf8_lossy(&frame);
        let length: u64 = line.split_whitespace().last()?.parse().ok()?;
        let whole = frame.len() as u64 + length + 2;
        from.take(length + 2).read_to_end(&mut frame).ok()?;
        if (frame.len() as u64) < whole {
            return None;
        }
    }
    Some(frame)
}

/// Returns the subject of a message; `None` for every other line.
fn subject(frame: &[u8]) -> Option<String> {
    let line = frame.split(|byte| *byte == b'\r').next()?;
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let is_message = ["PUB", "HPUB", "MSG", "HMSG"].contains(&words.next()?);
    is_message.then(|| words.next().map(str::to_owned))?
}
