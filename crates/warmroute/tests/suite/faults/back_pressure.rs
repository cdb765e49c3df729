//! Clients that read slowly or not at all.

use std::time::Duration;

use contract_id::contract;

use super::fleet::ScriptedFleet;
use crate::harness::{
    RawClient, RouterQueries as _, ScriptedReply, chat, chunk, eventually, stream_head, streamed,
};

#[test]
#[contract("F37")]
fn a_client_that_stops_reading_slows_the_engine_and_buffers_nothing() {
    let event = [b"data: ".as_slice(), &[b'x'; 8000], b"\n\n"].concat();
    let scripted = ScriptedFleet::one(
        ScriptedReply::Endless([stream_head(), chunk(&event)].concat(), chunk(&event)),
        "",
    );
    let engine = &scripted.engines[0];
    // The first request pays for one-time initialization.
    RawClient::chat(&scripted.router.data(), &streamed(chat("m", "hi", 1))).read_until("data: ");
    scripted.router.wait_until_idle();
    let before = scripted.router.resident();
    let taken_before = engine.taken();
    let mut clients: Vec<_> = (0..4)
        .map(|_| RawClient::chat(&scripted.router.data(), &streamed(chat("m", "hi", 1))))
        .collect();
    clients
        .iter_mut()
        .for_each(|client| drop(client.read_until("data: ")));
    // Waits until the engine cannot write any more: every buffer on the path is full.
    let mut last = 0;
    eventually("the engine to be held back", || {
        std::thread::sleep(Duration::from_millis(200));
        let taken = engine.taken();
        (std::mem::replace(&mut last, taken) == taken).then_some(())
    });
    let grown = scripted.router.resident().saturating_sub(before);
    let taken = engine.taken() - taken_before;
    eprintln!(
        "4 clients that do not read: {} KiB left the engine, the router grew by {} KiB",
        taken / 1024,
        grown / 1024
    );
    // 256 KiB for each stream, and as much again for other allocations of the process.
    assert!(
        grown < 2 << 20,
        "the router grew by {grown} bytes for 4 streams that stand still"
    );
    // The clients continue where they stopped.
    for client in &mut clients {
        let chunk = client.chunk().expect("the stream goes on");
        assert!(!chunk.is_empty());
    }
    drop(clients);
    scripted.router.wait_until_idle();
}
