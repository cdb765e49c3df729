//! Errors that clients see: from their own requests, engines, connections and the router's
//! shutdown.

mod back_pressure;
mod before_first_byte;
mod client_errors;
mod drain;
pub(crate) mod fleet;
mod hang_up;
mod idle_connections;
mod killed_engine;
mod local_faults;
mod malformed_replies;
mod mid_stream;
mod one_worker;
mod only_healthy;
mod retry_budget;
mod statuses;
mod success_rate;
