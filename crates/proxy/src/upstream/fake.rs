//! Workers of tests: each replies by a script, without a socket.

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, response};
use kv_blocks::WorkerId;
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep};

use super::{
    failure::{BodyError, NotSent, SendFailure},
    message::{OutgoingRequest, SendFuture, Upstream, UpstreamReply},
    upstream_body::UpstreamBody,
};

/// One reply of a script.
#[derive(Debug)]
pub struct FakeReply {
    delay: Duration,
    result: Result<(response::Parts, ScriptedBody), SendFailure>,
}

impl FakeReply {
    /// Replies with a head and these pieces of the body. A piece that is an error breaks the reply
    /// off.
    pub fn pieces(
        head: Response<()>,
        pieces: impl IntoIterator<Item = Result<Bytes, &'static str>>,
    ) -> Self {
        let body = ScriptedBody {
            pieces: pieces.into_iter().collect(),
            pause: Duration::ZERO,
            pause_timer: None,
            never_ends: false,
            ending: Arc::default(),
        };
        Self {
            delay: Duration::ZERO,
            result: Ok((head.into_parts().0, body)),
        }
    }

    /// Replies with a status and a whole JSON body.
    pub fn json(status: u16, body: impl Into<Bytes>) -> Self {
        let head = Response::builder()
            .status(status)
            .header(http::header::CONTENT_TYPE, "application/json");
        // A status out of range becomes a 500, which a test notices.
        Self::pieces(head.body(()).unwrap_or_default(), [Ok(body.into())])
    }

    /// Replies with a stream of server-sent events.
    pub fn events(pieces: impl IntoIterator<Item = Result<Bytes, &'static str>>) -> Self {
        let mut head = Response::new(());
        head.headers_mut().insert(
            http::header::CONTENT_TYPE,
            http::HeaderValue::from_static("text/event-stream"),
        );
        Self::pieces(head, pieces)
    }

    /// Fails before a head.
    pub fn failure(failure: SendFailure) -> Self {
        Self {
            delay: Duration::ZERO,
            result: Err(failure),
        }
    }

    /// Waits before the head, or before the failure.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Waits before each piece but the first.
    #[must_use]
    pub fn paced(mut self, pause: Duration) -> Self {
        if let Ok((_, body)) = &mut self.result {
            body.pause = pause;
        }
        self
    }

    /// Sends nothing after the last piece, and does not end.
    #[must_use]
    pub fn unended(mut self) -> Self {
        if let Ok((_, body)) = &mut self.result {
            body.never_ends = true;
        }
        self
    }
}

/// What became of the connection of a scripted reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ending {
    #[default]
    Open,
    Released,
    Closed,
}

/// The body of a scripted reply.
#[derive(Debug)]
pub(super) struct ScriptedBody {
    pieces: VecDeque<Result<Bytes, &'static str>>,
    /// The time before each piece but the first.
    pause: Duration,
    pause_timer: Option<Pin<Box<Sleep>>>,
    never_ends: bool,
    ending: Arc<Mutex<Ending>>,
}

impl ScriptedBody {
    pub(super) fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let Some(pause_timer) = &mut self.pause_timer {
            ready!(pause_timer.as_mut().poll(cx));
            self.pause_timer = None;
        }
        match self.pieces.pop_front() {
            Some(piece) => {
                if !self.pause.is_zero() {
                    self.pause_timer = Some(Box::pin(sleep(self.pause)));
                }
                Poll::Ready(Some(piece.map_err(|why| BodyError(why.to_owned()))))
            }
            None if self.never_ends => Poll::Pending,
            None => Poll::Ready(None),
        }
    }

    pub(super) fn is_end(&self) -> bool {
        self.pieces.is_empty() && !self.never_ends
    }

    pub(super) fn announced(&self) -> Option<u64> {
        None
    }

    pub(super) fn release(&self) {
        *self.ending.lock() = Ending::Released;
    }

    pub(super) fn close(&self) {
        let mut ending = self.ending.lock();
        if *ending == Ending::Open {
            *ending = Ending::Closed;
        }
    }
}

impl Drop for ScriptedBody {
    fn drop(&mut self) {
        self.close();
    }
}

/// Workers that reply by scripts. A worker without a reply left refuses the connection.
#[derive(Debug, Default)]
pub struct FakeUpstream {
    scripts: Mutex<HashMap<WorkerId, VecDeque<FakeReply>>>,
    seen: Mutex<Vec<Request<Bytes>>>,
    endings: Mutex<Vec<Arc<Mutex<Ending>>>>,
}

impl FakeUpstream {
    /// Adds the next reply of a worker.
    pub fn script(&self, worker: WorkerId, reply: FakeReply) {
        self.scripts
            .lock()
            .entry(worker)
            .or_default()
            .push_back(reply);
    }

    /// Takes the requests that were sent, in their order.
    pub fn take_requests(&self) -> Vec<Request<Bytes>> {
        std::mem::take(&mut *self.seen.lock())
    }

    /// Returns the number of replies whose connection may carry another request.
    pub fn released(&self) -> usize {
        self.count(Ending::Released)
    }

    /// Returns the number of replies whose connection was closed before their end.
    pub fn closed(&self) -> usize {
        self.count(Ending::Closed)
    }

    fn count(&self, ending: Ending) -> usize {
        let endings = self.endings.lock();
        endings.iter().filter(|it| *it.lock() == ending).count()
    }
}

impl Upstream for FakeUpstream {
    fn send<'a>(&'a self, outgoing: OutgoingRequest<'a>) -> SendFuture<'a> {
        let worker = outgoing.worker;
        self.seen.lock().push(outgoing.request);
        let reply = self
            .scripts
            .lock()
            .get_mut(&worker)
            .and_then(VecDeque::pop_front);
        Box::pin(async move {
            let Some(FakeReply { delay, result }) = reply else {
                return Err(SendFailure::NotSent(NotSent::Refused));
            };
            tokio::time::sleep(delay).await;
            let (head, body) = result?;
            self.endings.lock().push(Arc::clone(&body.ending));
            Ok(UpstreamReply {
                head,
                body: UpstreamBody::scripted(body),
            })
        })
    }
}
