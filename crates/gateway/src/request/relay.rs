//! Relay: the worker's bytes to the client, unchanged.
//!
//! An event stream is forwarded in whole events: a partial event waits for its rest, for 50 ms at
//! most. A stream that breaks, stalls or runs too long ends with one error event and an unclean
//! close, so that neither an SSE reader nor an HTTP reader can take it for complete.
//!
//! **Invariant**: the client gets a prefix of the worker's bytes (or of their translation), cut at
//! an event boundary, plus at most one error event of the router. Dropping the body (the client
//! hung up) drops the worker's connection with it.

mod limit_timer;
mod reply_pace;
mod reply_tail;
mod sse_tracker;
#[cfg(test)]
mod tests;
mod translation;

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use config::RequestSection;
use dialect::{ApiError, EndingTracker, ErrorCode, SseEvent, StreamChunk, may_have_facts};
use fleet::FailureKind;
use http_body::{Body, Frame, SizeHint};
use kv_blocks::Moment;
use net::Clock;
use proxy::{AbortSignal, UpstreamBody};
use tokio::time::{Sleep, sleep};

use self::{
    limit_timer::LimitTimer, reply_pace::ReplyPace, reply_tail::ReplyTail, sse_tracker::SseTracker,
    translation::StreamTranslation,
};
use super::{dispatch::BodyKind, record::RequestGuard, translate::StreamTranslator};

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
    pace: ReplyPace,
    timer: LimitTimer,
    /// Resolves at the end of the drain time.
    abort: AbortSignal,
    events: Option<SseTracker>,
    translation: Option<StreamTranslation>,
    /// The end of a long JSON body, which may have its counts.
    tail: Option<Box<ReplyTail>>,
    /// Complete bytes that can be sent now.
    ready: VecDeque<Bytes>,
    end: RelayEnd,
    guard: Box<RequestGuard>,
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

/// The reason why the router cut a running reply.
#[derive(Clone, Copy, Debug)]
enum CutReason {
    Broken,
    Idle,
    TooLong,
    GoingDown,
    Unfinished,
    /// An error event has a text that is not for clients.
    Withheld,
}

