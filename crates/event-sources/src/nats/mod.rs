//! KV events over NATS: the source that follows a subject, and the relay that fills it from a
//! publisher's ZMQ sockets.
//!
//! It serves routers that cannot reach an engine's ports. The relay runs beside the engine and
//! follows its sockets; both ends connect out, to a NATS server. Core NATS is enough: it stores
//! nothing, and lost messages are replayed.
//!
//! On a subject `S`, which exactly one relay publishes on:
//!
//! | message on | headers | payload | meaning |
//! |---|---|---|---|
//! | `S` | `Warmroute-Seq: N`, `Warmroute-Topic: T` unless empty | the batch, byte for byte | one message of the live socket |
//! | `S` | `Warmroute-Note: connected` or `disconnected` | none | the relay's connection to the engine was made or lost |
//! | `S.replay`, with a reply inbox | | `N` in decimal | a request for the batches from `N` on |
//! | the inbox | `Warmroute-Seq: N`, `Warmroute-Topic: T` | the batch | one batch of the answer, in order |
//! | the inbox | `Warmroute-End: 1` | none | the end of the answer |
//! | the inbox | `Warmroute-Error: TEXT` | none | the request failed, and why |
//!
//! `N` is below 2^48. A request for 18446744073709551615 is a liveness check: it asks only whether
//! the relay is there and connected to the engine, and is answered without a request to the engine.
//! NATS does not report a missing relay, so a reader sends this check when it connects, and
//! whenever the subject was quiet for a while. Inboxes start with `_INBOX.`; answers go nowhere
//! else, or any client that may send requests could make the relay publish on any subject.
//!
//! Each NATS connection is one client (`nats-client`), which is dropped with it: the next one
//! resolves the host anew, has its address checked, and starts with the first message of the reader
//! or the relay.
//!
//! Not here: the meaning of a batch, and JetStream.
//!
//! **Invariant**: the queues between NATS and the index, and between ZMQ and NATS, are bounded in
//! messages and bytes; messages that do not fit are dropped and counted, and a missing number or a
//! note makes the reader request a replay.

mod endpoint;
mod follower;
mod relay;
mod relay_liveness;
mod request;
mod source;
mod subscription_queue;
mod wire;

pub use endpoint::{NatsEndpoint, NatsEndpointError, NatsSubject};
pub use nats_client::{NatsCredentials, NatsCredentialsError, NatsServer, NatsServerError};
pub use relay::{NatsRelay, RelayCounts, RelayError, RelayNotice, RelaySpec};
pub(crate) use request::NatsRequestError;
pub use source::{NatsSource, NatsSpec};
