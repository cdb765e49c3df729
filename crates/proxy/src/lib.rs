//! HTTP mechanics without routing: connections to workers, bodies in both directions, tunnels that
//! follow an upgrade, and the header fields that a proxy forwards.
//!
//! Stages of a request use the types of this crate and none of the HTTP library. [`Upstream`] is the
//! seam between them and the workers: [`ConnectionPools`] is the real one, [`FakeUpstream`] the one
//! of tests.
//!
//! Not here: which worker gets a request (`routing`), and whether a failed attempt is repeated
//! (`gateway`).

mod abort_switch;
mod body;
mod body_rest;
pub mod headers;
mod json_query;
mod tunnel;
mod upgrade;
mod upstream;

pub use abort_switch::{AbortSignal, AbortSwitch};
pub use body::{BodyBuffer, RequestBody};
pub use body_rest::{BodyFault, BodyRest, RestLimits};
pub use json_query::{JsonQuery, JsonReply, QueryError, send_query};
pub use tunnel::{Tunnel, TunnelEnd, TunnelLimits};
pub use upgrade::{ClientUpgrade, WorkerUpgrade};
pub use upstream::{
    BodyError, ConnectionPools, FakeReply, FakeUpstream, NotSent, OutgoingRequest, ReadError,
    SendFailure, SendFuture, Upstream, UpstreamBody, UpstreamReply, send_once,
};
