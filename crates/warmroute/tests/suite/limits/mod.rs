//! Limits that hold against any client or engine: counts, bytes, memory and time.

mod access;
mod bypass;
mod connections;
mod counts;
mod destinations;
mod heads;
mod held_bytes;
mod labels;
mod large_reply;
mod leaving;
mod memory;
mod mutated_streams;
mod roles;
mod smuggling;
mod strict_stream;
mod swapped_model;
mod throttled;
mod unfinished;
mod wrong_keys;
