//! What the entry of a worker from the admin API may reach: only what an entry of the file reaches,
//! besides engines on the network.
//!
//! Who may call the admin API is not necessarily allowed to read the files of this process's user, or
//! to send requests to other services of this machine.

use admin::WorkerRejection;
use config::{AddressRange, CheckMethod, Settings, WorkerEntry};
use net::{Address, Destinations, WorkerUrl};
use serde_json::{Map, Value};

/// Checks an entry against the workers of the file in `in_force`.
pub(super) fn check(
    entry: &Map<String, Value>,
    in_force: &Settings,
) -> Result<(), WorkerRejection> {
    may_be_an_engine(entry, &in_force.discovery.allowed_networks)?;
    let reach = EntryReach { entry, in_force };
    reach.sockets()?;
    reach.files()?;
    reach.calls()
}

/// Refuses metadata addresses, and those outside `networks` if there are any: a caller of the admin API makes this process connect to the worker's
/// URL.
fn may_be_an_engine(
    entry: &Map<String, Value>,
    networks: &[AddressRange],
) -> Result<(), WorkerRejection> {
    let engines = Destinations::engines(networks);
    let forbidden = url_of(entry).and_then(|url| engines.check_host(&url.address()).err());
    forbidden.map_or(Ok(()), |forbidden| {
        Err(WorkerRejection::Forbidden(forbidden.to_string()))
    })
}

/// Returns the entry's URL if it is one; the entry is checked elsewhere.
fn url_of(entry: &Map<String, Value>) -> Option<WorkerUrl> {
    entry.get("url")?.as_str()?.parse().ok()
}

struct EntryReach<'a> {
    entry: &'a Map<String, Value>,
    in_force: &'a Settings,
}

impl EntryReach<'_> {
    /// Sockets of this machine: to connect to, and to open.
    fn sockets(&self) -> Result<(), WorkerRejection> {
        if let Some(address) = url_of(self.entry).map(|url| url.address())
            && matches!(address, Address::Unix(_))
        {
            self.is_of_file("url", |worker| {
                let own = worker.url.parse::<WorkerUrl>();
                own.is_ok_and(|own| own.address() == address)
            })?;
        }
        for key in ["endpoint", "replay_endpoint", "store"] {
            let Some(endpoint) = self.value("kv_events", key).and_then(Value::as_str) else {
                continue;
            };
            if endpoint.starts_with("ipc:") {
                let key = format!("kv_events.{key}");
                self.is_of_file(&key, |worker| names_socket(worker, endpoint))?;
            }
        }
        if self.value("kv_events", "bind").is_some() {
            let endpoint = self.value("kv_events", "endpoint").and_then(Value::as_str);
            self.is_of_file("kv_events.bind", |worker| {
                worker.kv_events.bind && worker.kv_events.endpoint.as_deref() == endpoint
            })?;
        }
        Ok(())
    }

    /// Files that are read.
    fn files(&self) -> Result<(), WorkerRejection> {
        if let Some(path) = self.value("kv_events", "token_file") {
            // The token is sent to the endpoint, so it is sent nowhere else than by the file's worker.
            let text = |key| self.value("kv_events", key).and_then(Value::as_str);
            let (endpoint, source) = (text("endpoint"), text("source").unwrap_or("auto"));
            let is_unverified = self.value("tls", "insecure_skip_verify").is_some();
            self.is_of_file("kv_events.token_file", |worker| {
                let own = &worker.kv_events;
                let own_path = own.token_file.as_deref();
                own_path.is_some_and(|own| path.as_str().is_some_and(|path| own == path))
                    && own.endpoint.as_deref() == endpoint
                    && own.source.as_str() == source
                    && (worker.tls.insecure_skip_verify || !is_unverified)
            })?;
        }
        if let Some(path) = self.value("tls", "ca") {
            self.is_of_file("tls.ca", |worker| {
                let own = worker.tls.ca.as_deref();
                own.is_some_and(|own| path.as_str().is_some_and(|path| own == path))
            })?;
        }
        Ok(())
    }

    /// Health checks that could change something.
    fn calls(&self) -> Result<(), WorkerRejection> {
        let check = |key| self.value("health_check", key);
        let is_read = |method: &Value| {
            let method = method.as_str().unwrap_or_default();
            ["GET", "HEAD"]
                .iter()
                .any(|it| it.eq_ignore_ascii_case(method))
        };
        if check("body").is_none() && check("method").is_none_or(is_read) {
            return Ok(());
        }
        self.is_of_file("health_check", |worker| {
            let own = &worker.health_check;
            own.method == Some(CheckMethod::Post)
                && own.body.as_ref() == check("body")
                && own.endpoint.as_deref() == check("endpoint").and_then(Value::as_str)
                && check("fallback_endpoints").is_none()
        })
    }

    /// Returns a value of a section that is set.
    fn value(&self, section: &str, key: &str) -> Option<&Value> {
        let value = self.entry.get(section)?.get(key)?;
        (!value.is_null() && *value != Value::Bool(false)).then_some(value)
    }

    fn is_of_file(
        &self,
        key: &str,
        names: impl Fn(&WorkerEntry) -> bool,
    ) -> Result<(), WorkerRejection> {
        let mut of_file = self.in_force.workers.iter().filter(|worker| !worker.found);
        if of_file.any(names) {
            return Ok(());
        }
        Err(WorkerRejection::Forbidden(format!(
            "{key}: an entry of the admin API reads no file, reaches no socket of this machine and sends no check with a body \
             unless a worker of the file does the same: write this worker into the file"
        )))
    }
}

