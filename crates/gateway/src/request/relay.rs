//! Relay: the worker's bytes to the client, unchanged.
//!
//! An event stream is forwarded in whole events: a partial event waits for its rest, for 50 ms at
//! most. A stream that breaks, stalls or runs too long ends with one error event and an unclean
//! close, so that neither an SSE reader nor an HTTP reader can take it for complete.
//!
//! **Invariant**: the client gets a prefix of the worker's bytes (or of their translation), cut at
//! an event boundary, plus at most one error event of the router. Dropping the body (the client
//! hung up) drops the worker's connection with it.

#[cfg(test)]
mod tests;
mod translation;

use std::{
    cell::LazyCell,
    collections::VecDeque,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use config::RequestSection;
use dialect::{ApiError, EndingTracker, ErrorCode, SseEvent, SseSplitter, StreamChunk, is_done};
use fleet::FailureKind;
use http_body::{Body, Frame, SizeHint};
use kv_blocks::Moment;
use net::Clock;
use proxy::{AbortSignal, UpstreamBody};
use tokio::time::{Sleep, sleep};

use self::translation::StreamTranslation;
use super::{dispatch::BodyKind, record::RequestGuard, translate::StreamTranslator};

/// Longest wait for the rest of a partial event.
const PARTIAL_EVENT_WAIT: Duration = Duration::from_millis(50);
/// Longest partial event, bytes.
const MAX_PARTIAL_EVENT_BYTES: usize = 1024 * 1024;
/// Pause between the error event and the unclean close: the connection flushes meanwhile.
const FLUSH: Duration = Duration::from_millis(20);

/// The parts of a reply that has begun.
#[derive(Debug)]
pub(crate) struct ReplyStart {
    pub(crate) first: Bytes,
    pub(crate) rest: UpstreamBody,
    pub(crate) kind: BodyKind,
    pub(crate) limits: RequestSection,
    pub(crate) clock: Clock,
    pub(crate) abort: AbortSignal,
    /// Translates the stream's events into the client's dialect.
    pub(crate) stream: Option<StreamTranslator>,
}

/// A reply that is being relayed. It owns everything that the request still holds: the worker's
/// connection, the load, the receipt.
#[derive(Debug)]
pub(crate) struct ReplyRelay {
    upstream: UpstreamBody,
    clock: Clock,
    limits: RequestSection,
    started: Moment,
    /// Fires when no byte arrived within the idle limit, or when a partial event has waited long
    /// enough.
    timer: Pin<Box<Sleep>>,
    last_byte: Moment,
    /// Resolves at the end of the drain time.
    abort: AbortSignal,
    events: Option<SseTracker>,
    translation: Option<StreamTranslation>,
    /// Complete bytes that can be sent now.
    ready: VecDeque<Bytes>,
    end: RelayEnd,
    guard: RequestGuard,
}

#[derive(Debug)]
enum RelayEnd {
    /// More bytes may arrive.
    Open,
    /// The worker closed its reply properly.
    Clean,
    /// The error event is sent; the pause before the unclean close runs.
    Breaking(Pin<Box<Sleep>>),
    /// The reply has ended.
    Over,
}

/// The state of an event stream.
#[derive(Debug)]
struct SseTracker {
    splitter: SseSplitter,
    /// `None`: the stream has no end marker.
    ending: Option<EndingTracker>,
    partial_event: Vec<Bytes>,
    partial_bytes: usize,
    partial_since: Option<Moment>,
    /// A part of an event is already sent.
    part_out: bool,
}

/// The reason why the router cut a running reply.
#[derive(Clone, Copy, Debug)]
enum CutReason {
    Broken,
    Idle,
    TooLong,
    GoingDown,
    Unfinished,
}

impl ReplyRelay {
    pub(crate) fn new(start: ReplyStart, guard: RequestGuard) -> Self {
        let ReplyStart {
            first,
            rest,
            kind,
            limits,
            clock,
            abort,
            stream,
        } = start;
        let now = clock.now();
        let mut relay = Self {
            upstream: rest,
            limits,
            started: now,
            timer: Box::pin(sleep(limits.stream_idle_timeout)),
            last_byte: now,
            abort,
            events: (kind == BodyKind::Events)
                .then(|| SseTracker::new(guard.expected_ending().and_then(EndingTracker::of))),
            translation: stream.map(StreamTranslation::new),
            ready: VecDeque::new(),
            end: RelayEnd::Open,
            clock,
            guard,
        };
        relay.take_in(first);
        relay
    }

    /// Waits for bytes of the worker, for the end of its reply or of a time limit, or for the end of
    /// the drain time, and takes in what came.
    fn poll_upstream(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.upstream.poll_data(cx) {
            Poll::Ready(Some(Ok(data))) => {
                self.take_in(data);
                // A body of announced length is not polled again after its last byte: the end is
                // noticed here.
                if self.upstream.is_end() {
                    self.ended();
                }
            }
            Poll::Ready(Some(Err(error))) => {
                tracing::debug!(%error, "a worker's reply broke off");
                self.cut(CutReason::Broken);
            }
            Poll::Ready(None) => self.ended(),
            Poll::Pending => {
                if Pin::new(&mut self.abort).poll(cx).is_ready() {
                    self.cut(CutReason::GoingDown);
                    return Poll::Ready(());
                }
                ready!(self.arm(cx));
                if !self.handle_expired_limits() {
                    // The timer fired early by the timer's granularity: arm it again.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(())
    }

    /// Sorts arriving bytes into complete ones and those of a partial event.
    fn take_in(&mut self, data: Bytes) {
        self.last_byte = self.clock.now();
        if self.translation.is_some() {
            return self.translate(&data);
        }
        let Some(events) = &mut self.events else {
            self.ready.push_back(data);
            return;
        };
        let (guard, ending) = (&mut self.guard, &mut events.ending);
        let pushed = events
            .splitter
            .push(&data, |event| read_event(guard, ending, event));
        events.sort(data, pushed.complete, self.last_byte, &mut self.ready);
    }

    /// Arms the timer for the next event that does not depend on the worker.
    fn arm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.clock.now();
        let (idle, total) = (
            self.limits.stream_idle_timeout,
            self.limits.stream_max_duration,
        );
        let idle = idle.saturating_sub(now.since(self.last_byte));
        let total = total.saturating_sub(now.since(self.started));
        let partial = self.events.as_ref().and_then(|events| events.partial_since);
        let partial = partial.map_or(Duration::MAX, |since| {
            PARTIAL_EVENT_WAIT.saturating_sub(now.since(since))
        });
        let next = idle.min(total).min(partial);
        if next.is_zero() {
            // A timer for this very moment fires at the next tick and would be armed again there:
            // it would never fire.
            return Poll::Ready(());
        }
        self.timer
            .as_mut()
            .reset(tokio::time::Instant::now() + next);
        self.timer.as_mut().poll(cx)
    }

    fn is_too_long(&self) -> bool {
        self.clock.now().since(self.started) >= self.limits.stream_max_duration
    }

    /// Handles the limits that have expired; returns whether there is something to do now.
    fn handle_expired_limits(&mut self) -> bool {
        let now = self.clock.now();
        if self.is_too_long() {
            return true;
        }
        if now.since(self.last_byte) >= self.limits.stream_idle_timeout {
            self.cut(CutReason::Idle);
            return true;
        }
        if let Some(events) = &mut self.events
            && events
                .partial_since
                .is_some_and(|since| now.since(since) >= PARTIAL_EVENT_WAIT)
        {
            events.let_go(&mut self.ready);
            return true;
        }
        false
    }

    /// Ends the reply early: an error event where the framing allows one, then an unclean close.
    fn cut(&mut self, why: CutReason) {
        // Closes the worker's connection, so that it stops computing for this request.
        self.upstream.close();
        if self
            .translation
            .as_ref()
            .is_some_and(StreamTranslation::is_whole)
        {
            self.end = RelayEnd::Clean;
            return;
        }
        let (code, message, kind) = match why {
            CutReason::Broken => (
                ErrorCode::StreamInterrupted,
                "the worker's reply broke off: what came before this event is incomplete",
                Some(FailureKind::MidStream),
            ),
            CutReason::Idle => (
                ErrorCode::StreamIdleTimeout,
                "the worker sent nothing for request.stream_idle_timeout: what came before this event is incomplete",
                Some(FailureKind::MidStream),
            ),
            CutReason::TooLong => (
                ErrorCode::StreamTooLong,
                "the reply ran longer than request.stream_max_duration: what came before this event is incomplete",
                // A limit of the router: the worker is not at fault.
                None,
            ),
            CutReason::GoingDown => (
                ErrorCode::StreamInterrupted,
                "the router is going down: what came before this event is incomplete",
                None,
            ),
            CutReason::Unfinished => (
                ErrorCode::StreamInterrupted,
                "the worker's reply ended without saying that it is whole: what came before this event may be incomplete",
                Some(FailureKind::Incomplete),
            ),
        };
        self.guard.record_cut(code, kind);
        if let Some(events) = &mut self.events {
            // An event that will never be whole is useless. If a part of it is already sent, it is
            // closed first, so that the error is an event of its own.
            events.partial_event.clear();
            events.partial_since = None;
            let error = self
                .guard
                .error_shape()
                .stream_event(&ApiError::new(code, message), self.guard.request_id());
            let separator: &[u8] = if events.part_out { b"\n\n" } else { b"" };
            self.ready.push_back([separator, &error].concat().into());
        }
        self.end = RelayEnd::Breaking(Box::pin(sleep(FLUSH)));
    }

    fn ended(&mut self) {
        if self.translation.is_some() {
            return self.finish();
        }
        if let Some(events) = &mut self.events {
            let (guard, ending) = (&mut self.guard, &mut events.ending);
            events
                .splitter
                .finish(|event| read_event(guard, ending, event));
            let unfinished = ending.as_ref().is_some_and(|ending| !ending.is_complete())
                && guard.has_no_in_band_error();
            if unfinished && self.limits.strict_stream_completion {
                return self.cut(CutReason::Unfinished);
            }
            events.let_go(&mut self.ready);
            if unfinished {
                guard.record_incomplete();
            }
        }
        self.finished();
    }

    /// Releases the worker's connection for another request.
    fn finished(&mut self) {
        self.upstream.release();
        self.end = RelayEnd::Clean;
    }
}

/// Reads one event. Engines send an empty stop reason in every chunk of a chat, so each chunk is
/// parsed once for both purposes.
fn read_event(guard: &mut RequestGuard, ending: &mut Option<EndingTracker>, event: SseEvent<'_>) {
    match event {
        SseEvent::Data { data, .. } => {
            let chunk = LazyCell::new(|| StreamChunk::read(&data));
            if let Some(ending) = ending {
                ending.observe_event(&data, || chunk.as_ref());
            }
            if has_facts(guard, &data)
                && let Some(chunk) = &*chunk
            {
                guard.record_chunk(chunk);
            }
        }
        SseEvent::Oversized => {
            if let Some(ending) = ending {
                ending.skip_event();
            }
        }
    }
}

/// Reads the few facts that accounting needs from one event.
fn read_data(guard: &mut RequestGuard, data: &[u8]) {
    if has_facts(guard, data)
        && let Some(chunk) = StreamChunk::read(data)
    {
        guard.record_chunk(&chunk);
    }
}

/// Returns whether an event may contain such a fact.
fn has_facts(guard: &RequestGuard, data: &[u8]) -> bool {
    let contains = |key: &[u8]| data.windows(key.len()).any(|window| window == key);
    let has_result =
        || contains(b"\"usage\"") || contains(b"finish_reason") || contains(b"\"error\"");
    let begins = || guard.stores_response() && contains(b"response.created");
    !is_done(data) && (has_result() || begins())
}

impl SseTracker {
    fn new(ending: Option<EndingTracker>) -> Self {
        let splitter = SseSplitter::new();
        Self {
            splitter,
            ending,
            partial_event: Vec::new(),
            partial_bytes: 0,
            partial_since: None,
            part_out: false,
        }
    }

    /// Sorts `data`: its first `complete` bytes end whole events, the rest waits.
    fn sort(&mut self, mut data: Bytes, complete: usize, now: Moment, ready: &mut VecDeque<Bytes>) {
        if complete > 0 {
            ready.extend(self.partial_event.drain(..));
            self.partial_bytes = 0;
            self.partial_since = None;
            self.part_out = false;
            ready.push_back(data.split_to(complete));
        }
        if data.is_empty() {
            return;
        }
        self.partial_bytes += data.len();
        self.partial_event.push(data);
        self.partial_since.get_or_insert(now);
        if self.partial_bytes > MAX_PARTIAL_EVENT_BYTES {
            self.let_go(ready);
        }
    }

    /// Stops waiting for the rest of an event.
    fn let_go(&mut self, ready: &mut VecDeque<Bytes>) {
        self.part_out |= !self.partial_event.is_empty();
        ready.extend(self.partial_event.drain(..));
        self.partial_bytes = 0;
        self.partial_since = None;
    }
}

impl Body for ReplyRelay {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let relay = self.get_mut();
        loop {
            if let Some(bytes) = relay.ready.pop_front() {
                if relay.ready.is_empty() && matches!(relay.end, RelayEnd::Clean) {
                    relay.end = RelayEnd::Over;
                    relay.guard.complete();
                }
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if matches!(relay.end, RelayEnd::Open) && relay.is_too_long() {
                relay.cut(CutReason::TooLong);
                continue;
            }
            match &mut relay.end {
                RelayEnd::Open => {}
                RelayEnd::Clean => {
                    relay.end = RelayEnd::Over;
                    relay.guard.complete();
                    return Poll::Ready(None);
                }
                RelayEnd::Breaking(pause) => {
                    ready!(pause.as_mut().poll(cx));
                    relay.end = RelayEnd::Over;
                    return Poll::Ready(Some(Err(io::Error::other(
                        "the worker's reply broke off",
                    ))));
                }
                RelayEnd::Over => return Poll::Ready(None),
            }
            ready!(relay.poll_upstream(cx));
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.end, RelayEnd::Over) && self.ready.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::default();
        // A length that the worker announces, and that frames its reply, is announced to the client
        // too. An event stream may grow by an error event of the router.
        if let (None, Some(left)) = (&self.events, self.upstream.announced()) {
            hint.set_exact(
                self.ready
                    .iter()
                    .map(|bytes| bytes.len() as u64)
                    .sum::<u64>()
                    + left,
            );
        }
        hint
    }
}
