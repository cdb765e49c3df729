//! Section `workers[].kv_events`.

use std::path::PathBuf;

use settings::{CheckedValue, Setting, ValueKind, kinds::AUTO, word};

/// Schemes of all kinds of streams.
pub(crate) const SCHEMES: &[&str] = &["tcp", "ipc", "http", "https", "ws", "wss", "nats", "tls"];

settings::section! {
    /// Section `workers[].kv_events`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct WorkerKvEvents {
        /// Transport of the events. `auto`: by the scheme of `endpoint`, otherwise ZMQ. `sse` and
        /// `ws`: standard events (RFC 1527) over HTTP or a WebSocket. `poll`: TensorRT-LLM's list,
        /// which may have only one reader. `nats`: the stream of `warmroute events relay`. `none`:
        /// no events; the cache is predicted from our own decisions.
        source: EventSource = "auto", live;
        /// Endpoint of the events: `tcp://` or `ipc://` (ZMQ), `http(s)://`, `ws(s)://`, or
        /// `nats://HOST:PORT/SUBJECT` (`tls://` if encrypted; each of several ranks has its own
        /// subject, `SUBJECT.RANK`). `auto`: as the engine reports it, otherwise its host at
        /// `kv_events.default_port`.
        endpoint: Option<String> = "auto"
            in ValueKind::WordOr(AUTO, &ValueKind::Stream(SCHEMES)), live;
        /// Endpoint for requests of missed events. `auto`: as the engine reports it. `none`: no
        /// replay.
        replay_endpoint: ReplayEndpoint = "auto", live;
        /// Endpoint of a store beside the engine (`tcp://` or `ipc://`), such as the Mooncake
        /// store's master: its blocks count for the worker with the weight of their tier. Workers
        /// may name the same store.
        store: Option<String> = "~" in ValueKind::Endpoint, live;
        /// Prefix of the accepted topics. Empty: `kv_events.topic_filter`.
        topic: String = "", live;
        /// Bind `endpoint`, and the next port for each further rank, so that the engine connects to
        /// the router. Workers may share an endpoint: a message belongs to the worker with whose
        /// `topic` its topic begins, or that the topic names as `kv@NAME@MODEL` or
        /// `kv@HOST:PORT@MODEL`.
        bind: bool = "false", live;
        /// File with the credentials for the stream: a bearer token (`sse`, `ws`), or NATS
        /// credentials or a token (`nats`).
        token_file: Option<PathBuf> = "~", live;
    }
}

settings::words! {
    /// `workers[].kv_events.source`; `auto` is resolved if the endpoint determines the kind.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum EventSource {
        /// A ZMQ publisher, if the engine announces one or one is found.
        Auto = "auto",
        /// A ZMQ publisher.
        Zmq = "zmq",
        /// No stream: its cache is predicted from our own decisions.
        None = "none",
        /// Standard events, server-sent. Has an endpoint.
        Sse = "sse",
        /// Standard events in a WebSocket. Has an endpoint.
        Ws = "ws",
        /// TensorRT-LLM's list.
        Poll = "poll",
        /// A NATS subject. Has an endpoint.
        Nats = "nats",
    }
}

/// `workers[].kv_events.replay_endpoint`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayEndpoint {
    /// The endpoint that the engine announces.
    Auto,
    /// None: a gap is accepted.
    None,
    /// This one.
    At(String),
}

impl Setting for ReplayEndpoint {
    const KIND: ValueKind = ValueKind::WordOr(&[word("auto"), word("none")], &ValueKind::Endpoint);

    fn read(value: &CheckedValue) -> Option<Self> {
        Some(match (value.text(), value.word()) {
            (Some(endpoint), _) => Self::At(endpoint.to_owned()),
            (None, Some("none")) => Self::None,
            (None, _) => Self::Auto,
        })
    }
}
