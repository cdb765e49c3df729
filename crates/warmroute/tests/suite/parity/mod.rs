//! Predicted cached tokens are compared with the engine's, reported, and acted on.

mod figures;
mod fitness;
mod lost_events;
mod lying_proxy;
mod trust;
mod without_usage;
