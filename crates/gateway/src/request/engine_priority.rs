//! The router's order, told to engines that schedule by a number in the request.

use bytes::Bytes;
use dialect::Edit;
use fleet::{EngineKind, WorkerView};

use crate::Gateway;

/// What the header of rewrites says of it; also the member's name.
pub(super) const REWRITE: &str = "priority";

/// Whether this worker is told, unless the client does so itself.
pub(super) fn is_sent_to(gateway: &Gateway, worker: &WorkerView) -> bool {
    gateway.rules.engine_priority && worker.engine == EngineKind::Vllm
}

/// The body with the request's place in it; `None` where it cannot be spliced: it goes as it came.
pub(super) fn add_priority(body: &Bytes, turn: i64) -> Option<Bytes> {
    dialect::splice(body, &[Edit::Set(REWRITE, &turn.to_string())])
        .map(Bytes::from)
        .ok()
}
