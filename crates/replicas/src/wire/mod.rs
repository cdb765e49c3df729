//! The messages between replicas, as Protocol Buffers.
//!
//! | message | sent | meaning |
//! |---|---|---|
//! | [`Envelope`] with [`Presence`] | every `replicas.digest_interval`, and at the end | a replica is there, and the digest of its load |
//! | [`Envelope`] with [`Changes`] | as load changes | numbered changes of the sender's own load |
//! | [`StatePage`] | in reply to a request | all open requests of a replica, as of a change's number |
//!
//! An older or newer replica may send fields and kinds of changes that are unknown here: they are
//! skipped, and counted where a whole message or change is unknown. A different [`VERSION`] means
//! that the meaning of a field has changed, and such a peer is refused.
//!
//! **Invariant**: no message contains token ids or text, only hashes of blocks.

mod chain_memory;

use bytes::Bytes;
use prost::{Message, Oneof};

pub(crate) use chain_memory::ChainMemory;

/// Version of the messages.
pub(crate) const VERSION: u32 = 2;
/// Largest accepted message, bytes.
pub(crate) const MAX_MESSAGE: usize = 4 << 20;
/// Size from which a message of changes is sent and the next one begun, bytes. Below the 1 MiB that
/// a NATS server accepts by default.
pub(crate) const FULL_MESSAGE: usize = 256 << 10;

/// One message to all replicas.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Envelope {
    #[prost(uint32, tag = "1")]
    pub(crate) version: u32,
    /// The sender's id, drawn at random when its process starts.
    #[prost(fixed64, tag = "2")]
    pub(crate) sender: u64,
    #[prost(message, optional, tag = "3")]
    pub(crate) presence: Option<Presence>,
    #[prost(message, optional, tag = "4")]
    pub(crate) changes: Option<Changes>,
}

/// What a replica says of itself.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Presence {
    /// Where its admin listener is reached, for operators.
    #[prost(string, tag = "1")]
    pub(crate) address: String,
    /// Version of the program.
    #[prost(string, tag = "2")]
    pub(crate) program: String,
    /// Digest of the settings that replicas must share.
    #[prost(fixed64, tag = "3")]
    pub(crate) settings: u64,
    /// Milliseconds since it started.
    #[prost(uint64, tag = "4")]
    pub(crate) up_ms: u64,
    /// Number of the last change that it sent; 0 before the first.
    #[prost(uint64, tag = "5")]
    pub(crate) last_change: u64,
    /// Its own open requests, and their digest, after that change.
    #[prost(uint64, tag = "6")]
    pub(crate) open: u64,
    #[prost(fixed64, tag = "7")]
    pub(crate) load_digest: u64,
    /// Digest of its block index over all workers; unset for a large index.
    #[prost(fixed64, optional, tag = "8")]
    pub(crate) index_digest: Option<u64>,
    /// Messages of the event stream that it has not taken yet.
    #[prost(uint64, tag = "9")]
    pub(crate) lag_messages: u64,
    /// Event streams that it publishes, as `worker/rank`.
    #[prost(string, repeated, tag = "10")]
    pub(crate) owns_streams: Vec<String>,
    /// Whether it sends its load.
    #[prost(bool, tag = "11")]
    pub(crate) shares_load: bool,
    /// Whether this is its last message.
    #[prost(bool, tag = "12")]
    pub(crate) leaving: bool,
    /// Requests that wait in its queue.
    #[prost(uint64, tag = "13")]
    pub(crate) queued: u64,
}

/// Consecutive changes of the sender's own load.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Changes {
    /// Number of the first of them; numbers begin with 1.
    #[prost(uint64, tag = "1")]
    pub(crate) first: u64,
    /// Names of workers, to which the changes refer by position.
    #[prost(string, repeated, tag = "2")]
    pub(crate) workers: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) changes: Vec<Change>,
}

/// One change. `None`: of a kind that this version does not know.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Change {
    #[prost(oneof = "ChangeKind", tags = "1, 2, 3, 4, 6, 7, 8, 9")]
    pub(crate) kind: Option<ChangeKind>,
}

