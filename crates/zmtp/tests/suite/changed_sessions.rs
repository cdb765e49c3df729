//! Recorded sessions with mutations: any input is handled, and its split into reads does not
//! matter.

#[path = "../../../../fuzz/checks/mutation.rs"]
mod mutation;
#[path = "../../../kv-index/tests/oracle/random.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod random;
#[path = "../../../../fuzz/checks/zmtp_session.rs"]
mod zmtp_session;

#[test]
fn mutated_sessions_are_handled() {
    mutation::survives(&["fuzz/seeds/zmtp_session"], zmtp_session::check);
}
