//! Streamed reply bodies, with injected faults.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, stream};

use crate::fault::InjectedFault;

use super::{
    ConnectionCut, SimApiError,
    reply::{ReplyFormat, RunningChoice, Usage},
};

/// Time for the data before a cut to be sent; without it the peer would receive less than the fault
/// promises.
const FLUSH: Duration = Duration::from_millis(5);

/// A reply as server-sent events.
pub(crate) struct SseReply {
    reply: Box<dyn ReplyFormat>,
    /// The running choices, each with whether it has begun; the first is the next one, so that the
    /// order of events is a function of the request.
    lines: VecDeque<(RunningChoice, bool)>,
    fault: Option<InjectedFault>,
    usage: Usage,
    queue: VecDeque<Bytes>,
    written: usize,
}

impl SseReply {
    pub(crate) fn new(
        reply: Box<dyn ReplyFormat>,
        lines: Vec<RunningChoice>,
        fault: Option<InjectedFault>,
    ) -> Self {
        Self {
            reply,
            lines: lines.into_iter().map(|line| (line, false)).collect(),
            fault,
            usage: Usage::default(),
            queue: VecDeque::new(),
            written: 0,
        }
    }

    pub(crate) fn chunks(
        self,
    ) -> impl Stream<Item = Result<Bytes, ConnectionCut>> + Send + 'static {
        stream::unfold(Some(self), |events| async move {
            let mut events = events?;
            match events.next().await {
                Some(Ok(event)) => Some((Ok(event), Some(events))),
                Some(Err(cut)) => Some((Err(cut), None)),
                None => None,
            }
        })
    }

    async fn next(&mut self) -> Option<Result<Bytes, ConnectionCut>> {
        while self.queue.is_empty() && !self.lines.is_empty() {
            if self.advance().await.is_err() {
                return Some(Err(self.cut().await));
            }
        }
        match self.fault {
            Some(InjectedFault::ResetMid(after)) if self.written >= after => {
                return Some(Err(self.cut().await));
            }
            Some(InjectedFault::StallMid(after)) if self.written >= after => {
                std::future::pending().await
            }
            Some(InjectedFault::ErrorMid(after)) if self.written >= after => {
                self.fault = None;
                self.discard();
                self.queue = self.reply.broken(&SimApiError::of_status(500)).into();
            }
            Some(InjectedFault::ShortBody) if self.lines.is_empty() && self.queue.len() <= 1 => {
                return Some(Err(self.cut().await));
            }
            _ => {}
        }
        let event = self.queue.pop_front()?;
        self.written += 1;
        Some(Ok(event))
    }

    /// Awaits one token and writes its events.
    async fn advance(&mut self) -> Result<(), ConnectionCut> {
        // It stays in place until the token arrives: dropping this future loses nothing.
        let Some((line, begun)) = self.lines.front_mut() else {
            return Ok(());
        };
        let rendered = line.generation.next().await.map_err(|_| ConnectionCut)?;
        self.usage.record(line, &rendered, !*begun);
        *begun = true;
        self.queue.extend(self.reply.token(line, &rendered));
        let Some(line) = self.lines.pop_front() else {
            return Ok(());
        };
        if rendered.ending.is_none() {
            self.lines.push_back(line);
        } else if self.lines.is_empty() {
            self.queue.extend(self.reply.end(self.usage));
            if self.fault != Some(InjectedFault::NoDone) {
                self.queue.push_back(self.reply.last());
            }
        }
        Ok(())
    }

    async fn cut(&mut self) -> ConnectionCut {
        self.discard();
        tokio::time::sleep(FLUSH).await;
        ConnectionCut
    }

    fn discard(&mut self) {
        for (line, _) in self.lines.drain(..) {
            line.generation.discard();
        }
    }
}

/// Returns a plain body that breaks off: its first `bytes`, then the fault.
pub(crate) fn broken_body(
    whole: Bytes,
    bytes: usize,
    then: BrokenEnd,
) -> impl Stream<Item = Result<Bytes, ConnectionCut>> + Send + 'static {
    let part = whole.slice(..bytes.min(whole.len()));
    stream::unfold(Some(part), move |part| async move {
        match part {
            Some(part) if !part.is_empty() => Some((Ok(part), Some(Bytes::new()))),
            _ => match then {
                BrokenEnd::Cut => {
                    tokio::time::sleep(FLUSH).await;
                    Some((Err(ConnectionCut), None))
                }
                BrokenEnd::Stall => std::future::pending().await,
            },
        }
    })
}

/// The end of a broken body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BrokenEnd {
    /// The connection is cut.
    Cut,
    /// The body never ends.
    Stall,
}
