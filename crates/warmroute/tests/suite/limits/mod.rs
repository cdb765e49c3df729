//! Limits that hold against any client or engine: counts, bytes, memory and time.

mod access;
mod connections;
mod counts;
mod heads;
mod held_bytes;
mod large_reply;
mod leaving;
mod memory;
mod roles;
mod smuggling;
mod swapped_model;
mod throttled;
mod unfinished;
mod wrong_keys;
