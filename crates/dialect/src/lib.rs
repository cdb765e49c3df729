//! Reads requests and replies of the supported APIs, and writes the router's own replies.
//!
//! Above all: a borrowed view of a request body ([`view`]), a splitter of event streams with the
//! few facts worth reading in them ([`SseSplitter`], [`StreamChunk`]), error bodies ([`ApiError`]),
//! the one way to change members of a body that leaves every other byte unchanged ([`splice()`]),
//! the translation of Anthropic's messages into a chat ([`messages_to_chat`]), and replies from the
//! cache ([`RepeatabilityView`], [`StreamObject`], [`replay()`]). Nothing here opens a socket or
//! reads a clock.
//!
//! **Invariant**: no bytes make this crate panic or recurse; memory is bounded by the input and the
//! limits defined here.

mod anthropic;
mod api_error;
mod body_counts;
mod cache_control;
mod cacheable;
mod chat_identity;
mod chunk;
mod claims;
mod error_code;
mod fact_scan;
mod hook;
mod internal_detail;
mod json;
mod last_question;
mod media_urls;
mod multipart;
mod output_estimate;
mod prefill_reply;
mod prefix_key;
mod prompts;
mod repeatability;
mod request_key;
mod responses;
mod splice;
mod sse;
mod texts;
mod tokenize;
mod turns;
mod view;
mod volatile_prefix;

pub use anthropic::{
    ChatStream, ChunkOutcome, CompletionOptions, MessageStream, TranslatedRequest,
    chat_from_message, chat_to_messages, error_from_chat, error_from_message, message_from_chat,
    messages_to_chat,
};
pub use api_error::ApiError;
pub use body_counts::BodyCounts;
pub use cache_control::with_cache_control;
pub use cacheable::{CacheableReply, NotCacheable, StreamObject, keep_whole, replay};
pub use chat_identity::chat_identity;
pub use chunk::{
    EndingTracker, InBandError, ReplyPart, StreamChunk, Usage, announces_response, finish_reason,
    in_band_error, is_done, usage_from_body, usage_from_chunk, usage_from_tail,
};
pub use claims::{BodyClaims, claims, raw_member};
pub use error_code::ErrorCode;
pub use fact_scan::may_have_facts;
pub use hook::{HookAnswer, hook_answer, hook_question, named_model};
pub use internal_detail::{InternalDetail, KnownText, internal_detail};
pub use json::{JsonError, MAX_DEPTH, MAX_NODES, PassedOn, RawJson};
pub use last_question::{LastQuestion, last_question};
pub use media_urls::{MediaUrl, media_urls};
pub use multipart::{FormError, FormModel, form_model};
pub use output_estimate::estimated_tokens;
pub use prefill_reply::PrefillReply;
pub use prefix_key::Anchor;
pub use repeatability::{RepeatabilityView, Temperature};
pub use request_key::RequestKey;
pub use responses::{ResponsesView, responses_view};
pub use splice::{Edit, splice};
pub use sse::{MAX_EVENT_BYTES, SseEvent, SsePushOutcome, SseSplitter};
pub use texts::{last_said, opening};
pub use tokenize::{DetokenizeView, TokenizeView, detokenize_view, tokenize_view};
pub use turns::{ChatMessages, Turn};
pub use view::{
    Dialect, Fidelity, KvFields, MediaPlaceholder, MemberSpans, PromptPart, Rendering, RequestBody,
    RequestView, SessionFields, TransferFields, ViewError, view, view_of_translated,
};
pub use volatile_prefix::{steady_turn, without_volatile_prefix};
