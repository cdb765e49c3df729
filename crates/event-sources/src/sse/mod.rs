//! Streams of events over HTTP: server-sent events, and the same objects over a WebSocket.
//!
//! Two tasks per stream. The [`reader`] takes what comes off the connection and connects again when it is over; the
//! [`applier`] hands it to an [`EventSink`]. Between them is a queue bounded in messages and bytes. When it is full the
//! reader goes on reading and lets go of what comes, counted; what the sink believed of this stream is then dropped, and
//! the stream is asked anew: an eviction may have been among the lost.
//!
//! Not here: what a message means (`kv-events`, `prefix-view`).

mod applier;
mod backoff;
mod connection;
mod endpoint;
mod prefix_sink;
mod rate;
mod reader;
mod reader_channel;
mod sink;
mod source;
mod standard_sink;

pub(crate) use rate::MessageRate;

pub use endpoint::{EventTransport, SseEndpoint, SseEndpointError};
pub use prefix_sink::PrefixSink;
pub use sink::{EventSink, SinkCounts, StreamMessage};
pub use source::{SseSource, SseSpec};
pub use standard_sink::{StandardSink, StandardSinkSpec};
