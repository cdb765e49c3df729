//! Endpoints of a worker's KV events, per data-parallel rank.
//!
//! Engines describe their own sockets (`GET /kv_event_sources`) as they bound them; `tcp://*:5557`
//! means "every interface of mine", so the host of the worker's URL replaces the star.

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

/// Reads `/kv_event_sources`. `None`: no such reply. An empty list: the engine publishes nothing.
pub(crate) fn read(body: &[u8], host: &str) -> Option<Vec<EventEndpoint>> {
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
        let Some(endpoint) =
            text("endpoint").and_then(|endpoint| reachable_endpoint(endpoint, host))
        else {
            continue;
        };
        found.push(EventEndpoint {
            rank,
            endpoint,
            replay_endpoint: text("replay_endpoint")
                .and_then(|endpoint| reachable_endpoint(endpoint, host)),
            topic: text("topic").unwrap_or_default().to_owned(),
        });
    }
    found.sort_by_key(|source| source.rank);
    Some(found)
}

/// Rewrites an engine's own endpoint so that it is reachable from here: wildcard hosts become
/// `host`; tcp and ipc only.
pub(crate) fn reachable_endpoint(endpoint: &str, host: &str) -> Option<String> {
    if let Some(path) = endpoint.strip_prefix("ipc://") {
        return (!path.is_empty()).then(|| endpoint.to_owned());
    }
    let (named, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|port| *port > 0)?;
    let host = match named {
        "*" | "0.0.0.0" | "::" | "[::]" | "" => host,
        named => named,
    };
    Some(tcp(host, port))
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
    use super::*;

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
        assert_eq!(read(reply, "10.1.2.3"), Some(vec![want]));
    }

    #[test]
    fn only_wildcards_become_the_workers_host() {
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
        let found = read(reply, "h").unwrap();
        assert_eq!(
            found.iter().map(|source| source.rank).collect::<Vec<_>>(),
            [0, 1]
        );
        assert_eq!(found[0].topic, "t");
        assert_eq!(read(b"{}", "h"), Some(vec![]));
        for nonsense in ["", "[]", "7", "<html>"] {
            assert_eq!(read(nonsense.as_bytes(), "h"), None);
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
