//! Several routers in front of the same engines, over each transport.

#[cfg(feature = "nats")]
mod bus;
mod group;
mod load;
mod membership;
mod notes;
mod peers;
