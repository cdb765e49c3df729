//! A panic costs one request, or one attempt of one task; a router that can no longer accept exits
//! with an error.

use contract_id::contract;
use serde_json::json;

use crate::harness::{
    Program, RawClient, RawReply, RouterQueries as _, chat, eventually, streamed,
};

/// Tasks of every router. Those for Redis, LMCache, NATS or a decision log run only if configured.
const TASKS: &[&str] = &[
    "accept",
    "admin_accept",
    "cluster_learning",
    "config_file",
    "event_stream",
    "housekeeping",
    "leases",
    "memory_watch",
    "model_lists",
    "parity",
    "probe_accept",
    "reply_keeper",
    "router_tick",
    "sighup",
    "stall_watch",
    "worker",
];

/// A router with this configuration and these injected panics.
fn panicking(rules: &str, yaml: &str, workers: &[String], flags: &[&str]) -> Program {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), yaml).unwrap();
    let flags = [&["-c", file.path().to_str().unwrap()], flags].concat();
    Program::serve_with_env(workers, &flags, &[("WARMROUTE_TEST_PANICS", rules)]).with_file(file)
}

fn panics(router: &Program, task: &str) -> f64 {
    router.metric("warmroute_task_panics_total", &format!("task=\"{task}\""))
}

fn send(router: &Program) -> RawReply {
    RawClient::chat(&router.data(), &chat("sim", "hi", 2)).reply()
}

#[test]
#[contract("F96")]
fn requests_flow_while_housekeeping_panics_every_second() {
    let engine = Program::engine(&["--no-kv-events"]);
    let router = panicking("housekeeping:every=1s", "", &[engine.url()], &[]).ready(1);
    let mut served = 0;
    eventually("three panics", || {
        assert_eq!(send(&router).status, 200);
        served += 1;
        (panics(&router, "housekeeping") >= 3.0).then_some(())
    });
    assert_eq!(RawClient::get(&router.data(), "/readyz").status, 200);
    assert_eq!(
        router.metric("warmroute_panics_total", ""),
        0.0,
        "no request is at fault"
    );
    eventually("the log to name the task", || {
        let log = router.stderr();
        log.contains("\"task\":\"housekeeping\"").then_some(())
    });
    router.wait_until_idle();
    assert!(served > 3);
}

#[test]
#[contract("F96")]
fn a_panic_costs_one_request_or_one_attempt_of_one_task() {
    let engines = [Program::engine(&[]), Program::engine(&["--no-kv-events"])];
    let yaml = "response_cache: {enabled: true}\nserver: {drain_grace: 0s, probe_listen: \"127.0.0.1:0\"}\n";
    let urls: Vec<_> = engines.iter().map(Program::url).collect();
    let router = panicking("every=200ms", yaml, &urls, &[]);
    let (mut failed, mut sent) = (0.0, 0.0);
    eventually("each task to have panicked", || {
        let reply = send_or_be_cut_off(&router);
        sent += 1.0;
        let lost = reply
            .as_ref()
            .is_none_or(|reply| reply.status == 500 || !reply.clean);
        failed += f64::from(u8::from(lost));
        // A request before the first worker is known gets 503.
        assert!(lost || reply.is_some_and(|reply| matches!(reply.status, 200 | 503)));
        TASKS
            .iter()
            .all(|task| panics(&router, task) >= 1.0)
            .then_some(())
    });
    let router = router.ready(2);
    let panicked = router.metric("warmroute_panics_total", "");
    assert!(
        failed <= panicked && failed < sent,
        "{failed} of {sent} requests failed of {panicked} panics"
    );

    // All tasks still work: file watching, worker supervision, event streams.
    router.configure(&format!("{yaml}routing: {{policy: least_loaded}}\n"));
    eventually("the file to be read again", || {
        let in_force = RawClient::get(&router.admin(), "/admin/config").json();
        (in_force["routing"]["policy"] == "least_loaded").then_some(())
    });
    eventually("the stream to be live", || {
        let streams = RawClient::get(&router.admin(), "/admin/streams").json();
        streams["streams"]
            .as_array()?
            .iter()
            .any(|stream| stream["state"] == "live")
            .then_some(())
    });
    eventually("no state of any request to be left", || {
        (router.metric("warmroute_leases", "") == 0.0).then_some(())
    });
    router.signal("TERM");
    let ended = router.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

/// The reply to a request; `None` if the connection ended before its head.
fn send_or_be_cut_off(router: &Program) -> Option<RawReply> {
    let address = router.data();
    std::panic::catch_unwind(move || RawClient::chat(&address, &chat("sim", "hi", 2)).reply()).ok()
}

#[test]
#[contract("F96")]
fn a_panic_while_a_reply_goes_out_is_counted_and_ends_that_reply_alone() {
    let engine = Program::engine(&["--no-kv-events", "--itl-ms", "20"]);
    let router = panicking("reply_body:every=1s", "", &[engine.url()], &[]).ready(1);
    // On a slow machine a panic comes before the first bytes of a reply.
    let cut = eventually("a stream to begin", || {
        let data = router.data();
        let begin = move || {
            let mut stream = RawClient::chat(&data, &streamed(chat("sim", "hi", 5000)));
            let begun = stream.read_until("content");
            stream.body(begun)
        };
        std::panic::catch_unwind(begin).ok()
    });
    assert!(
        !cut.clean && !cut.text().contains("[DONE]"),
        "{}",
        cut.text()
    );
    eventually("it to be counted", || {
        (router.metric("warmroute_panics_total", "") >= 1.0).then_some(())
    });
    router.wait_until_idle();
    eventually("the upstream request to be cancelled", || {
        (router.metric("warmroute_leases", "") == 0.0).then_some(())
    });
}

#[test]
#[contract("F97")]
fn a_router_that_cannot_accept_connections_reports_it_and_exits_with_1() {
    let engine = Program::engine(&["--no-kv-events", "--itl-ms", "20"]);
    let yaml = "server: {drain_grace: 0s, drain_timeout: 60s, probe_listen: \"127.0.0.1:0\"}\n";
    let router = panicking("accept:every=500ms", yaml, &[engine.url()], &[]);
    // Connections wait while the listener does not accept; accepted ones stay alive.
    let mut stream = eventually("a stream to run", || {
        let mut client = RawClient::chat(&router.data(), &streamed(chat("sim", "hi", 5000)));
        (client.head().status == 200).then_some(client)
    });
    let probe = router.ready["probe"].as_str().unwrap().to_owned();
    eventually("the probes to report it", || {
        let failed_probes = ["/livez", "/readyz"].map(|path| {
            let reply = RawClient::get(&probe, path);
            reply.status == 503
                && reply.json()
                    == json!({"status": "failed", "reasons": ["the data listener cannot accept connections"]})
        });
        (failed_probes == [true, true]).then_some(())
    });
    assert!(
        stream.chunk().is_some_and(|chunk| !chunk.is_empty()),
        "accepted connections stay open"
    );
    // The process ends with its last request.
    drop(stream);
    let ended = router.wait();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let last = ended.stderr.lines().last().unwrap_or_default();
    assert!(
        last.contains("ERROR") && last.contains("exit code 1"),
        "{last}"
    );
}
