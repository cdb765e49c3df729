//! KV events over NATS: the source that follows a subject, and the relay that fills it from a publisher's ZMQ sockets.
//!
//! It is for routers that cannot reach an engine's ports. The relay runs beside the engine and follows its sockets; both
//! ends connect out, to a NATS server. Core NATS is enough: it keeps nothing, and what it loses is replayed.
//!
//! On a subject `S`, which one relay and no more publishes on:
//!
//! | message on | headers | payload | meaning |
//! |---|---|---|---|
//! | `S` | `Warmroute-Seq: N`, `Warmroute-Topic: T` unless empty | the batch, byte for byte | one message of the live socket |
//! | `S` | `Warmroute-Note: connected` or `disconnected` | none | the relay's connection to the engine was made or lost |
//! | `S.replay`, with a reply inbox | | `N` in decimal | a request for the batches from `N` on |
//! | the inbox | `Warmroute-Seq: N`, `Warmroute-Topic: T` | the batch | one of them, in order |
//! | the inbox | `Warmroute-End: 1` | none | that was all |
//! | the inbox | `Warmroute-Error: TEXT` | none | it cannot be had, and why |
//!
//! `N` is below 2^48. A request for 18446744073709551615 asks for nothing but whether the relay is there and connected to
//! the engine: it is answered without asking the engine. So a reader knows of a relay that is gone, which NATS does not
//! tell it: it knocks when it connects, and whenever the subject was quiet for a while. Inboxes start with `_INBOX.`;
//! nothing is answered elsewhere, or whoever may ask could have the relay publish anywhere.
//!
//! Each NATS connection is one client of `async-nats`, which is dropped with it: the next one resolves the host anew, has
//! its address checked, and starts with what the reader or the relay wants to say first.
//!
//! Not here: what a batch means, and JetStream.
//!
//! **Invariant**: what waits between NATS and the index, and between ZMQ and NATS, is bounded in messages and bytes; what
//! does not fit is let go and counted, and a missing number or a note makes the reader ask for a replay.

mod backoff;
mod credentials;
mod dial;
mod endpoint;
mod follower;
mod relay;
mod relay_liveness;
mod request;
mod source;
mod subscription_queue;
mod wire;

pub use credentials::{NatsCredentials, NatsCredentialsError};
pub use endpoint::{NatsEndpoint, NatsEndpointError, NatsServer, NatsSubject};
pub use relay::{NatsRelay, RelayCounts, RelayError, RelayNotice, RelaySpec};
pub(crate) use request::NatsRequestError;
pub use source::{NatsSource, NatsSpec};
