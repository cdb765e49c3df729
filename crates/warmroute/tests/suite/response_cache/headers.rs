//! What replies say of the cache, and in whose words.

use contract_id::contract;

use super::{CachedRouter, cache_headers, fine, question};

#[test]
#[contract("V42", "CK26")]
fn the_other_routers_headers_tell_of_hits_too() {
    let cached = CachedRouter::with(
        "response_cache: {enabled: true}\ncompat: {headers: [vllm-router]}\n",
        fine(),
    );
    let [first, again] = [cached.ask(&question("why?")), cached.ask(&question("why?"))];
    let said = |reply: &super::RawReply, name| reply.header(name).map(str::to_owned);
    assert_eq!(
        said(&first, "x-vllm-router-cache-status").as_deref(),
        Some("MISS")
    );
    assert_eq!(
        said(&again, "x-vllm-router-cache-status").as_deref(),
        Some("HIT")
    );
    assert_eq!(
        said(&again, "x-vllm-router-method").as_deref(),
        Some("cache-hit")
    );
}

#[test]
#[contract("CK26", "CH19", "S56")]
fn what_the_cache_did_is_told_also_where_routing_is_not() {
    let config = "response_cache: {enabled: true}\ncompat: {expose_routing_headers: false}\n";
    let cached = CachedRouter::with(config, fine());
    let told: Vec<_> = (0..2)
        .map(|_| cache_headers(&cached.ask(&question("why?"))))
        .collect();
    assert_eq!(told, ["MISS -", "HIT -"]);
}
