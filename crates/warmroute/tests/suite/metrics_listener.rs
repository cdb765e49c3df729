//! `metrics.listen`: the metrics on a listener of their own.

use std::collections::BTreeSet;

use contract_id::contract;

use crate::harness::{
    Page, Program, RawClient, RawReply, RoutedFleet, chat, chat_message, eventually, streamed,
};

/// An address without a listener.
const NOBODY: &str = "http://127.0.0.1:1";
/// Any free port of loopback.
const FREE: &str = "127.0.0.1:0";

/// `host:port` of the metrics listener.
fn metrics_address(router: &Program) -> String {
    let address = router.ready["metrics"].as_str();
    address
        .expect("the ready line names the metrics address")
        .to_owned()
}

/// One call with these headers.
fn call(address: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> RawReply {
    let mut client = RawClient::connect(address);
    client.send(method, path, headers, b"");
    client.reply()
}

/// The names and labels of all series.
fn series(reply: &RawReply) -> BTreeSet<String> {
    Page::read(&reply.text())
        .samples
        .iter()
        .map(|sample| format!("{} {:?}", sample.name, sample.labels))
        .collect()
}

/// The number of requests that a page shows.
fn requests(reply: &RawReply) -> f64 {
    let page = Page::read(&reply.text());
    page.of("warmroute_requests_total")
        .map(|sample| sample.value)
        .sum()
}

#[test]
#[contract("V44")]
fn the_metrics_have_a_listener_of_their_own() {
    let routed = RoutedFleet::with(&[&[]], &format!("metrics: {{listen: \"{FREE}\"}}\n"), &[]);
    let address = metrics_address(&routed.router);
    routed.chat(&[chat_message("user", "Hello")], &[]);
    // Both pages are of one moment once nothing changes between them.
    eventually("the same series and the request on both listeners", || {
        let here = RawClient::get(&address, "/metrics");
        let admin = RawClient::get(&routed.router.admin(), "/metrics");
        assert_eq!((here.status, admin.status), (200, 200));
        assert_eq!(here.header("content-type"), admin.header("content-type"));
        let counted = requests(&here) >= 1.0 && requests(&here) == requests(&admin);
        (counted && series(&here) == series(&admin)).then_some(())
    });

    let mut head = RawClient::connect(&address);
    head.send("HEAD", "/metrics", &[], b"");
    let head = head.head();
    assert_eq!((head.status, head.body.len()), (200, 0));
}

#[test]
#[contract("V44")]
fn the_metrics_listener_refuses_everything_else() {
    let router = Program::serve(&[NOBODY.to_owned()], &["--metrics-listen", FREE]);
    let address = metrics_address(&router);
    for path in [
        "/",
        "/metrics/",
        "/admin/workers",
        "/admin/config",
        "/openapi.json",
        "/v1/models",
        "/v1/kv_events",
        "/query",
        "/livez",
    ] {
        let refused = RawClient::get(&address, path);
        assert_eq!(refused.status, 404, "{path}");
        assert_eq!(refused.error_code(), "unknown_route", "{path}");
        assert!(
            refused.text().contains("it answers GET /metrics"),
            "{path}: {}",
            refused.text()
        );
    }
    for path in ["/admin/reload", "/admin/drain", "/v1/chat/completions"] {
        assert_eq!(RawClient::post(&address, path, b"{}").status, 404, "{path}");
    }
    for method in ["POST", "PUT", "DELETE"] {
        let refused = call(&address, method, "/metrics", &[]);
        assert_eq!(refused.status, 405, "{method}");
        assert_eq!(refused.error_code(), "method_not_allowed", "{method}");
        assert!(refused.text().contains("use GET"), "{}", refused.text());
    }
}

#[test]
#[contract("V44")]
fn the_metrics_listener_admits_whom_the_admin_listener_admits() {
    let any = "0.0.0.0:0";
    let exposed = Program::finish(&["serve", "-w", NOBODY, "--metrics-listen", any]);
    assert_eq!(exposed.code, Some(78));
    for word in ["metrics.listen", "no token", "--admin-token-file"] {
        assert!(exposed.stderr.contains(word), "{}", exposed.stderr);
    }

    let dir = tempfile::tempdir().expect("a directory");
    let token = dir.path().join("token");
    std::fs::write(&token, "0123456789abcdef0123456789abcdef\n").expect("it can be written");
    let token = token.display().to_string();
    for listen in [any, FREE] {
        let flags = ["--metrics-listen", listen, "--admin-token-file", &token];
        let router = Program::serve(&[NOBODY.to_owned()], &flags);
        let address = metrics_address(&router).replace("0.0.0.0", "127.0.0.1");
        assert_eq!(RawClient::get(&address, "/metrics").status, 401, "{listen}");
        let bearer = ("authorization", "Bearer 0123456789abcdef0123456789abcdef");
        let scraped = call(&address, "GET", "/metrics", &[bearer]);
        assert_eq!(scraped.status, 200, "{listen}");
    }

    // A page of another site, under a name of its own, reads nothing from loopback.
    let router = Program::serve(&[NOBODY.to_owned()], &["--metrics-listen", FREE]);
    let mut client = RawClient::connect(&metrics_address(&router));
    client.send_bytes(b"GET /metrics HTTP/1.1\r\nhost: evil.test\r\n\r\n");
    assert_eq!(client.reply().status, 403);
}

#[test]
#[contract("V44")]
fn without_the_setting_or_with_metrics_switched_off_there_is_no_metrics_listener() {
    let router = Program::serve(&[NOBODY.to_owned()], &[]);
    assert!(router.ready["metrics"].is_null(), "{}", router.ready);
    let off = Program::serve_with(
        &format!("metrics: {{enabled: false, listen: \"{FREE}\"}}\n"),
        &[NOBODY.to_owned()],
        &[],
    );
    assert!(off.ready["metrics"].is_null(), "{}", off.ready);
    eventually("a warning about it", || {
        off.stderr()
            .contains("metrics.enabled is false")
            .then_some(())
    });
}

#[test]
#[contract("V44")]
fn the_metrics_are_served_while_the_router_drains() {
    let engine = Program::engine(&["--itl-ms", "20"]);
    let router = Program::serve(&[engine.url()], &["--metrics-listen", FREE]);
    eventually("the worker is ready", || {
        (RawClient::get(&router.data(), "/readyz").status == 200).then_some(())
    });
    let address = metrics_address(&router);
    let mut running = RawClient::chat(&router.data(), &streamed(chat("sim", "Hello", 5_000)));
    running.read_until("content");
    router.signal("TERM");
    eventually("readiness ends", || {
        (RawClient::get(&router.data(), "/readyz").status == 503).then_some(())
    });
    assert_eq!(RawClient::get(&address, "/metrics").status, 200);
    drop(running);
    assert_eq!(router.wait().code, Some(0));
}

#[test]
#[contract("V44")]
fn a_process_that_takes_over_gets_the_metrics_listener_too() {
    let engine = Program::engine(&["--no-kv-events"]);
    let workers = [format!("a={}", engine.url())];
    let old = Program::serve(&workers, &["--metrics-listen", FREE]);
    let (data, admin, metrics) = (old.data(), old.admin(), metrics_address(&old));
    let flags = [
        "--listen",
        &*data,
        "--admin-listen",
        &*admin,
        "--metrics-listen",
        &*metrics,
        "--takeover",
    ];
    let new = Program::serve(&workers, &flags);
    assert_eq!(metrics_address(&new), metrics);
    assert_eq!(old.wait().code, Some(0));
    assert_eq!(RawClient::get(&metrics, "/metrics").status, 200);
}
