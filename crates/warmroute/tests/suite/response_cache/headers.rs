//! The cache headers of replies, in our format and that of vllm-router.

use contract_id::contract;

use super::{CachedRouter, cache_headers, chat_body, fine};
use crate::harness::{RawClient, ScriptedEngine, ScriptedReply, json_reply};

#[test]
#[contract("V42", "CK26")]
fn headers_of_vllm_router_report_hits_too() {
    let cached = CachedRouter::with(
        "response_cache: {enabled: true}\ncompat: {headers: [vllm-router]}\n",
        fine(),
    );
    let [first, again] = [
        cached.send(&chat_body("why?")),
        cached.send(&chat_body("why?")),
    ];
    let header = |reply: &super::RawReply, name| reply.header(name).map(str::to_owned);
    assert_eq!(
        header(&first, "x-vllm-router-cache-status").as_deref(),
        Some("MISS")
    );
    assert_eq!(
        header(&again, "x-vllm-router-cache-status").as_deref(),
        Some("HIT")
    );
    assert_eq!(
        header(&again, "x-vllm-router-method").as_deref(),
        Some("cache-hit")
    );
}

#[test]
#[contract("CK26", "CH19", "S56")]
fn the_cache_status_is_reported_even_where_routing_is_not() {
    let config = "response_cache: {enabled: true}\ncompat: {expose_routing_headers: false}\n";
    let cached = CachedRouter::with(config, fine());
    let statuses: Vec<_> = (0..2)
        .map(|_| cache_headers(&cached.send(&chat_body("why?"))))
        .collect();
    assert_eq!(statuses, ["MISS -", "HIT -"]);
}

#[test]
#[contract("CH19", "CK26")]
fn a_request_that_is_refused_before_the_cache_has_the_status_bypass() {
    let rejects = json_reply("200 OK", "", r#"{"action":"reject"}"#);
    let hook = ScriptedEngine::start(ScriptedReply::whole(rejects));
    let config = format!(
        "server: {{max_body_bytes: 4KiB}}\nresponse_cache: {{enabled: true}}\n\
         pre_routing_hooks: [{{name: guard, url: \"{}/check\"}}]\n",
        hook.url()
    );
    let cached = CachedRouter::with(&config, fine());
    let long = chat_body(&"x".repeat(8000));
    for (body, status) in [(chat_body("why?"), 403), (long, 413)] {
        let reply = cached.send(&body);
        assert_eq!(
            (reply.status, cache_headers(&reply).as_str()),
            (status, "BYPASS refused"),
            "{}",
            reply.text()
        );
        let path = "/v1/embeddings";
        let other = RawClient::post(&cached.router.data(), path, body.to_string().as_bytes());
        assert_eq!(
            (other.status, other.header("x-cache")),
            (status, None),
            "its replies are never cached"
        );
    }
    assert_eq!(cached.engine.requests(), 0);
}
