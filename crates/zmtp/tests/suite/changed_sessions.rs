//! Recorded sessions with changes: whatever a peer sends is survived, and how it is cut does not matter.

#[path = "../../../../fuzz/checks/mutation.rs"]
mod mutation;
#[path = "../../../kv-index/tests/oracle/random.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod random;
#[path = "../../../../fuzz/checks/zmtp_session.rs"]
mod zmtp_session;

#[test]
fn changed_sessions_are_survived() {
    mutation::survives(&["fuzz/seeds/zmtp_session"], zmtp_session::check);
}
