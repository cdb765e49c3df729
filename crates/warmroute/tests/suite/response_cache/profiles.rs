//! The four documented profiles start with their text unchanged.

use contract_id::contract;
use serde_json::json;

use crate::harness::{Program, RawClient, RouterQueries as _, eventually};

/// Tier 1; 1 and 2; 1 to 3; all.
const PROFILES: [&str; 4] = ["line0736", "line0747", "line0762", "line0782"];

fn profile(line: &str) -> String {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/seed-configs"
    );
    let files = std::fs::read_dir(folder)
        .expect("the folder of fixtures")
        .map(|file| file.expect("a file").path());
    let mut found = files.filter(|path| {
        path.to_string_lossy()
            .contains(&format!("continuum-kv-cache-{line}"))
    });
    std::fs::read_to_string(found.next().expect("the profile's file")).expect("a text")
}

#[test]
#[contract("CK83", "CK84", "CK36", "CK38", "F41")]
fn each_profile_starts_as_written_and_serves_with_redis_out_of_reach() {
    let engines: Vec<_> = (0..2)
        .map(|_| Program::engine(&["--no-kv-events"]))
        .collect();
    let backends = format!(
        "backends:\n  - {{name: vllm-1, url: \"{}\"}}\n  - {{name: vllm-2, url: \"{}\"}}\n",
        engines[0].url(),
        engines[1].url()
    );
    for (number, line) in PROFILES.into_iter().enumerate() {
        let config = format!("{}\n{backends}", profile(line));
        let router = Program::serve_with(&config, &[], &[]).ready(2);
        let body = json!({"model": "sim", "messages": [{"role": "user", "content": format!("Hello {line}")}],
            "max_tokens": 4, "temperature": 0});
        let send = || {
            RawClient::post(
                &router.data(),
                "/v1/chat/completions",
                body.to_string().as_bytes(),
            )
        };
        let [first, again] = [send(), send()];
        assert_eq!([first.status, again.status], [200, 200], "{line}");
        let cached = number > 0;
        assert_eq!(
            again.header("x-warmroute-cache-reason") == Some("stored"),
            cached,
            "{line}: {again:?}"
        );
        let stats = RawClient::get(&router.admin(), "/admin/response-cache/stats").json();
        assert_eq!(stats["enabled"], json!(cached));
        let redis = number > 1;
        let fallback = router.metric("continuum_cache_fallback_active", "");
        assert_eq!(fallback, if redis { 1.0 } else { 0.0 }, "{line}");
        if redis {
            assert_eq!(stats["redis"]["fallback_active"], json!(true));
            let health = || RawClient::get(&router.data(), "/health").json()["degraded"].clone();
            eventually("its health to report it", || {
                health().to_string().contains("redis").then_some(())
            });
        }
        let index = RawClient::get(&router.admin(), "/admin/kv-index/stats").json();
        assert_eq!(index["enabled"], json!(number == 3), "{line}");
    }
}
