//! Copies a reply that is being relayed, to cache it if the client gets all of it.
//!
//! The bytes are copied into a separate buffer: short slices, such as a token's, would each keep a
//! whole socket read buffer alive. [`CacheFiller`] assembles and stores them in the background, so
//! that a stream never waits for it.

use std::{
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use dialect::{Dialect, RequestKey};
use http::{HeaderMap, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use resilience::BytePermit;
use response_cache::{
    CacheFiller, CacheGeneration, PendingFill, SimilarQuery, StoredForm, WholeReply,
};

use super::parts::ReplyCache;
use crate::{memory::MemoryStage, request::reply_body::ReplyBody};

const DONE: &[u8] = b"data: [DONE]";

/// The cache fill of one request.
pub(super) struct ReplyFill {
    cache_filler: Arc<CacheFiller>,
    key: RequestKey,
    dialect: Dialect,
    generation: CacheGeneration,
    most_whole: usize,
    most_stream: usize,
    similar_query: Option<SimilarQuery>,
    /// False under memory pressure.
    takes_new: bool,
}

impl ReplyFill {
    pub(super) fn new(cache: &ReplyCache, dialect: Dialect, key: RequestKey) -> Self {
        let settings = cache.store.settings();
        Self {
            cache_filler: Arc::clone(&cache.filler),
            key,
            dialect,
            generation: cache.store.generation(),
            most_whole: settings.max_response_size,
            most_stream: settings.max_stream_buffer_size,
            similar_query: None,
            takes_new: cache.memory.stage() < MemoryStage::SmallBodies,
        }
    }

    /// Sets the entry under which a similarity lookup finds the reply.
    pub(super) fn with_similarity(self, sought: Option<SimilarQuery>) -> Self {
        Self {
            similar_query: sought,
            ..self
        }
    }

    /// Wraps the reply's body. `good`: set when its guard is settled.
    pub(super) fn watch(
        self,
        response: Response<ReplyBody>,
        good: Arc<OnceLock<bool>>,
    ) -> Response<ReplyBody> {
        let takes = self.takes_new;
        let Some(form) =
            form(self.dialect, response.status(), response.headers()).filter(|_| takes)
        else {
            return response;
        };
        let most = match form {
            StoredForm::Whole => self.most_whole,
            StoredForm::Stream => self.most_stream,
        };
        if response.body().size_hint().lower() > most as u64 {
            return response;
        }
        let room = self.cache_filler.fill_permit();
        let held = BufferedReply {
            fill: self,
            form,
            outcome: good,
            body: Vec::new(),
            room,
            most,
            pending_fill: None,
        };
        response.map(|inner| {
            ReplyBody::live(FillingBody {
                inner,
                reply: Some(held),
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
struct FillingBody {
    inner: ReplyBody,
    /// `None`: it is not cached.
    reply: Option<BufferedReply>,
}

struct BufferedReply {
    fill: ReplyFill,
    form: StoredForm,
    outcome: Arc<OnceLock<bool>>,
    body: Vec<u8>,
    /// `body`'s share of the byte budget.
    room: BytePermit,
    most: usize,
    pending_fill: Option<PendingFill>,
}

impl FillingBody {
    fn passed(&mut self, data: &Bytes) {
        let Some(held) = &mut self.reply else { return };
        if held.body.len() + data.len() > held.most || !held.room.try_grow(data.len()) {
            self.reply = None;
            return;
        }
        held.body.extend_from_slice(data);
        // A client that has read this event may repeat the request before the stream has ended.
        if held.form == StoredForm::Stream && held.pending_fill.is_none() && tells_its_end(data) {
            held.pending_fill = Some(held.fill.cache_filler.begin_fill(held.fill.key));
        }
    }

    fn ended(&mut self) {
        // Settles its guard now, which sets whether the reply was correct.
        drop(std::mem::replace(&mut self.inner, ReplyBody::empty()));
        let Some(held) = self.reply.take() else {
            return;
        };
        let BufferedReply {
            fill,
            form,
            outcome: good,
            body,
            room,
            pending_fill: mark,
            ..
        } = held;
        if good.get() == Some(&true) {
            let mark = mark.unwrap_or_else(|| fill.cache_filler.begin_fill(fill.key));
            let ReplyFill {
                cache_filler: keeper,
                dialect,
                generation: begun,
                similar_query: sought,
                ..
            } = fill;
            keeper.enqueue(WholeReply {
                dialect,
                form,
                body,
                budget: room,
                generation: begun,
                similar_query: sought,
                pending_fill: mark,
            });
        }
    }
}

/// Returns whether the last event of a stream begins in these bytes: generated text never begins a
/// line.
fn tells_its_end(data: &[u8]) -> bool {
    data.starts_with(DONE)
        || data
            .split(|byte| *byte == b'\n')
            .skip(1)
            .any(|line| line.starts_with(DONE))
}

impl Body for FillingBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    this.passed(data);
                }
                // hyper does not poll a body of known length behind its end.
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

impl std::fmt::Debug for FillingBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let held = self.reply.as_ref().map(|held| held.body.len());
        f.debug_struct("Kept")
            .field("inner", &self.inner)
            .field("held_bytes", &held)
            .finish()
    }
}
