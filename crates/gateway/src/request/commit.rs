//! The commit point: from here on the reply is the client's, and nothing is retried.

use http::Response;

use super::{
    dispatch::{self, BodyContent, CommittedReply, Dispatcher},
    record::RequestGuard,
    relay::{ReplyRelay, ReplyStart},
    reply,
    reply_body::ReplyBody,
    translate::StreamTranslator,
};

/// Commits to a reply: sends its head; the body carries the rest of the request with it.
pub(super) fn commit(
    dispatcher: &Dispatcher,
    committed: CommittedReply,
    stream: Option<StreamTranslator>,
    mut settle: RequestGuard,
) -> Response<ReplyBody> {
    let CommittedReply { head, content } = committed;
    settle.commit(head.status.as_u16(), &content);
    let is_empty = matches!(&content, BodyContent::Whole(bytes) if bytes.is_empty());
    let empty_stream =
        is_empty && settle.expected_ending().is_some() && dispatch::is_event_stream(&head.headers);
    let head = reply::head(&head, &settle);
    let body = match content {
        BodyContent::Whole(bytes) => {
            if empty_stream {
                settle.record_incomplete();
            }
            if let Some(chunk) = dialect::StreamChunk::read(&bytes) {
                settle.record_chunk(&chunk);
            }
            ReplyBody::whole(bytes, settle)
        }
        BodyContent::Begun { first, rest, kind } => ReplyBody::live(ReplyRelay::new(
            ReplyStart {
                first,
                rest,
                kind,
                limits: dispatcher.limits,
                clock: dispatcher.clock,
                cutting: dispatcher.abort.aborted(),
                stream,
            },
            settle,
        )),
    };
    reply::with_head(head, body)
}
