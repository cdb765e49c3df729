//! Engine priority: the queue's order as a number in the request, for engines that schedule by it.

use bytes::Bytes;
use dialect::Edit;

/// The entry in the rewrites header; also the member's name.
pub(super) const REWRITE: &str = "priority";

/// Adds the request's number to the body; `None` if it cannot be spliced: it is then sent
/// unchanged.
pub(super) fn add_priority(body: &Bytes, turn: i64) -> Option<Bytes> {
    dialect::splice(body, &[Edit::Set(REWRITE, &turn.to_string())])
        .map(Bytes::from)
        .ok()
}
