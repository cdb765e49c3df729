//! Engine priority: the queue's order as a number in the request, for engines that schedule by it.

use bytes::Bytes;
use dialect::Edit;
use fleet::{EngineKind, WorkerView};

use crate::Gateway;

/// The entry in the rewrites header; also the member's name.
pub(super) const REWRITE: &str = "priority";

/// Returns whether this worker gets the number; a client's own number is kept.
pub(super) fn is_sent_to(gateway: &Gateway, worker: &WorkerView) -> bool {
    gateway.rules.engine_priority && worker.engine == EngineKind::Vllm
}

/// Adds the request's number to the body; `None` if it cannot be spliced: it is then sent
/// unchanged.
pub(super) fn add_priority(body: &Bytes, turn: i64) -> Option<Bytes> {
    dialect::splice(body, &[Edit::Set(REWRITE, &turn.to_string())])
        .map(Bytes::from)
        .ok()
}
