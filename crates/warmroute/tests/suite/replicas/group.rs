//! Routers that share state, before simulated engines.

use serde_json::{Value, json};
use tempfile::TempDir;
use test_programs::ReservedPort;

use crate::harness::{Program, RawClient, RawReply, RouterQueries, eventually};
#[cfg(feature = "nats")]
use crate::nats_server::NatsServer;

/// How the routers of a test reach each other.
pub(super) enum Link {
    /// Over HTTP.
    Peers,
    /// Over HTTP, by names.
    Names,
    /// Over HTTPS, with the certificate in this folder.
    Tls(TempDir),
    /// Over a NATS server.
    #[cfg(feature = "nats")]
    Nats(NatsServer),
}

impl Link {
    /// Every link, each with its own servers.
    pub(super) fn all() -> Vec<Self> {
        vec![
            Self::Peers,
            #[cfg(feature = "nats")]
            Self::nats(),
        ]
    }

    #[cfg(feature = "nats")]
    pub(super) fn nats() -> Self {
        Self::Nats(NatsServer::start_with_store())
    }

    pub(super) fn mode(&self) -> &'static str {
        match self {
            Self::Peers | Self::Names | Self::Tls(_) => "peers",
            #[cfg(feature = "nats")]
            Self::Nats(_) => "nats",
        }
    }
}

/// A group of routers. Dropping it stops them.
pub(super) struct RouterGroup {
    pub(super) routers: Vec<Option<Program>>,
    pub(super) link: Link,
    workers: Vec<String>,
    /// The admin listeners.
    ports: Vec<ReservedPort>,
    settings: String,
}

impl RouterGroup {
    /// Starts this many routers before workers (`name=url`), and waits until they know each other.
    pub(super) fn start(link: Link, routers: usize, workers: Vec<String>) -> Self {
        Self::with(link, routers, workers, "")
    }

    /// The same with other keys of section `replicas` in place of load sync with short times, each
    /// after a comma.
    pub(super) fn with(link: Link, routers: usize, workers: Vec<String>, keys: &str) -> Self {
        let group = Self::configured(link, routers, workers, keys);
        group.until_acquainted();
        group
    }

    /// Starts routers whose admin listeners are encrypted, and waits for nothing.
    pub(super) fn unseen(link: Link, routers: usize, workers: Vec<String>) -> Self {
        Self::configured(link, routers, workers, "")
    }

    /// Starts the routers without waiting for their acquaintance.
    #[cfg(feature = "nats")]
    pub(super) fn apart(link: Link, routers: usize, workers: Vec<String>) -> Self {
        Self::configured(link, routers, workers, "")
    }

    fn configured(link: Link, routers: usize, workers: Vec<String>, keys: &str) -> Self {
        let ports: Vec<_> = (0..routers).map(|_| ReservedPort::new()).collect();
        let peers = |address: &dyn Fn(&ReservedPort) -> String| {
            let all: Vec<_> = ports.iter().map(address).collect();
            format!("peers: [{}]", all.join(", "))
        };
        let mut sections = String::new();
        let link_keys = match &link {
            Link::Peers => peers(&|port| format!("\"http://{}\"", port.address())),
            Link::Names => peers(&|port| format!("\"dns:localhost:{}\"", port.number())),
            Link::Tls(folder) => {
                let at = folder.path().display();
                sections = format!("admin: {{tls: {{cert: {at}/cert.pem, key: {at}/key.pem}}}}\n");
                let peers = peers(&|port| format!("\"https://{}\"", port.address()));
                format!("{peers}, ca: {at}/ca.pem")
            }
            #[cfg(feature = "nats")]
            Link::Nats(server) => format!("nats: {{url: \"{}\"}}", server.url()),
        };
        let mode = link.mode();
        let keys = match keys {
            "" => ", load_sync: true, digest_interval: 200ms, peer_ttl: 2s",
            keys => keys,
        };
        let settings = format!(
            "routing: {{tokenize_budget: 60s, session: {{mode: hard}}}}\nreplicas: {{mode: {mode}, {link_keys}{keys}}}\n{sections}"
        );
        let mut group = Self {
            routers: (0..routers).map(|_| None).collect(),
            link,
            workers,
            ports,
            settings,
        };
        (0..routers).for_each(|at| group.start_router(at));
        group
    }

    /// Adds a name to the settings of routers that start from now on.
    pub(super) fn rename(&mut self, key: &str) {
        let mode = format!("mode: {}", self.link.mode());
        let both = format!("{mode}, {key}");
        self.settings = self.settings.replace(&mode, &both);
    }

