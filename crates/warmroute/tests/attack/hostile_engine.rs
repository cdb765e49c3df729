//! An engine that attacks the router by every means an engine has.

use std::time::Duration;

use serde_json::json;

use crate::harness::{ScriptedEngine, ScriptedReply, chunked};

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
/// Rounds of small replies for each large one.
const LARGE_EVERY: usize = 200;

/// A scripted engine whose artefacts and replies are hostile.
pub(crate) struct HostileEngine(ScriptedEngine);

impl HostileEngine {
    pub(crate) fn start() -> Self {
        let engine = ScriptedEngine::start(ScriptedReply::Cut(Vec::new()));
        // The engine poses as the simulator, whose tokenizer the router may fetch.
        engine.answer(
            "/version",
            "200 OK",
            &json!({"version": "warmroute-sim"}).to_string(),
        );
        engine.answer("/sim/stats", "200 OK", "{}");
        engine.answer("/sim/tokenizer.json", "200 OK", &tokenizer());
        engine.answer("/sim/tokenizer_config.json", "200 OK", &tokenizer_config());
        // More replies than the longest run requests.
        for number in 0..10_000 {
            small_replies()
                .into_iter()
                .for_each(|reply| engine.once(reply));
            if number % LARGE_EVERY == 0 {
                engine.once(large_reply());
            }
        }
        Self(engine)
    }

    pub(crate) fn url(&self) -> String {
        self.0.url()
    }

    /// The only model in its list.
    pub(crate) fn model(&self) -> &'static str {
        "m"
    }
}

/// A tokenizer with an id that would make an id table 34 GB large.
fn tokenizer() -> String {
    json!({
        "version": "1.0",
        "added_tokens": [{
            "id": 4_294_967_294_u32, "content": "<x>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }],
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
    })
    .to_string()
}

/// A template that doubles a text sixty times.
fn tokenizer_config() -> String {
    let doubled = "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
    json!({"chat_template": format!("{doubled}{{{{ ns.x }}}}")}).to_string()
}

fn small_replies() -> Vec<ScriptedReply> {
    vec![
        ScriptedReply::Cut(Vec::new()),
        ScriptedReply::Cut(
            b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\ncontent-length: 20\r\n\r\n".to_vec(),
        ),
        ScriptedReply::Cut([HEAD, b"content-length: 99999999\r\n\r\n{"].concat()),
        ScriptedReply::Late(
            Duration::from_millis(500),
            b"not HTTP at all\r\n\r\n".to_vec(),
        ),
    ]
}

/// A reply of one mebibyte that is not JSON.
fn large_reply() -> ScriptedReply {
    ScriptedReply::whole(
        [
            HEAD,
            b"transfer-encoding: chunked\r\n\r\n",
            &chunked(&[&vec![b'x'; 1 << 20]]),
        ]
        .concat(),
    )
}
