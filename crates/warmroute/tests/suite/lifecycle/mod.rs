//! A router that goes on while everything around it changes: its configuration, its workers, its own process.

mod configured;
mod discovery;
mod load;
mod members;
mod reload;
mod rolling;
mod takeover;