impl ReplyRelay {
    pub(crate) fn new(start: ReplyStart, guard: Box<RequestGuard>) -> Self {
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
            pace: ReplyPace::new(now),
            timer: LimitTimer::new(now + limits.stream_idle_timeout, now),
            abort,
            events: (kind == BodyKind::Events)
                .then(|| SseTracker::new(guard.expected_ending().and_then(EndingTracker::of))),
            translation: stream.map(StreamTranslation::new),
            tail: ReplyTail::of(kind, &first),
            ready: VecDeque::new(),
            end: RelayEnd::Open,
            clock,
            guard,
        };
        relay.take_in(first, now);
        relay
    }

    /// Waits for bytes of the worker, for the end of its reply or of a time limit, or for the end of
    /// the drain time, and takes in what came.
    fn poll_upstream(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.upstream.poll_data(cx) {
            Poll::Ready(Some(Ok(data))) => {
                let now = self.clock.now();
                if self.is_too_long(now) {
                    self.cut(CutReason::TooLong);
                    return Poll::Ready(());
                }
                self.take_in(data, now);
                // The end of most bodies is known with their last bytes: it leaves with them.
                if matches!(self.end, RelayEnd::Open) && self.upstream.is_end() {
                    self.ended();
                }
            }
            Poll::Ready(Some(Err(error))) => {
                tracing::debug!(%error, "a worker's reply broke off");
                self.cut(CutReason::Broken);
            }
            Poll::Ready(None) => self.ended(),
            Poll::Pending => {
                self.pace.record_wait();
                if Pin::new(&mut self.abort).poll(cx).is_ready() {
                    self.cut(CutReason::GoingDown);
                    return Poll::Ready(());
                }
                let next = self.next_limit();
                ready!(self.timer.poll_until(cx, next, &self.clock));
                self.handle_expired_limit();
            }
        }
        Poll::Ready(())
    }

    /// Sorts arriving bytes into complete ones and those of a partial event.
    fn take_in(&mut self, data: Bytes, now: Moment) {
        self.pace.record_bytes(now);
        if self.translation.is_some() {
            return self.translate(&data);
        }
        let Some(events) = &mut self.events else {
            if let Some(tail) = &mut self.tail {
                tail.push(&data);
            }
            self.ready.push_back(data);
            return;
        };
        let (guard, ending) = (&mut self.guard, &mut events.ending);
        let mut withheld = false;
        let pushed = events
            .splitter
            .push(&data, |event| withheld |= read_event(guard, ending, event));
        if withheld {
            return self.cut(CutReason::Withheld);
        }
        events.sort(data, pushed.complete, now, &mut self.ready);
    }

    /// Returns when the next limit ends that does not depend on the worker.
    fn next_limit(&self) -> Moment {
        let idle = self.pace.last_byte + self.limits.stream_idle_timeout;
        let total = self.pace.started + self.limits.stream_max_duration;
        let partial = self.events.as_ref().and_then(SseTracker::waits_until);
        idle.min(total).min(partial.unwrap_or(idle))
    }

    fn is_too_long(&self, now: Moment) -> bool {
        now.since(self.pace.started) >= self.limits.stream_max_duration
    }

    /// Handles the limit that has ended.
    fn handle_expired_limit(&mut self) {
        let now = self.clock.now();
        if self.is_too_long(now) {
            self.cut(CutReason::TooLong);
        } else if now.since(self.pace.last_byte) >= self.limits.stream_idle_timeout {
            self.cut(CutReason::Idle);
        } else if let Some(events) = &mut self.events {
            events.let_go(&mut self.ready);
        }
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
            CutReason::Withheld => (
                ErrorCode::StreamInterrupted,
                "the worker reported an error in its reply, and its own message is in its log: what came before this event is incomplete",
                None,
            ),
        };
        self.guard.record_cut(code, kind);
        if let Some(events) = &mut self.events {
            let separator = events.drop_partial();
            let error = self
                .guard
                .error_shape()
                .stream_event(&ApiError::new(code, message), self.guard.request_id());
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
            let mut withheld = false;
            events
                .splitter
                .finish(|event| withheld |= read_event(guard, ending, event));
            if withheld {
                return self.cut(CutReason::Withheld);
            }
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
        if let Some(usage) = self.tail.as_ref().and_then(|tail| tail.usage()) {
            self.guard.record_usage(usage);
        }
        self.finished();
    }

    /// Releases the worker's connection for another request.
    fn finished(&mut self) {
        if self.pace.is_held_up() {
            self.guard.record_held_up();
        }
        self.upstream.release();
        self.end = RelayEnd::Clean;
    }
}

/// Reads the few facts that accounting needs from one event. Most events carry none, and are not
/// parsed. Returns whether it is an error whose text is not for clients.
fn read_event(
    guard: &mut RequestGuard,
    ending: &mut Option<EndingTracker>,
    event: SseEvent<'_>,
) -> bool {
    match event {
        SseEvent::Data { data, .. } => {
            guard.count_event(&data);
            let chunk = read_facts(&data);
            if let Some(ending) = ending {
                ending.observe_event(&data, chunk.as_ref());
            }
            chunk.is_some_and(|chunk| record_facts(guard, &chunk))
        }
        SseEvent::Oversized => {
            if let Some(ending) = ending {
                ending.skip_event();
            }
            false
        }
    }
}

/// Records the facts of one event. Returns whether it is an error whose text is not for clients.
fn record_facts(guard: &mut RequestGuard, chunk: &StreamChunk<'_>) -> bool {
    guard.record_chunk(chunk);
    let detail = chunk.error_detail();
    if let Some(detail) = detail {
        let (request_id, why) = (guard.request_id(), detail.as_str());
        tracing::debug!(%request_id, why, "the text of a worker's error event is withheld");
    }
    detail.is_some()
}

/// Reads the facts of one event, if it can carry any.
fn read_facts(data: &[u8]) -> Option<StreamChunk<'_>> {
    may_have_facts(data)
        .then(|| StreamChunk::read(data))
        .flatten()
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
