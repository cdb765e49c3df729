//! Cached replies in the requested form.

use bytes::Bytes;
use dialect::Dialect;

use crate::{CacheEntry, EntryKind, RequestedForm};

/// A longer body is parsed off the runtime thread.
const LONG: usize = 16 * 1024;

/// A cached reply in the requested form.
#[derive(Debug)]
pub struct HitReply {
    /// Its bytes.
    pub body: Bytes,
    /// Whether they are a stream.
    pub is_stream: bool,
    /// When it was stored, seconds since 1970.
    pub stored_at: u64,
    /// Similarity to the question of the cached reply; `None`: an exact hit.
    pub similarity: Option<f64>,
}

impl HitReply {
    /// Returns `None` if the entry cannot answer the request.
    pub async fn of(dialect: Dialect, entry: CacheEntry, form: RequestedForm) -> Option<Self> {
        let kind = EntryKind::read(entry.label, dialect)?;
        let (body, is_stream) = match form {
            RequestedForm::Whole if kind.is_complete_reply() => (entry.body, false),
            RequestedForm::Stream { usage } => (replayed(dialect, entry.body, usage).await?, true),
            RequestedForm::Whole | RequestedForm::OtherStream => return None,
        };
        Some(Self {
            body,
            is_stream,
            stored_at: entry.stored_at,
            similarity: None,
        })
    }
}

async fn replayed(dialect: Dialect, body: Bytes, usage: bool) -> Option<Bytes> {
    let is_long = body.len() > LONG;
    let replay = move || dialect::replay(dialect, &body, usage).map(Bytes::from);
    if is_long {
        runtime::spawn_blocking(replay).await.ok().flatten()
    } else {
        replay()
    }
}
