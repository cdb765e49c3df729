//! `warmroute doctor` names what is wrong between router and engines, exactly that, and the way to mend it.
//!
//! Every misconfiguration here is made of real processes: the program's own engine, and where that is too well behaved a
//! [`front`] that changes what it says over HTTP or a [`relay`] that changes what it publishes.

mod address;
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
mod report;
mod router;
mod tokens;
