//! The data listener and the one path that every request takes.
//!
//! Not here: choosing (`routing`), what is cached (`kv-index`), the workers' health (`fleet`), operators' routes
//! (`admin`). The client's bytes are forwarded as they came; a view of them is read beside it.
//!
//! **Invariant**: one request path; load is held by a drop guard from the decision to the last byte; nothing is tried
//! again once a byte has gone out.

mod alike;
mod cut_switch;
mod decision_log;
mod embedder;
mod gateway;
mod health;
mod housekeeping;
mod ids;
mod in_force;
mod judge;
mod keeper;
mod keys;
mod lease;
mod listener;
mod load_telemetry;
mod memory;
mod metrics;
mod model_lists;
mod model_names;
mod model_routing;
mod model_watch;
mod models;
mod on_hold;
mod prefix_telemetry;
mod probes;
mod queue_waiters;
mod redis_pool;
mod request;
mod reservations;
mod response_homes;
mod retry;
mod routes;
mod shared_prefixes;
mod upstream;
mod worker_labels;

pub use decision_log::{DecisionLog, DecisionLogSettings};
pub use gateway::{CountLimits, Gateway, GatewayParts, Limits, Rules};
pub use in_force::InForce;
pub use keys::Keys;
pub use listener::{Drained, Phase, serve};
pub use model_lists::ModelListSettings;
pub use model_names::{ModelNameRule, ModelNames};
pub use model_routing::{ModelRouting, ModelRules};
pub use probes::{Probes, ProbesError};
pub use redis_pool::RedisPool;
pub use request::{
    Cluster, ClusterSettings, Connector, Disaggregation, HookSettings, ReplyHeaders, Rewriting,
    SharedTokens, SharedTokensError, TokenCache, WaitLimits,
};
pub use retry::RetryRules;
pub use routes::{Body, Endpoint, ROUTES, Route, Scope};
pub use shared_prefixes::SharedPrefixSettings;
