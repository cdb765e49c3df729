//! One publisher's stream over two ways: its own ZMQ sockets, and the log that the routers of a
//! fleet share.
//!
//! | role | followed | besides |
//! |---|---|---|
//! | owner | the engine | publishes every batch that its sequencer accepted |
//! | follower | the log | asks the engine where the log proves nothing |
//! | alone | the engine | nobody publishes, or there is no connection to the log |
//!
//! One sequencer takes the batches of both ways, so a change of the way clears nothing and repeats
//! nothing. On each change the engine's replay is asked for what follows the last batch; until the
//! answer has come, the log's batches wait. A batch of the log is applied only if it continues the
//! last one by number and digest. One that was applied before is dropped; any other means that the
//! log lost something, or that the engine restarted, and the engine's replay tells which.
//!
//! Only publishers with a replay endpoint are followed so: without one a loss in the log could not
//! be repaired.
//!
//! **Invariant**: a batch is applied once, whichever way it came; nothing is credited because the
//! log says so.

mod follower;
mod recent;
mod repair;
mod source;

pub use source::SharedLogSource;
