//! Endpoints of a worker's KV events, per data-parallel rank.
//!
//! Engines describe their own sockets (`GET /kv_event_sources`) as they bound them; `tcp://*:5557`
//! means "every interface of mine", so the host of the worker's URL replaces the star.
//!
//! **Invariant**: an announcement leads only to the worker's own host, so that no engine makes the
//! router connect elsewhere or follow the publisher of a worker on another host. Only the
//! configuration names other hosts.

use net::WorkerUrl;
use serde_json::Value;

/// One rank's publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventEndpoint {
    /// The rank.
    pub rank: u32,
    /// Its live socket, as reachable from here.
    pub endpoint: String,
    /// Its replay socket.
    pub replay_endpoint: Option<String>,
    /// Topic prefix to subscribe to.
    pub topic: String,
}

/// Ranks read from one reply.
const MOST_RANKS: u32 = 1024;
/// Longest accepted endpoint or topic, in bytes.
const LONGEST: usize = 512;

/// Reads `/kv_event_sources` of the worker at `url`. `None`: no such reply. An empty list: the
/// engine publishes nothing.
pub(crate) fn read(body: &[u8], url: &WorkerUrl) -> Option<Vec<EventEndpoint>> {
    let reply: Value = serde_json::from_slice(body).ok()?;
    let mut found: Vec<EventEndpoint> = Vec::new();
    for (rank, source) in reply.as_object()? {
        let Some(rank) = rank.parse::<u32>().ok().filter(|rank| *rank < MOST_RANKS) else {
            continue;
        };
        let text = |key: &str| {
            source
                .get(key)
                .and_then(Value::as_str)
                .filter(|text| text.len() <= LONGEST)
        };
        if source
            .get("enable_kv_cache_events")
            .and_then(Value::as_bool)
            == Some(false)
        {
            continue;
        }
        if source
            .get("publisher")
            .and_then(Value::as_str)
            .is_some_and(|publisher| publisher != "zmq")
        {
            continue;
        }
        let Some(endpoint) = text("endpoint").and_then(|endpoint| own_endpoint(endpoint, url))
        else {
            continue;
        };
        found.push(EventEndpoint {
            rank,
            endpoint,
            replay_endpoint: text("replay_endpoint")
                .and_then(|endpoint| own_endpoint(endpoint, url)),
            topic: text("topic").unwrap_or_default().to_owned(),
        });
    }
    found.sort_by_key(|source| source.rank);
    Some(found)
}

/// The host of a worker as endpoints on it are written; an engine behind a unix socket shares our
/// machine.
pub(crate) fn host_of(url: &WorkerUrl) -> &str {
    url.host().unwrap_or("127.0.0.1")
}

/// Returns an announced endpoint on the worker's own host, whatever host it names. A file of this
/// machine can only be meant by a worker that is on it.
fn own_endpoint(endpoint: &str, url: &WorkerUrl) -> Option<String> {
    if endpoint.starts_with("ipc://") {
        return file_endpoint(endpoint).filter(|_| url.is_loopback());
    }
    let (_, port) = host_and_port(endpoint)?;
    Some(tcp(host_of(url), port))
}

/// Returns a configured endpoint as reachable from here: wildcard hosts become `host`; tcp and ipc
/// only.
pub(crate) fn reachable_endpoint(endpoint: &str, host: &str) -> Option<String> {
    if endpoint.starts_with("ipc://") {
        return file_endpoint(endpoint);
    }
    let (named, port) = host_and_port(endpoint)?;
    let host = match named {
        "*" | "0.0.0.0" | "::" | "[::]" | "" => host,
        named => named,
    };
    Some(tcp(host, port))
}

fn file_endpoint(endpoint: &str) -> Option<String> {
    (endpoint.len() > "ipc://".len()).then(|| endpoint.to_owned())
}

fn host_and_port(endpoint: &str) -> Option<(&str, u16)> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    Some((host, port.parse().ok().filter(|port| *port > 0)?))
}

/// `tcp://host:port`, with brackets around an IPv6 address.
pub(crate) fn tcp(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("tcp://[{host}]:{port}")
    } else {
        format!("tcp://{host}:{port}")
    }
}

