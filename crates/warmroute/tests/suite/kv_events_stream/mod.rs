//! `GET /v1/kv_events` of the running program: what is told, to whom, and that whoever reads along knows what the router
//! knows.

mod feeding;
mod following;
mod refusals;
mod shape;
mod slow_reader;
mod subscriber;
