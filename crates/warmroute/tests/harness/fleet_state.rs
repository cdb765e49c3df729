//! The state of the router and of the simulated engines.

use serde_json::{Value, json};

use super::{Program, RawClient, RawReply, eventually};

/// Faults of a simulated engine.
pub type FaultSpec<'a> = &'a str;

/// Queries to a router.
pub trait RouterQueries {
    /// Waits until this many workers are ready.
    fn ready(self, workers: usize) -> Self;
    /// Waits until all event streams are live, at least `streams`, and until every worker with a
    /// stream for each rank has events as its cache source: the router's view of a worker follows
    /// its streams' states a moment later.
    fn follows_events(&self, streams: usize);
    /// The workers' objects.
    fn workers(&self) -> Vec<Value>;
    /// The receipts, newest first.
    fn receipts(&self) -> Vec<Value>;
    /// The finished receipt of the request with this id.
    fn receipt(&self, request_id: &str) -> Value;
    /// The finished receipt of the request that got this reply.
    fn receipt_of(&self, reply: &RawReply) -> Value;
    /// The sum of a metric over the label sets that contain `labels`.
    fn metric(&self, name: &str, labels: &str) -> f64;
    /// Waits until the router holds no state of any request: load, leases, bodies, streams.
    fn wait_until_idle(&self);
    /// Resident memory, in bytes.
    fn resident(&self) -> u64;
    /// Most resident memory so far, in bytes.
    fn most_resident(&self) -> u64;
}

impl RouterQueries for Program {
    fn ready(self, workers: usize) -> Self {
        eventually("the workers to be ready", || {
            let ready = self
                .workers()
                .iter()
                .filter(|worker| worker["state"] == "ready")
                .count();
            (ready == workers).then_some(())
        });
        self
    }

    fn follows_events(&self, streams: usize) {
        eventually("the event streams to be followed", || {
            let body = RawClient::get(&self.admin(), "/admin/streams").json();
            let found = body["streams"].as_array().expect("a list of streams");
            let live =
                found.len() >= streams && found.iter().all(|stream| stream["state"] == "live");
            let is_known = |worker: &Value| {
                let ranks = found
                    .iter()
                    .filter(|stream| stream["worker"] == worker["name"])
                    // A stream of whole prefixes is none of the blocks.
                    .filter(|stream| {
                        let endpoint = stream["endpoint"].as_str().unwrap_or_default();
                        !endpoint.starts_with("http")
                    })
                    .count() as u64;
                worker["dp_ranks"] != ranks || worker["cache_source"] == "events"
            };
            (live && self.workers().iter().all(is_known)).then_some(())
        });
    }

    fn workers(&self) -> Vec<Value> {
        let body = RawClient::get(&self.admin(), "/admin/workers").json();
        body["workers"]
            .as_array()
            .expect("a list of workers")
            .clone()
    }

    fn receipts(&self) -> Vec<Value> {
        let body = RawClient::get(&self.admin(), "/admin/decisions?limit=1000").json();
        body["decisions"]
            .as_array()
            .expect("a list of decisions")
            .clone()
    }

    fn receipt(&self, request_id: &str) -> Value {
        eventually("the receipt to be settled", || {
            let receipts = self.receipts();
            receipts
                .into_iter()
                .find(|it| it["request_id"] == request_id && !it["outcome"].is_null())
        })
    }

    fn receipt_of(&self, reply: &RawReply) -> Value {
        self.receipt(
            reply
                .header("x-request-id")
                .expect("every reply has a request id"),
        )
    }

    fn metric(&self, name: &str, labels: &str) -> f64 {
        let text = RawClient::get(&self.admin(), "/metrics").text();
        let value = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let (known, set) = series.split_once('{').unwrap_or((series, ""));
            (known == name && set.contains(labels))
                .then(|| value.parse::<f64>().expect("a sample is a number"))
        };
        let found: Vec<f64> = text.lines().filter_map(value).collect();
        assert!(
            !found.is_empty() || !labels.is_empty(),
            "there is no metric {name} in\n{text}"
        );
        found.iter().sum()
    }

    fn wait_until_idle(&self) {
        eventually("every lease to be freed", || {
            let load = |worker: &Value| {
                let load = &worker["load"];
                ["in_flight", "queued_prefill_tokens", "decode_blocks"]
                    .iter()
                    .all(|field| load[field] == 0)
            };
            let gauges = [
                "warmroute_leases",
                "warmroute_open_streams",
                "warmroute_held_body_bytes",
            ];
            let zero = gauges.iter().all(|name| self.metric(name, "") == 0.0);
            (zero && self.workers().iter().all(load)).then_some(())
        });
    }

    fn resident(&self) -> u64 {
        memory_of(self, "VmRSS:")
    }

    fn most_resident(&self) -> u64 {
        memory_of(self, "VmHWM:")
    }
}

/// Queries and commands to a simulated engine.
pub trait SimControls {
    fn stats(&self) -> Value;
    /// Makes the next `count` generation requests fail in this way.
    fn fault(&self, fault: FaultSpec<'_>, count: u64);
}

impl SimControls for Program {
    fn stats(&self) -> Value {
        RawClient::get(&self.data(), "/sim/stats").json()
    }

    fn fault(&self, fault: FaultSpec<'_>, count: u64) {
        let body = json!({"kind": fault, "count": count}).to_string();
        assert_eq!(
            RawClient::post(&self.data(), "/sim/fault", body.as_bytes()).status,
            200
        );
    }
}

fn memory_of(program: &Program, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.pid()))
        .expect("a process has a status");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .expect("its memory is listed");
    let kib: u64 = line
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number of KiB");
    kib * 1024
}