/// Returns the endpoint of a further rank: engines add the rank to a TCP port; ipc has no rule
/// beyond rank 0.
pub(crate) fn of_rank(endpoint: &str, rank: u32) -> Option<String> {
    if rank == 0 {
        return Some(endpoint.to_owned());
    }
    let (front, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    let port = port
        .parse::<u32>()
        .ok()?
        .checked_add(rank)
        .and_then(|port| u16::try_from(port).ok())?;
    Some(format!("tcp://{front}:{port}"))
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn at(url: &str) -> WorkerUrl {
        url.parse().unwrap()
    }

    #[test]
    fn a_real_engines_reply_yields_reachable_endpoints() {
        let reply =
            include_bytes!("../../../../tests/fixtures/vllm-real/0.32.0-kv_event_sources.json");
        let want = EventEndpoint {
            rank: 0,
            endpoint: "tcp://10.1.2.3:8241".into(),
            replay_endpoint: Some("tcp://10.1.2.3:8341".into()),
            topic: String::new(),
        };
        assert_eq!(read(reply, &at("http://10.1.2.3:8000")), Some(vec![want]));
    }

    #[test]
    #[contract("S37", "S39", "S79")]
    fn an_announcement_leads_only_to_the_worker_s_own_host() {
        let own = |endpoint: &str, url: &str| {
            let body =
                serde_json::json!({"0": {"endpoint": endpoint, "replay_endpoint": endpoint}});
            let found = read(body.to_string().as_bytes(), &at(url)).unwrap();
            found.into_iter().next().map(|found| {
                assert_eq!(found.replay_endpoint.as_ref(), Some(&found.endpoint));
                found.endpoint
            })
        };
        for announced in [
            "tcp://*:5557",
            "tcp://10.0.0.7:5557",
            "tcp://169.254.169.254:5557",
            "tcp://metadata.google.internal:5557",
            "tcp://127.0.0.1:5557",
            "tcp://[::1]:5557",
            "tcp://user@elsewhere:5557",
        ] {
            for (url, want) in [
                ("http://10.0.0.5:8000", "tcp://10.0.0.5:5557"),
                (
                    "https://engine-0.pool:8000/base",
                    "tcp://engine-0.pool:5557",
                ),
                ("http://[fd00::5]:8000", "tcp://[fd00::5]:5557"),
                ("unix:///run/engine.sock", "tcp://127.0.0.1:5557"),
            ] {
                assert_eq!(own(announced, url).as_deref(), Some(want), "{announced}");
            }
        }
        for (url, followed) in [
            ("unix:///run/engine.sock", true),
            ("http://127.0.0.1:8000", true),
            ("http://localhost:8000", true),
            ("http://[::1]:8000", true),
            ("http://10.0.0.5:8000", false),
            ("http://localhost.evil.test:8000", false),
            ("http://127.0.0.1.evil.test", false),
        ] {
            let found = own("ipc:///run/docker.sock", url);
            assert_eq!(found.is_some(), followed, "{url}");
        }
    }

    #[test]
    fn only_wildcards_of_the_configuration_become_the_workers_host() {
        for (endpoint, want) in [
            ("tcp://*:1", "tcp://h:1"),
            ("tcp://0.0.0.0:1", "tcp://h:1"),
            ("tcp://[::]:1", "tcp://h:1"),
            ("tcp://:::1", "tcp://h:1"),
            ("tcp://10.0.0.7:1", "tcp://10.0.0.7:1"),
            ("tcp://[fe80::1]:1", "tcp://[fe80::1]:1"),
            ("ipc:///run/events.sock", "ipc:///run/events.sock"),
        ] {
            assert_eq!(
                reachable_endpoint(endpoint, "h").as_deref(),
                Some(want),
                "{endpoint}"
            );
        }
        for bad in [
            "inproc://a",
            "tcp://*",
            "tcp://*:0",
            "tcp://*:99999",
            "http://h:1",
            "ipc://",
            "",
        ] {
            assert_eq!(reachable_endpoint(bad, "h"), None, "{bad}");
        }
        assert_eq!(
            reachable_endpoint("tcp://*:1", "::1").as_deref(),
            Some("tcp://[::1]:1")
        );
    }

    #[test]
    fn ranks_are_sorted_and_invalid_ones_are_skipped() {
        let reply =
            br#"{"1":{"endpoint":"tcp://*:12"},"0":{"endpoint":"tcp://*:11","replay_endpoint":null,"topic":"t"},
            "x":{"endpoint":"tcp://*:13"},"2":{"endpoint":7},"3":7,"4":{"publisher":"null","endpoint":"tcp://*:15"},
            "5":{"enable_kv_cache_events":false,"endpoint":"tcp://*:16"}}"#;
        let worker = at("http://h");
        let found = read(reply, &worker).unwrap();
        assert_eq!(
            found.iter().map(|source| source.rank).collect::<Vec<_>>(),
            [0, 1]
        );
        assert_eq!(found[0].topic, "t");
        assert_eq!(read(b"{}", &worker), Some(vec![]));
        for nonsense in ["", "[]", "7", "<html>"] {
            assert_eq!(read(nonsense.as_bytes(), &worker), None);
        }
    }

    #[test]
    fn further_ranks_use_consecutive_ports() {
        assert_eq!(of_rank("tcp://h:5557", 0).as_deref(), Some("tcp://h:5557"));
        assert_eq!(of_rank("tcp://h:5557", 3).as_deref(), Some("tcp://h:5560"));
        assert_eq!(of_rank("tcp://h:65535", 1), None);
        assert_eq!(of_rank("ipc:///a", 0).as_deref(), Some("ipc:///a"));
        assert_eq!(of_rank("ipc:///a", 1), None);
    }
}
