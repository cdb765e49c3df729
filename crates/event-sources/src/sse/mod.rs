//! Event streams over HTTP: server-sent events, and the same objects over a WebSocket.
//!
//! Two tasks per stream. The [`reader`] reads the connection and reconnects when it ends; the
//! [`applier`] passes the messages to an [`EventSink`]. Between them is a queue bounded in messages
//! and bytes. When it is full the reader goes on reading, drops messages and counts them; the
//! sink's state from this stream is then dropped too, and the stream reconnects: an eviction may be
//! among the lost messages.
//!
//! Not here: the meaning of a message (`kv-events`, `prefix-view`).

mod applier;
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
pub use standard_sink::StandardSink;
