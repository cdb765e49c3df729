//! Copies a reply that is being relayed, to cache it if the client gets all of it.
//!
//! The bytes are copied into a separate buffer: short slices, such as a token's, would each keep a
//! whole socket read buffer alive. [`CacheFiller`] assembles and stores them in the background, so
//! that a stream never waits for it.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use dialect::{Dialect, RequestKey};
use http::{HeaderMap, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use resilience::BytePermit;

use super::{CacheFiller, PendingFill, SimilarQuery, StoredForm, WholeReply};
use crate::{CacheGeneration, CacheScope, ResponseCache};

const DONE: &[u8] = b"data: [DONE]";

/// The cache fill of one request.
#[derive(Debug)]
pub struct ReplyFill {
    cache_filler: Arc<CacheFiller>,
    key: RequestKey,
    scope: CacheScope,
    dialect: Dialect,
    generation: CacheGeneration,
    most_whole: usize,
    most_stream: usize,
    similar_query: Option<SimilarQuery>,
}

impl ReplyFill {
    /// Begins it before the request's lookup: no clear of the cache from then on is undone by it.
    pub fn new(
        filler: &Arc<CacheFiller>,
        cache: &ResponseCache,
        dialect: Dialect,
        key: RequestKey,
        scope: CacheScope,
    ) -> Self {
        let settings = cache.settings();
        Self {
            cache_filler: Arc::clone(filler),
            key,
            scope,
            dialect,
            generation: cache.generation(),
            most_whole: settings.max_response_size,
            most_stream: settings.max_stream_buffer_size,
            similar_query: None,
        }
    }

    /// Sets the entry under which a similarity lookup finds the reply.
    #[must_use]
    pub fn with_similarity(self, similar_query: Option<SimilarQuery>) -> Self {
        Self {
            similar_query,
            ..self
        }
    }

    /// Wraps the reply's body, by `wrap`, if it may be stored. `good`: set to whether the reply was
    /// whole and correct, at the latest when its body is dropped.
    pub fn watch<B: Body>(
        self,
        response: Response<B>,
        good: Arc<OnceLock<bool>>,
        wrap: impl FnOnce(FillingBody<B>) -> B,
    ) -> Response<B> {
        let Some(form) = form(self.dialect, response.status(), response.headers()) else {
            return response;
        };
        let most = match form {
            StoredForm::Whole => self.most_whole,
            StoredForm::Stream => self.most_stream,
        };
        if response.body().size_hint().lower() > most as u64 {
            return response;
        }
        let permit = self.cache_filler.fill_permit();
        let buffered = BufferedReply {
            fill: self,
            form,
            outcome: good,
            body: Vec::new(),
            permit,
            most,
            pending_fill: None,
        };
        response.map(|inner| {
            wrap(FillingBody {
                inner,
                reply: Some(buffered),
            })
        })
    }
}

/// Returns `None` for a reply that is not cached.
fn form(dialect: Dialect, status: StatusCode, head: &HeaderMap) -> Option<StoredForm> {
    if status != StatusCode::OK || head.contains_key(header::CONTENT_ENCODING) {
        return None;
    }
    let kind = head.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("text/event-stream") {
        return (dialect != Dialect::Messages).then_some(StoredForm::Stream);
    }
    kind.eq_ignore_ascii_case("application/json")
        .then_some(StoredForm::Whole)
}

/// The body of a reply that may be cached.
pub struct FillingBody<B> {
    inner: B,
    /// `None`: it is not cached.
    reply: Option<BufferedReply>,
}

struct BufferedReply {
    fill: ReplyFill,
    form: StoredForm,
    outcome: Arc<OnceLock<bool>>,
    body: Vec<u8>,
    /// `body`'s share of the byte budget.
    permit: BytePermit,
    most: usize,
    pending_fill: Option<PendingFill>,
}

impl<B: Default> FillingBody<B> {
    fn passed(&mut self, data: &Bytes) {
        let Some(buffered) = &mut self.reply else {
            return;
        };
        if buffered.body.len() + data.len() > buffered.most || !buffered.permit.try_grow(data.len())
        {
            self.reply = None;
            return;
        }
        buffered.body.extend_from_slice(data);
        // A client that has read this event may repeat the request before the stream has ended.
        if buffered.form == StoredForm::Stream
            && buffered.pending_fill.is_none()
            && has_end_event(data)
        {
            buffered.pending_fill = Some(buffered.fill.cache_filler.begin_fill(buffered.fill.key));
        }
    }

    fn ended(&mut self) {
        // Drops its guard now, which sets whether the reply was correct.
        drop(std::mem::take(&mut self.inner));
        let Some(buffered) = self.reply.take() else {
            return;
        };
        if buffered.outcome.get() == Some(&true) {
            let (fill, pending_fill) = (buffered.fill, buffered.pending_fill);
            fill.cache_filler.enqueue(WholeReply {
                dialect: fill.dialect,
                scope: fill.scope,
                form: buffered.form,
                body: buffered.body,
                budget: buffered.permit,
                generation: fill.generation,
                similar_query: fill.similar_query,
                pending_fill: pending_fill
                    .unwrap_or_else(|| fill.cache_filler.begin_fill(fill.key)),
            });
        }
    }
}

/// Returns whether the last event of a stream begins in these bytes: generated text never begins a
/// line.
fn has_end_event(data: &[u8]) -> bool {
    data.starts_with(DONE)
        || data
            .split(|byte| *byte == b'\n')
            .skip(1)
            .any(|line| line.starts_with(DONE))
}

impl<B: Body<Data = Bytes> + Default + Unpin> Body for FillingBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    this.passed(data);
                }
                // hyper does not poll a body of known length past its end.
                if this.inner.is_end_stream() {
                    this.ended();
                }
            }
            Some(Err(_)) => this.reply = None,
            None => this.ended(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B: fmt::Debug> fmt::Debug for FillingBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffered = self.reply.as_ref().map(|buffered| buffered.body.len());
        f.debug_struct("FillingBody")
            .field("inner", &self.inner)
            .field("held_bytes", &buffered)
            .finish()
    }
}
