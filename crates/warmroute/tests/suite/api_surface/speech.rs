//! `/v1/audio/speech`: sound is relayed as it comes.

use std::time::Duration;

use contract_id::contract;

use super::RoutedEngine;
use crate::harness::{PieceGate, RawClient, ScriptedReply, chunk};

const PATH: &str = "/v1/audio/speech";
const BODY: &str = r#"{"model":"m","input":"Hi","voice":"v"}"#;

#[test]
#[contract("V36")]
fn speech_reaches_the_client_while_the_engine_still_computes_it() {
    let pair = RoutedEngine::start();
    let gate = PieceGate::new();
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ntransfer-encoding: chunked\r\n\r\n";
    let pieces = vec![
        [&head[..], &chunk(b"first")].concat(),
        [chunk(b"second"), b"0\r\n\r\n".to_vec()].concat(),
    ];
    pair.engine
        .script(ScriptedReply::Gated(pieces, gate.clone()));
    let mut client = RawClient::connect(&pair.router.data());
    client.send("POST", PATH, &[], BODY.as_bytes());
    gate.open();
    let begun = client.read_until("first");
    assert_eq!(begun.header("content-type"), Some("audio/mpeg"));
    gate.open();
    let mut whole = begun;
    while let Some(chunk) = client.chunk().filter(|chunk| !chunk.is_empty()) {
        whole.body.extend(chunk);
    }
    assert_eq!(whole.text(), "firstsecond");
    pair.wait_until_idle();
}

#[test]
#[contract("V36")]
fn long_speech_of_announced_length_is_forwarded_byte_for_byte() {
    let pair = RoutedEngine::start();
    let sound: Vec<u8> = (0..=250).cycle().take(3_000_000).collect();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: {}\r\n\r\n",
        sound.len()
    );
    pair.engine.script(ScriptedReply::Pieces(
        vec![head.into_bytes(), sound.clone()],
        Duration::ZERO,
    ));
    let (seen, reply) = pair.carried(PATH, BODY);
    assert_eq!(String::from_utf8_lossy(&seen.body), BODY);
    assert_eq!((reply.status, reply.clean), (200, true));
    assert!(reply.body == sound, "the sound changed on its way");
    let receipt = pair.receipt(&reply);
    assert_eq!(
        (
            receipt["route"].as_str(),
            receipt["outcome"]["kind"].as_str()
        ),
        (Some(PATH), Some("ok"))
    );
    pair.wait_until_idle();
}