/// Kinds of changes.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum ChangeKind {
    /// A request was dispatched.
    #[prost(message, tag = "1")]
    Opened(OpenRequest),
    /// The prompt of the request with this id is computed.
    #[prost(uint64, tag = "2")]
    FirstToken(u64),
    /// A request has ended.
    #[prost(message, tag = "3")]
    Closed(RequestEnd),
    /// A sample of a worker's speed.
    #[prost(message, tag = "4")]
    Sample(Sample),
    /// A session was bound to a target.
    #[prost(message, tag = "6")]
    Session(Session),
    /// Tokens of a complete reply.
    #[prost(uint32, tag = "7")]
    ReplyLength(u32),
    /// A worker holds a stored response.
    #[prost(message, tag = "8")]
    ResponseHome(ResponseHome),
    /// A worker asked to be left alone for a time.
    #[prost(message, tag = "9")]
    Cooldown(Cooldown),
}

/// A dispatched request. Times are milliseconds.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct OpenRequest {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    /// Position of the worker's name.
    #[prost(uint32, tag = "2")]
    pub(crate) worker: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) rank: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) prompt_tokens: u32,
    #[prost(uint32, tag = "5")]
    pub(crate) uncached_tokens: u32,
    #[prost(double, tag = "6")]
    pub(crate) prefill_ms: f64,
    #[prost(double, tag = "7")]
    pub(crate) interleave_ms: f64,
    /// Whether the reply is streamed, so that its first token is seen.
    #[prost(bool, tag = "8")]
    pub(crate) streamed: bool,
    /// Whether the uncached tokens are the rest of an overlap.
    #[prost(bool, tag = "9")]
    pub(crate) blocks_known: bool,
    #[prost(message, optional, tag = "10")]
    pub(crate) blocks: Option<Blocks>,
    /// Whether its first token was seen.
    #[prost(bool, tag = "11")]
    pub(crate) first_token: bool,
    #[prost(double, tag = "12")]
    pub(crate) age_ms: f64,
    /// The namespace of the blocks, where the target's cache is predicted from requests.
    #[prost(message, optional, tag = "13")]
    pub(crate) predicted: Option<Namespace>,
}

/// The end of a request.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestEnd {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    /// Whether its target received the prompt.
    #[prost(bool, tag = "2")]
    pub(crate) prompt_received: bool,
    /// Whether it counts as a success of its worker. Absent: it does not count.
    #[prost(bool, optional, tag = "3")]
    pub(crate) succeeded: Option<bool>,
}

/// The blocks of a prompt.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Blocks {
    /// Tells equal hashes of different namespaces apart.
    #[prost(fixed64, tag = "1")]
    pub(crate) fingerprint: u64,
    /// Blocks that no other request can share.
    #[prost(uint64, tag = "2")]
    pub(crate) unshared: u64,
    /// Leading blocks that an earlier message had, and the hash of the last of them.
    #[prost(uint32, tag = "3")]
    pub(crate) known: u32,
    #[prost(fixed64, tag = "4")]
    pub(crate) known_end: u64,
    /// Hashes of the blocks behind them.
    #[prost(fixed64, repeated, tag = "5")]
    pub(crate) hashes: Vec<u64>,
    /// Whether hashes are known at all.
    #[prost(bool, tag = "6")]
    pub(crate) hashed: bool,
    /// Whether the blocks count as active ones, not only as predicted ones.
    #[prost(bool, tag = "7")]
    pub(crate) active: bool,
}

/// Where the blocks of a prompt belong. Salted prompts are not shared this way.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(crate) struct Namespace {
    #[prost(string, tag = "1")]
    pub(crate) model: String,
    #[prost(string, optional, tag = "2")]
    pub(crate) lora: Option<String>,
    #[prost(uint32, tag = "3")]
    pub(crate) block_size: u32,
    /// Whether the blocks are of text instead of tokens.
    #[prost(bool, tag = "4")]
    pub(crate) text: bool,
}

/// A prefill that did not wait for others.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Sample {
    #[prost(uint32, tag = "1")]
    pub(crate) worker: u32,
    /// Milliseconds to the first token, if the sender saw it.
    #[prost(double, optional, tag = "2")]
    pub(crate) first_token_ms: Option<f64>,
    /// The sample of its speed, if it is one.
    #[prost(message, optional, tag = "3")]
    pub(crate) prefill: Option<Prefill>,
}

/// Computed tokens and their time.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Prefill {
    #[prost(uint32, tag = "1")]
    pub(crate) cached_tokens: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) computed_tokens: u32,
    #[prost(double, tag = "3")]
    pub(crate) ms: f64,
}

