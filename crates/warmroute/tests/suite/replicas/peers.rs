//! What is special to HTTP between routers.

use contract_id::contract;

use super::group::{Link, RouterGroup, engines};
use crate::{
    encryption::TestAuthority,
    harness::{Program, RawClient, eventually, words},
};

#[test]
fn mode_peers_without_peers_and_wrong_peers_are_refused_with_their_place() {
    for (section, expected) in [
        (
            "{mode: peers}",
            "replicas.peers: missing, and `replicas.mode` is peers",
        ),
        (
            "{mode: peers, peers: [\"10.0.0.1:9191\"]}",
            "replicas.peers[0]: `10.0.0.1:9191` is no admin listener",
        ),
        (
            "{mode: peers, peers: [\"dns:routers\"]}",
            "expected http://HOST:PORT, https://HOST:PORT or dns:NAME:PORT",
        ),
        (
            "{mode: peers, namespace: \"a.b\", peers: [\"http://a:1\"]}",
            "`a.b` is no name",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("w.yaml");
        std::fs::write(&file, format!("replicas: {section}\n")).unwrap();
        let finished = Program::finish(&["serve", "-c", file.to_str().unwrap()]);
        assert_eq!(finished.code, Some(78), "{}", finished.stderr);
        assert!(finished.stderr.contains(expected), "{}", finished.stderr);
    }
}

#[test]
fn peers_are_found_by_name_and_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    authority.write_certificate(folder.path());
    std::fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
    for link in [Link::Names, Link::Tls(folder)] {
        let is_tls = matches!(link, Link::Tls(_));
        let (_engines, workers) = engines(1, &[]);
        if is_tls {
            // The admin listener cannot be asked without a TLS client: the log tells.
            let group = RouterGroup::unseen(link, 2, workers);
            for router in group.routers.iter().flatten() {
                eventually("the other replica in the log", || {
                    router.stderr().contains("\"state\":\"live\"").then_some(())
                });
            }
            continue;
        }
        let group = RouterGroup::start(link, 2, workers);
        let _stream = group.long_stream(0, "one");
        group.until_in_flight(1, "a", 1);
    }
}

#[test]
#[contract("V41", "DY21")]
fn a_new_router_copies_the_index_of_a_peer_and_continues_it() {
    let (_engines, workers) = engines(2, &[]);
    let mut group = RouterGroup::start(Link::Peers, 2, workers);
    let prompts: Vec<_> = (0..6).map(|n| words(&format!("topic {n}"), 120)).collect();
    for prompt in &prompts {
        assert_eq!(group.chat(0, prompt, &[]).status, 200);
    }
    group.kill(1);
    group.start_router(1);
    let started = group.router(1);
    eventually("the log to report the copy", || {
        let log = started.stderr();
        log.contains("the index of a peer is copied").then_some(())
    });
    group.until_equal_digests();
    for prompt in &prompts {
        let reply = group.chat(1, prompt, &[]);
        let predicted = reply.header("x-warmroute-predicted-cached-tokens");
        let predicted: u64 = predicted.expect("a prediction").parse().unwrap();
        let usage = &reply.json()["usage"];
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], predicted);
        assert!(predicted > 0, "the first request already finds its blocks");
    }
}

#[test]
fn the_feed_needs_the_admin_token() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "0123456789abcdef").unwrap();
    let yaml = format!(
        "admin: {{token_file: {}}}\nreplicas: {{mode: peers, peers: [\"http://127.0.0.1:1\"], load_sync: true}}\n",
        token.display()
    );
    let router = Program::serve_with(&yaml, &["http://127.0.0.1:1".to_owned()], &[]);
    for path in [
        "/admin/replicas",
        "/admin/replicas/feed",
        "/admin/replicas/state?after=0",
        "/admin/replicas/snapshot",
    ] {
        let reply = RawClient::get(&router.admin(), path);
        assert_eq!(reply.status, 401, "{path}");
    }
    let mut client = RawClient::connect(&router.admin());
    let bearer = [("authorization", "Bearer 0123456789abcdef")];
    client.send("GET", "/admin/replicas/feed", &bearer, b"");
    let head = client.head();
    assert_eq!(head.status, 200);
    assert_eq!(head.header("x-warmroute-replica").map(str::len), Some(16));
}
