//! `warmroute doctor` reports exactly the problem between router and engines, with its fix.
//!
//! Every misconfiguration here consists of real processes: the program's own engine, and where that
//! cannot misbehave, a [`front`] that changes its HTTP replies or a [`relay`] that changes its
//! events.

mod address;
#[cfg(feature = "nats")]
mod bus;
mod cache;
mod configuration;
mod endpoint;
mod events;
mod fleet;
mod front;
mod look;
mod ranks;
mod relay;
mod replay;
mod replicas;
mod report;
mod router;
mod tokens;