/// A session and the target it is bound to.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Session {
    #[prost(uint32, tag = "1")]
    pub(crate) worker: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) rank: u32,
    /// The session's first key.
    #[prost(fixed64, tag = "3")]
    pub(crate) id: u64,
    /// Hash of the name that the client gave it.
    #[prost(fixed64, optional, tag = "4")]
    pub(crate) name: Option<u64>,
    /// Hash of the whole request, less its rest.
    #[prost(fixed64, optional, tag = "5")]
    pub(crate) growth: Option<u64>,
    /// Bytes of the rest, and their hash.
    #[prost(uint64, tag = "6")]
    pub(crate) rest_bytes: u64,
    #[prost(fixed64, tag = "7")]
    pub(crate) rest_hash: u64,
}

/// A stored response and its worker.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseHome {
    /// 128-bit hash of the response's id, high half first.
    #[prost(fixed64, tag = "1")]
    pub(crate) high: u64,
    #[prost(fixed64, tag = "2")]
    pub(crate) low: u64,
    #[prost(uint32, tag = "3")]
    pub(crate) worker: u32,
}

/// A worker's `Retry-After`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Cooldown {
    #[prost(uint32, tag = "1")]
    pub(crate) worker: u32,
    #[prost(uint64, tag = "2")]
    pub(crate) ms: u64,
}

/// All open requests of a replica with ids from a range.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatePage {
    #[prost(uint32, tag = "1")]
    pub(crate) version: u32,
    #[prost(fixed64, tag = "2")]
    pub(crate) sender: u64,
    /// Changes up to this number are part of the page; later ones may be.
    #[prost(uint64, tag = "3")]
    pub(crate) as_of: u64,
    #[prost(string, repeated, tag = "4")]
    pub(crate) workers: Vec<String>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) open: Vec<OpenRequest>,
    /// The range begins after this id.
    #[prost(uint64, tag = "6")]
    pub(crate) after: u64,
    /// The range ends with this id; unset: this is the last page.
    #[prost(uint64, optional, tag = "7")]
    pub(crate) through: Option<u64>,
}

/// Why a message cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// It is no message of replicas, or damaged.
    #[error("the message is no message of a replica")]
    Malformed,
    /// It is larger than allowed.
    #[error("the message is larger than {MAX_MESSAGE} bytes")]
    TooLarge,
}

/// Decodes a message.
pub(crate) fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, WireError> {
    if bytes.len() > MAX_MESSAGE {
        return Err(WireError::TooLarge);
    }
    M::decode(bytes).map_err(|_| WireError::Malformed)
}

/// Encodes a message.
pub(crate) fn encode(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use proptest::prelude::*;

    use super::*;

    /// A message of a later version: it has a field and a kind of change that are unknown here.
    #[derive(Clone, PartialEq, Message)]
    struct LaterEnvelope {
        #[prost(uint32, tag = "1")]
        version: u32,
        #[prost(fixed64, tag = "2")]
        sender: u64,
        #[prost(message, optional, tag = "4")]
        changes: Option<LaterChanges>,
        #[prost(string, tag = "900")]
        unknown: String,
    }

    #[derive(Clone, PartialEq, Message)]
    struct LaterChanges {
        #[prost(uint64, tag = "1")]
        first: u64,
        #[prost(message, repeated, tag = "3")]
        changes: Vec<LaterChange>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct LaterChange {
        #[prost(uint64, optional, tag = "2")]
        first_token: Option<u64>,
        #[prost(uint64, tag = "77")]
        of_a_later_kind: u64,
    }

    #[test]
    #[contract("F91")]
    fn unknown_fields_are_skipped_and_unknown_changes_are_recognised_as_such() {
        let later = LaterEnvelope {
            version: VERSION,
            sender: 7,
            unknown: "of a later version".to_owned(),
            changes: Some(LaterChanges {
                first: 5,
                changes: vec![
                    LaterChange {
                        first_token: Some(3),
                        of_a_later_kind: 0,
                    },
                    LaterChange {
                        first_token: None,
                        of_a_later_kind: 9,
                    },
                ],
            }),
        };
        let read: Envelope = decode(&encode(&later)).expect("a message");
        let changes = read.changes.expect("changes");
        let kinds: Vec<_> = changes.changes.into_iter().map(|c| c.kind).collect();
        assert_eq!((read.sender, changes.first), (7, 5));
        assert_eq!(kinds, [Some(ChangeKind::FirstToken(3)), None]);
    }

    #[test]
    fn a_message_over_the_limit_is_refused_before_it_is_decoded() {
        let bytes = vec![0; MAX_MESSAGE + 1];
        assert_eq!(decode::<Envelope>(&bytes), Err(WireError::TooLarge));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode::<Envelope>(&bytes);
            let _ = decode::<StatePage>(&bytes);
        }
    }
}
