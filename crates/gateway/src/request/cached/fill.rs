//! A reply on its way that is kept if all of it goes out.
//!
//! Its bytes are copied into a buffer of its own: pieces as short as a token would each hold on to a whole read from the
//! socket. They are put together and stored behind the request's back (`keeper`), so that nothing of a stream waits for it.

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
use response_cache::Generation;

use crate::{
    Gateway,
    keeper::{Form, Keeper, Mark, Room, WholeReply},
    memory::Stage,
    request::{cached::Sought, reply::ReplyBody},
};

const DONE: &[u8] = b"data: [DONE]";

/// How the reply to one request is kept.
pub(super) struct Fill {
    keeper: Arc<Keeper>,
    key: RequestKey,
    dialect: Dialect,
    begun: Generation,
    most_whole: usize,
    most_stream: usize,
    sought: Option<Sought>,
    /// Not where memory is short.
    takes_new: bool,
}

impl Fill {
    pub(super) fn new(gateway: &Gateway, dialect: Dialect, key: RequestKey) -> Self {
        let settings = gateway.cache.settings();
        Self {
            keeper: Arc::clone(&gateway.keeper),
            key,
            dialect,
            begun: gateway.cache.generation(),
            most_whole: settings.max_response_size,
            most_stream: settings.max_stream_buffer_size,
            sought: None,
            takes_new: gateway.memory.stage() < Stage::SmallBodies,
        }
    }

    /// The reply may answer others that mean the same.
    pub(super) fn seeking(self, sought: Option<Sought>) -> Self {
        Self { sought, ..self }
    }

    /// The same reply. `good`: said when its account is settled.
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
            Form::Whole => self.most_whole,
            Form::Stream => self.most_stream,
        };
        if response.body().size_hint().lower() > most as u64 {
            return response;
        }
        let room = self.keeper.room();
        let held = Held {
            fill: self,
            form,
            good,
            body: Vec::new(),
            room,
            most,
            mark: None,
        };
        response.map(|inner| {
            ReplyBody::Kept(Box::new(Kept {
                inner,
                held: Some(held),
            }))
        })
    }
}

/// `None`: a reply that is not kept.
fn form(dialect: Dialect, status: StatusCode, head: &HeaderMap) -> Option<Form> {
    if status != StatusCode::OK || head.contains_key(header::CONTENT_ENCODING) {
        return None;
    }
    let kind = head.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("text/event-stream") {
        return (dialect != Dialect::Messages).then_some(Form::Stream);
    }
    kind.eq_ignore_ascii_case("application/json")
        .then_some(Form::Whole)
}

/// The body of a reply that may be kept.
pub(crate) struct Kept {
    inner: ReplyBody,
    /// `None`: it will not be.
    held: Option<Held>,
}

struct Held {
    fill: Fill,
    form: Form,
    good: Arc<OnceLock<bool>>,
    body: Vec<u8>,
    /// What `body` has of the room for all.
    room: Room,
    most: usize,
    mark: Option<Mark>,
}

impl Kept {
    fn passed(&mut self, data: &Bytes) {
        let Some(held) = &mut self.held else { return };
        if held.body.len() + data.len() > held.most || !held.room.takes(data.len()) {
            self.held = None;
            return;
        }
        held.body.extend_from_slice(data);
        // A client that has read this may ask again before the stream has ended.
        if held.form == Form::Stream && held.mark.is_none() && tells_its_end(data) {
            held.mark = Some(held.fill.keeper.mark(held.fill.key));
        }
    }

    fn ended(&mut self) {
        // Its account is settled now, and says whether all went well.
        drop(std::mem::replace(&mut self.inner, ReplyBody::empty()));
        let Some(held) = self.held.take() else { return };
        let Held {
            fill,
            form,
            good,
            body,
            room,
            mark,
            ..
        } = held;
        if good.get() == Some(&true) {
            let mark = mark.unwrap_or_else(|| fill.keeper.mark(fill.key));
            let Fill {
                keeper,
                dialect,
                begun,
                sought,
                ..
            } = fill;
            keeper.keep(WholeReply {
                dialect,
                form,
                body,
                room,
                begun,
                sought,
                mark,
            });
        }
    }
}

/// Whether the last event of a stream begins in these bytes: words of a generated text do not begin a line.
fn tells_its_end(data: &[u8]) -> bool {
    data.starts_with(DONE)
        || data
            .split(|byte| *byte == b'\n')
            .skip(1)
            .any(|line| line.starts_with(DONE))
}

impl Body for Kept {
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
                // A body of known length is not asked again behind its end.
                if this.inner.is_end_stream() {
                    this.ended();
                }
            }
            Some(Err(_)) => this.held = None,
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

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let held = self.held.as_ref().map(|held| held.body.len());
        f.debug_struct("Kept")
            .field("inner", &self.inner)
            .field("held_bytes", &held)
            .finish()
    }
}
