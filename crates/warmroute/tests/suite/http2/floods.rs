//! Clients that flood an HTTP/2 connection.

use contract_id::contract;

use super::frames::{
    CALM, CONTINUATION, DATA, END_HEADERS, END_STREAM, FrameClient, GO_AWAY, HEADERS, PING,
    PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE, block, borrowed, chat_head, frame,
};
use crate::{
    faults::fleet::{ScriptedFleet, fine},
    harness::{RouterQueries as _, ScriptedReply, chat},
};

/// Frames that a flood sends at most: one that passes them all has no limit.
const MOST: usize = 300_000;
/// Growth of the router's memory, in bytes.
const GROWTH: u64 = 16 << 20;

/// What a client sends again and again.
type Flood = fn(&mut FrameClient, &str) -> Vec<u8>;

fn request(client: &mut FrameClient, data: &str, flags: u8) -> (u32, Vec<u8>) {
    let stream = client.next_stream();
    let block = block(&borrowed(&chat_head(data)));
    (stream, frame(HEADERS, flags, stream, &block))
}

const FLOODS: [(&str, Flood); 8] = [
    ("pings", |_, _| frame(PING, 0, 0, &[0; 8])),
    ("settings", |_, _| frame(SETTINGS, 0, 0, &[])),
    ("priorities", |_, _| frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1])),
    ("unknown frames", |_, _| frame(200, 0, 0, &[0; 4])),
    ("windows of one byte", |_, _| {
        frame(WINDOW_UPDATE, 0, 0, &1u32.to_be_bytes())
    }),
    ("rapid resets", |client, data| {
        let (stream, mut bytes) = request(client, data, END_HEADERS);
        bytes.extend(frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()));
        bytes
    }),
    ("streams that the router resets", |client, data| {
        let stream = client.next_stream();
        let mut head = chat_head(data);
        head.push(("content-length", "1".to_owned()));
        let mut bytes = frame(HEADERS, END_HEADERS, stream, &block(&borrowed(&head)));
        // More data than announced is an error of the stream.
        bytes.extend(frame(DATA, END_STREAM, stream, &[0; 20]));
        bytes
    }),
    ("empty data", |client, data| {
        let (stream, mut bytes) = request(client, data, END_HEADERS);
        bytes.extend(frame(DATA, 0, stream, &[]).repeat(100));
        bytes
    }),
];

#[test]
#[contract("S32")]
fn a_flood_ends_its_connection_and_costs_others_nothing() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let data = scripted.router.data();
    assert_eq!(scripted.post(&chat("m", "hi", 1)).status, 200);
    let before = scripted.router.resident();
    for (what, flood) in FLOODS {
        let mut client = FrameClient::connect(&data);
        let mut sent = 0;
        // In pieces of some size, so that the sender is not the bound.
        while sent < MOST {
            let bytes: Vec<u8> = (0..64).flat_map(|_| flood(&mut client, &data)).collect();
            if !client.offer(&bytes) {
                break;
            }
            sent += 64;
            if sent % 6_400 == 0 {
                assert_eq!(scripted.post(&chat("m", "hi", 1)).status, 200, "{what}");
            }
        }
        assert!(sent < MOST, "{what}: it is never ended");
        // Bytes that were on the way may reset the connection before the client reads why.
        if let Some(last) = client.frame_of(&[GO_AWAY]) {
            assert_eq!(last.code(), CALM, "{what}");
        }
        scripted.router.wait_until_idle();
    }
    let grown = scripted.router.resident().saturating_sub(before);
    assert!(grown <= GROWTH, "{grown} bytes");
}

#[test]
#[contract("S32")]
fn a_head_without_an_end_is_ended() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let data = scripted.router.data();
    assert_eq!(scripted.post(&chat("m", "hi", 1)).status, 200);
    let before = scripted.router.resident();
    let mut client = FrameClient::connect(&data);
    let (stream, head) = request(&mut client, &data, 0);
    assert!(client.offer(&head));
    let more = block(&[("x-more", &"a".repeat(100))]).repeat(100);
    let continued = frame(CONTINUATION, 0, stream, &more);
    let sent = (0..20_000).take_while(|_| client.offer(&continued)).count();
    assert!(sent < 20_000, "it is never ended");
    assert!(scripted.router.resident().saturating_sub(before) <= GROWTH);
}

#[test]
#[contract("S32")]
fn a_small_block_that_expands_to_a_large_head_is_refused() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let data = scripted.router.data();
    assert_eq!(scripted.post(&chat("m", "hi", 1)).status, 200);
    let before = scripted.router.resident();
    let mut client = FrameClient::connect(&data);
    let stream = client.next_stream();
    let mut fields = block(&borrowed(&chat_head(&data)));
    // A field that enters the table, and thousands of references to it, of one byte each.
    fields.extend([0x40, 1, b'x', 0x7f, 0xa1, 0x1d]);
    fields.extend([b'a'; 3_872]);
    fields.extend([0xbe; 12_000]);
    client.offer(&frame(HEADERS, END_HEADERS, stream, &fields));
    let answer = client.frame_of(&[HEADERS, RST_STREAM, GO_AWAY]);
    assert!(
        answer.is_none_or(|frame| frame.kind != HEADERS || frame.payload.len() < 1_000),
        "a short refusal"
    );
    assert_eq!(scripted.requests(), 1);
    assert!(scripted.router.resident().saturating_sub(before) <= GROWTH);
}
