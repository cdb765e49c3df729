//! The cache headers of replies, in our format and that of vllm-router.

use contract_id::contract;

use super::{CachedRouter, cache_headers, chat_body, fine};

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
