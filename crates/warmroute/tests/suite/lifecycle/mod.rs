//! A router that keeps serving while its configuration, its workers and its own process change.

mod configured;
mod discovery;
mod load;
mod members;
mod reload;
mod rolling;
mod takeover;

pub(crate) use configured::ConfiguredFleet;
