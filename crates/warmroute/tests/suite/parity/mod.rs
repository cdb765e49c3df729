//! What was predicted is compared with what came of it, shown, and acted on.

mod figures;
mod fitness;
mod lost_events;
mod lying_proxy;
mod trust;
mod without_usage;
