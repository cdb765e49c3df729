//! Replies much larger than any buffer.

use contract_id::contract;

use crate::{
    faults::fleet::ScriptedFleet,
    harness::{RawClient, RouterQueries as _, ScriptedReply, chat},
};

const MIB: usize = 1 << 20;

/// A plain reply of `mebibytes` mebibytes.
fn of(mebibytes: usize) -> ScriptedReply {
    let length = mebibytes * MIB;
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    ScriptedReply::Repeated(head.into_bytes(), vec![b'x'; MIB], mebibytes)
}

#[test]
#[contract("F22")]
fn a_plain_reply_of_400_mebibytes_passes_and_the_router_hardly_grows() {
    let scripted = ScriptedFleet::one(of(4), "");
    // The first request pays for one-time initialization.
    assert_eq!(scripted.post(&chat("m", "hi", 1)).body.len(), 4 * MIB);
    scripted.router.wait_until_idle();
    let before = scripted.router.resident();
    scripted.engines[0].script(of(400));
    let mut client = RawClient::chat(&scripted.router.data(), &chat("m", "hi", 1));
    let reply = client.head();
    assert_eq!(
        (reply.status, reply.header("content-length")),
        (200, Some(&*(400 * MIB).to_string()))
    );
    let mut most = 0;
    for quarter in 0..4 {
        assert_eq!(
            client.skip(100 * MIB as u64),
            100 * MIB as u64,
            "quarter {quarter}"
        );
        most = most.max(scripted.router.resident());
    }
    let grown = most.saturating_sub(before);
    eprintln!("400 MiB passed, the router grew by {} KiB", grown / 1024);
    assert!(grown < 8 << 20, "{grown} bytes");
    scripted.router.wait_until_idle();
}
