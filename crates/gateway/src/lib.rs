//! The data listener and the one path that every request takes.
//!
//! Not here: the decision (`routing`), the block index (`kv-index`), worker health (`fleet`),
//! operators' routes (`admin`). The client's bytes are forwarded as received; a view of them is
//! read beside.
//!
//! **Invariant**: one request path; a drop guard holds the load from the decision to the last byte;
//! nothing is retried after the first forwarded byte.

mod assembly;
mod client_connection;
mod client_key;
mod cooldowns;
mod decision_log;
mod embedder;
mod errors;
mod gateway;
mod health;
mod housekeeping;
mod ids;
mod in_process;
mod indexed_family;
mod key_validation;
mod lease;
mod lifecycle;
mod listener;
mod load_telemetry;
mod memory;
mod metrics;
mod model_lists;
mod model_names;
mod model_watch;
mod models;
mod name_labels;
mod parity_monitor;
mod peer_load;
mod prefix_telemetry;
mod probe_listener;
mod process_limits;
mod queue_waiters;
mod request;
mod reservations;
mod response_affinity;
mod response_reservations;
mod retry;
mod routes;
mod shared_prefixes;
mod tenant_telemetry;
mod tracer;

pub use assembly::GatewayParts;
pub use decision_log::DecisionLog;
pub use gateway::{CurrentGateway, Gateway};
pub use listener::{DrainResult, ListenerPhase, serve};
pub use probe_listener::{ProbeListener, ProbeListenerError};
pub use process_limits::ProcessLimits;
pub use request::{
    decide::DecisionCounters,
    reply_body::GuardedBody,
    route_api::{BestWorker, PrefixMatch, TokenQuery},
};
pub use routes::{BodyMode, ROUTES, Route, RouteHandler};
