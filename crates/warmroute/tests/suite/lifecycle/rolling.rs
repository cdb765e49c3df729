//! All engines are replaced, one after the other, under load.

use std::time::Duration;

use contract_id::contract;
use serde_json::json;

use super::{configured::ConfiguredFleet, load::RequestLoad};
use crate::harness::{Program, eventually};

#[test]
#[contract("V38")]
fn every_engine_is_replaced_and_no_request_gets_503_while_requests_may_wait() {
    let yaml = |urls: &[String]| {
        let workers: Vec<String> = urls
            .iter()
            .enumerate()
            .map(|(n, url)| format!("  - {{name: old-{n}, url: \"{url}\"}}\n"))
            .collect();
        format!(
            "workers:\n{}queue: {{engine_wait_timeout_secs: 60}}\n",
            workers.concat()
        )
    };
    let mut it = ConfiguredFleet::start(2, yaml, &[]);
    it.until_ready(&["old-0", "old-1"]);
    let load = RequestLoad::start(&it.router.data(), 4, Duration::from_millis(30));
    for n in 0..2 {
        let old = format!("old-{n}");
        it.call("DELETE", &format!("/admin/workers/{old}"), b"");
        eventually("it to be gone", || {
            it.states()
                .iter()
                .all(|(name, _)| *name != old)
                .then_some(())
        });
        it.engines.remove(0).kill();
        let new = Program::engine(&["--no-kv-events", "--startup-delay", "1s"]);
        assert_eq!(
            it.post(
                "/admin/workers",
                &json!({"name": format!("new-{n}"), "url": new.url()})
            )
            .status,
            201
        );
        it.engines.push(new);
        if n == 0 {
            it.until_ready(&["new-0", "old-1"]);
        }
        let requests = load.requests();
        eventually("requests to go on", || {
            (load.requests() > requests + 20).then_some(())
        });
    }
    it.until_ready(&["new-0", "new-1"]);
    // Then all at once: requests wait until one engine is back. None is under way at the kill, as
    // it would cut a stream that has begun.
    it.call("DELETE", "/admin/workers/new-0", b"");
    let pause = load.pause();
    it.engines[1].kill();
    drop(pause);
    let last = Program::engine(&["--no-kv-events", "--startup-delay", "500ms"]);
    assert_eq!(
        it.post(
            "/admin/workers",
            &json!({"name": "last", "url": last.url()})
        )
        .status,
        201
    );
    it.engines.push(last);
    let requests = load.requests();
    eventually("requests to go on", || {
        (load.requests() > requests + 50).then_some(())
    });
    let requests = load.end_without_failure();
    eprintln!("{requests} requests over the replacement of all engines");
}
