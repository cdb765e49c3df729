//! Limits that hold whatever clients and engines do, and what is refused at them: counts, bytes, memory, patience.

mod connections;
mod counts;
mod heads;
mod held_bytes;
mod large_reply;
mod leaving;
mod memory;
mod swapped_model;
mod throttled;
mod unfinished;
