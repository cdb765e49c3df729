//! Replicas that reach each other's admin listeners.

use test_programs::ReservedPort;

use super::look::{DoctorRun, engine, look_with, write};
use crate::harness::{Program, RouterQueries};

/// A running router with these lines of configuration, which lists itself as a peer.
struct Peer {
    engine: Program,
    _router: Program,
    url: String,
    _port: ReservedPort,
}

impl Peer {
    fn start(lines: impl Fn(&str) -> String) -> Self {
        let engine = engine(&[]);
        let port = ReservedPort::new();
        let (address, url) = (port.address(), format!("http://{}", port.address()));
        let worker = [format!("w1={}", engine.url())];
        let flags = ["--admin-listen", &address];
        let router = Program::serve_with(&lines(&url), &worker, &flags);
        // A listener with a token answers nobody without it.
        let router = match lines(&url).contains("token_file") {
            true => router,
            false => router.ready(1),
        };
        Self {
            engine,
            _router: router,
            url,
            _port: port,
        }
    }

    fn look(&self, sections: &str) -> DoctorRun {
        look_with(&self.engine, "", sections)
    }
}

fn sharing(url: &str) -> String {
    format!("replicas: {{mode: peers, peers: [\"{url}\"]}}\n")
}

#[test]
fn a_peer_that_shares_passes() {
    let peer = Peer::start(sharing);
    let seen = peer.look(&sharing(&peer.url)).green();
    assert_eq!(seen.check("router", "replicas")["found"], "1");
    assert_eq!(seen.check("router", "nats")["status"], "skip");
}

#[test]
fn a_peer_has_other_settings() {
    let peer = Peer::start(sharing);
    let other = sharing(&peer.url).replace("mode", "namespace: other, mode");
    let fix = "make replicas.namespace, replicas.component, kv_events.block_hash and kv_events.block_hash_seed equal in all replicas";
    peer.look(&other).fails(&["router"], "replicas", fix, &[]);
}

#[test]
fn a_peer_wants_another_token() {
    let folder = tempfile::tempdir().unwrap();
    let token = |name: &str| {
        let file = write(
            folder.path(),
            name,
            &format!("{name}-token-of-the-operators\n"),
        );
        format!("admin: {{token_file: {file}}}\n")
    };
    let peer = Peer::start(|url| sharing(url) + &token("one"));
    let fix = "give all replicas the same admin.token_file";
    let look = |admin: &str| peer.look(&(sharing(&peer.url) + admin));
    look("").fails(&["router"], "replicas", fix, &[]);
    look(&token("two")).fails(&["router"], "replicas", fix, &[]);
    look(&token("one")).green();
}

#[test]
fn a_peer_shares_nothing() {
    let peer = Peer::start(|_| String::new());
    let fix = "set replicas.mode: peers in the router at {peer}, or leave it out of replicas.peers";
    let seen = peer.look(&sharing(&peer.url));
    seen.fails(&["router"], "replicas", fix, &[("peer", &peer.url)]);
}

#[test]
fn a_peer_is_no_router() {
    let engine = engine(&[]);
    let url = engine.url();
    let fix = "set replicas.mode: peers in the router at {peer}, or leave it out of replicas.peers";
    let seen = look_with(&engine, "", &sharing(&url));
    seen.fails(&["router"], "replicas", fix, &[("peer", &url)]);
}

#[test]
fn a_peer_does_not_run() {
    let port = ReservedPort::new();
    let url = format!("http://{}", port.address());
    let fix = "start the router at {peer}, or correct replicas.peers";
    let seen = look_with(&engine(&[]), "", &sharing(&url));
    seen.warns("router", "replicas", fix, &[("peer", &url)]);
}