    /// Starts the router at this position, which does not run.
    pub(super) fn start_router(&mut self, at: usize) {
        let address = self.ports[at].address().to_string();
        let flags = ["--admin-listen", &address];
        let router = Program::serve_with(&self.settings, &self.workers, &flags);
        self.routers[at] = Some(match self.link {
            Link::Tls(_) => router,
            _ => router.ready(self.workers.len()),
        });
    }

    pub(super) fn kill(&mut self, at: usize) {
        self.routers[at].take().expect("it runs").kill();
    }

    pub(super) fn router(&self, at: usize) -> &Program {
        self.routers[at].as_ref().expect("it runs")
    }

    /// Waits until every router sees every other one as live.
    pub(super) fn until_acquainted(&self) {
        let running = self.routers.iter().flatten().count();
        for router in self.routers.iter().flatten() {
            eventually("the routers to know each other", || {
                let live = states(router).into_iter().filter(|state| state == "live");
                (live.count() == running).then_some(())
            });
        }
    }

    /// Returns the requests in flight on a worker, as the router at this position counts them.
    pub(super) fn in_flight(&self, at: usize, worker: &str) -> u64 {
        let path = format!("/admin/workers/{worker}");
        let worker = RawClient::get(&self.router(at).admin(), &path).json();
        worker["load"]["in_flight"].as_u64().expect("a count")
    }

    /// Waits until the router at this position counts this many requests on a worker.
    pub(super) fn until_in_flight(&self, at: usize, worker: &str, expected: u64) {
        let what = format!("router {at} to count {expected} requests on {worker}");
        eventually(&what, || {
            (self.in_flight(at, worker) == expected).then_some(())
        });
    }

    /// Waits until every router has the same digest of the same blocks, and some.
    pub(super) fn until_equal_digests(&self) {
        eventually("the routers to have the same index", || {
            let routers = self.routers.iter().flatten();
            let digests: Vec<Value> = routers
                .map(|router| RawClient::get(&router.admin(), "/admin/kv-index/digest").json())
                .collect();
            let some = digests[0]["targets"]
                .as_array()
                .is_some_and(|it| !it.is_empty());
            (some && digests.iter().all(|digest| *digest == digests[0])).then_some(())
        });
    }

    /// Sends a chat to the router at this position and returns its reply.
    pub(super) fn chat(&self, at: usize, text: &str, headers: &[(&str, &str)]) -> RawReply {
        let body = json!({
            "model": "sim", "max_tokens": 4, "ignore_eos": true,
            "messages": [{"role": "user", "content": text}],
        });
        self.send(at, "/v1/chat/completions", &body, headers)
    }

    pub(super) fn send(
        &self,
        at: usize,
        path: &str,
        body: &Value,
        headers: &[(&str, &str)],
    ) -> RawReply {
        let body = body.to_string();
        RawClient::post_with(&self.router(at).data(), path, headers, body.as_bytes())
    }

    /// Begins a streamed chat of many tokens and returns when its first event is there.
    pub(super) fn long_stream(&self, at: usize, text: &str) -> RawClient {
        let body = json!({
            "model": "sim", "max_tokens": 20_000, "ignore_eos": true, "stream": true,
            "messages": [{"role": "user", "content": text}],
        });
        let mut client = RawClient::chat(&self.router(at).data(), &body);
        let _begun = client.read_until("data: ");
        client
    }
}

/// Returns `GET /admin/replicas`.
pub(super) fn report(router: &Program) -> Value {
    RawClient::get(&router.admin(), "/admin/replicas").json()
}

/// Returns the states of all replicas that a router knows, its own first.
pub(super) fn states(router: &Program) -> Vec<String> {
    let report = report(router);
    let replicas = report["replicas"].as_array().expect("a list").iter();
    replicas
        .map(|replica| replica["state"].as_str().expect("a state").to_owned())
        .collect()
}

/// Starts engines whose replies of many tokens take long, and returns them with the flags that
/// name them `a`, `b`, ...
pub(super) fn engines(count: usize, flags: &[&str]) -> (Vec<Program>, Vec<String>) {
    let engines: Vec<_> = (0..count).map(|_| Program::engine(flags)).collect();
    let names = ('a'..).zip(&engines);
    let workers = names
        .map(|(name, engine)| format!("{name}={}", engine.url()))
        .collect();
    (engines, workers)
}

/// Returns the worker that a reply names.
pub(super) fn worker_of(reply: &RawReply) -> String {
    let worker = reply.header("x-warmroute-worker");
    worker.expect("a worker's name").to_owned()
}