fn names_socket(worker: &WorkerEntry, endpoint: &str) -> bool {
    let own = &worker.kv_events;
    let replay = match &own.replay_endpoint {
        config::ReplayEndpoint::At(at) => Some(at.as_str()),
        config::ReplayEndpoint::Auto | config::ReplayEndpoint::None => None,
    };
    [own.endpoint.as_deref(), own.store.as_deref(), replay].contains(&Some(endpoint))
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use serde_json::json;

    use super::*;

    const FILE: &str = "workers:
  - {name: a, url: 'unix:///run/engine.sock'}
  - name: b
    url: 'http://10.0.0.5:8000'
    kv_events: {source: sse, endpoint: 'https://e1.test/events', token_file: /run/k.token}
";

    fn is_allowed(entry: &Value) -> bool {
        let file = config::load(config::ConfigSource::of_text("f.yaml", FILE)).unwrap();
        check(entry.as_object().unwrap(), &file).is_ok()
    }

    #[test]
    #[contract("S11", "S37")]
    fn a_unix_socket_of_the_file_is_reached_and_no_other_in_any_spelling() {
        for (url, allowed) in [
            ("unix:///run/engine.sock", true),
            ("UNIX:///run/engine.sock", true),
            ("unix:///var/run/docker.sock", false),
            ("UNIX:///var/run/docker.sock", false),
            ("Unix:///var/run/docker.sock", false),
            ("http://10.0.0.9:8000", true),
        ] {
            assert_eq!(is_allowed(&json!({"url": url})), allowed, "{url}");
        }
    }

    #[test]
    #[contract("S11", "S37")]
    fn a_token_of_the_file_is_sent_only_where_the_file_sends_it() {
        let entry = |endpoint: &str, source: &str, path: &str| {
            json!({
                "url": "https://10.0.0.9:8000",
                "kv_events": {"endpoint": endpoint, "source": source, "token_file": path},
            })
        };
        let own = entry("https://e1.test/events", "sse", "/run/k.token");
        assert!(is_allowed(&own));
        for (endpoint, source, path) in [
            ("http://attacker.test/", "sse", "/run/k.token"),
            ("http://e1.test/events", "sse", "/run/k.token"),
            ("https://e1.test/events", "ws", "/run/k.token"),
            ("https://e1.test/events", "sse", "/run/other"),
        ] {
            let entry = entry(endpoint, source, path);
            assert!(!is_allowed(&entry), "{entry}");
        }
        let mut unverified = own.clone();
        unverified["tls"] = json!({"insecure_skip_verify": true});
        assert!(!is_allowed(&unverified));
        let mut without_endpoint = own;
        without_endpoint["kv_events"]["endpoint"] = Value::Null;
        assert!(!is_allowed(&without_endpoint));
    }
}
