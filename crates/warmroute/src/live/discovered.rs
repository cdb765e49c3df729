//! Discovers workers in a file that another program writes, and by DNS.
//!
//! Sources are wrong now and then: a failing API answers with an empty list, a slow health check
//! makes workers come and go. [`FlapDamper`] decides when a change is believed; the worker's health
//! is found by probing it.

use std::{
    collections::{BTreeMap, HashSet},
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::Duration,
};

use config::{DnsName, MoreWorker, Problem};
use kv_blocks::Moment;
use serde_json::{Value, json};
use supervision::Task;
use tokio::{task::JoinSet, time::MissedTickBehavior};

use super::{LiveConfig, RETRY_INTERVAL, file_watch::FileVersion, members::name_in};

/// Name of every task that follows a source.
const TASK: &str = "discovery";
/// Interval at which the file is checked.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Most workers of one source, and most remembered workers that left it.
const MOST: usize = 10_000;

/// Starts a task for every configured source. The state of a source survives a panic of its task.
pub(super) fn follow(live: &Arc<LiveConfig>, tasks: &mut JoinSet<()>) {
    let discovery = &live.started.discovery;
    if let Some(path) = discovery.file.clone() {
        let live = Arc::clone(live);
        tasks.spawn(async move {
            let mut state = SourceState::new(&live, path.display().to_string());
            let mut task = Task::new(TASK);
            while task.attempt(follow_file(&mut state, &path)).await.is_none() {}
        });
    }
    for name in discovery.dns.clone() {
        let live = Arc::clone(live);
        tasks.spawn(async move {
            let mut state = SourceState::new(&live, format!("dns {}", name.host));
            let mut task = Task::new(TASK);
            while task.attempt(follow_name(&mut state, &name)).await.is_none() {}
        });
    }
}

async fn follow_file(state: &mut SourceState<'_>, path: &Path) {
    let source = state.source.clone();
    let mut seen = None;
    let mut ticks = ticks(POLL_INTERVAL);
    loop {
        ticks.tick().await;
        let now = FileVersion::of(path);
        if now != seen {
            seen = now;
            match read(path, &source) {
                Ok(entries) => state.listed = entries,
                Err(problems) => state.report_error(
                    &problems
                        .iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join("; "),
                ),
            }
        }
        // Also without news: a change that was delayed may be due now.
        state.apply_listed().await;
        state.record_answer();
    }
}

/// Reads the entries of the file; a missing file lists no workers.
fn read(path: &Path, source: &str) -> Result<Vec<(String, MoreWorker)>, Vec<Problem>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(vec![Problem::unreadable(source, error)]),
    };
    Ok(keyed(config::worker_entries(&text, source)?))
}

/// Keys entries by the name of their worker, which stays when the rest of an entry is edited.
/// Entries without a usable name, and further ones of the same name, are keyed by their text: their
/// faults are reported later.
fn keyed(entries: Vec<MoreWorker>) -> Vec<(String, MoreWorker)> {
    let mut names = HashSet::new();
    let mut key = |entry: &MoreWorker| {
        let name = name_in(&entry.text).filter(|name| names.insert(name.clone()));
        name.unwrap_or_else(|| entry.text.clone())
    };
    entries
        .into_iter()
        .take(MOST)
        .map(|entry| (key(&entry), entry))
        .collect()
}

async fn follow_name(state: &mut SourceState<'_>, name: &DnsName) {
    let mut ticks = ticks(name.interval);
    loop {
        ticks.tick().await;
        match addresses(name).await {
            Ok(addresses) => {
                state
                    .now(
                        addresses
                            .into_iter()
                            .map(|address| entry(name, &address))
                            .collect(),
                    )
                    .await
            }
            Err(error) => {
                state.report_error(&error.to_string());
                state.apply_listed().await;
                state.record_answer();
            }
        }
    }
}

/// Returns `host:port` of every address of a name.
async fn addresses(name: &DnsName) -> std::io::Result<Vec<String>> {
    let mut found: Vec<String> = match (name.port, name.server) {
        (Some(port), Some(server)) => {
            let found = net::dns::host_addresses(&name.host, server).await?;
            found
                .into_iter()
                .map(|ip| SocketAddr::new(ip, port).to_string())
                .collect()
        }
        (Some(port), None) => {
            let found = net::dns::system_addresses(&name.host, port).await?;
            found
                .into_iter()
                .map(|address| address.to_string())
                .collect()
        }
        (None, server) => {
            let found = net::dns::service_records(&name.host, server).await?;
            found
                .into_iter()
                .map(|(host, port)| format!("{host}:{port}"))
                .collect()
        }
    };
    found.sort();
    found.dedup();
    found.truncate(MOST);
    Ok(found)
}

fn entry(name: &DnsName, address: &str) -> (String, MoreWorker) {
    let mut entry = name.worker.clone();
    entry.insert(
        "url".to_owned(),
        json!(format!("{}://{address}", name.scheme.as_str())),
    );
    let worker = MoreWorker {
        origin: format!("discovery.dns of {}", name.host),
        text: Value::Object(entry).to_string(),
    };
    (address.to_owned(), worker)
}

fn ticks(every: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// One source, and the list that the router last got from it.
struct SourceState<'a> {
    live: &'a Arc<LiveConfig>,
    source: String,
    damper: FlapDamper,
    last: Vec<MoreWorker>,
    listed: Vec<(String, MoreWorker)>,
    /// Last reported reason why it cannot be read or applied.
    last_error: Option<String>,
    refused_at: Option<Moment>,
    /// Whether it has answered once.
    has_answered: bool,
}

impl<'a> SourceState<'a> {
    fn new(live: &'a Arc<LiveConfig>, source: String) -> Self {
        let discovery = &live.started.discovery;
        let damper = FlapDamper::new(discovery.empty_list_grace, discovery.flap_damping);
        Self {
            live,
            source,
            damper,
            last: Vec::new(),
            listed: Vec::new(),
            last_error: None,
            refused_at: None,
            has_answered: false,
        }
    }

    /// Handles a new list of the source.
    async fn now(&mut self, listed: Vec<(String, MoreWorker)>) {
        self.listed = listed;
        self.apply_listed().await;
        self.record_answer();
    }

    /// Handles an unchanged list; a change that was delayed may be due now.
    async fn apply_listed(&mut self) {
        // In run time: an empty list or a missing worker does not age while the process is
        // suspended.
        let now = self.live.parts.clock.run_time();
        let believed = self.damper.update(now, &self.listed);
        let retry = self
            .refused_at
            .is_some_and(|refused| now.since(refused) >= RETRY_INTERVAL);
        if believed == self.last && !retry {
            return;
        }
        let (source, workers) = (self.source.clone(), believed.clone());
        match self
            .live
            .run_blocking(move |live| live.found(&source, workers))
            .await
        {
            Ok(()) => (self.last_error, self.refused_at) = (None, None),
            Err(problems) => {
                self.refused_at = Some(now);
                self.report_error(
                    &problems
                        .iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join("; "),
                );
            }
        }
        // Whether refused or not: a retry in a second would most likely be refused, too.
        self.last = believed;
    }

    /// Records that the source has answered, with success or an error.
    fn record_answer(&mut self) {
        if !std::mem::replace(&mut self.has_answered, true) {
            self.live
                .answered_sources
                .send_modify(|sources| *sources += 1);
        }
    }

    /// Logs a new reason once. The workers stay as they were.
    fn report_error(&mut self, why: &str) {
        if self.last_error.as_deref() != Some(why) {
            tracing::error!(
                source = self.source,
                error = why,
                "discovery: the workers of this source stay what they were"
            );
            self.last_error = Some(why.to_owned());
        }
    }
}

/// Decides which changes of a source's list are believed.
#[derive(Debug)]
struct FlapDamper {
    grace: Duration,
    damping: Duration,
    /// Workers believed present, by key.
    there: BTreeMap<String, DiscoveredWorker>,
    /// Times at which absent workers left.
    went: BTreeMap<String, Moment>,
    empty_since: Option<Moment>,
}

#[derive(Debug)]
struct DiscoveredWorker {
    worker: MoreWorker,
    /// Whether it came back soon after it had left.
    flaps: bool,
    missing_since: Option<Moment>,
}

impl FlapDamper {
    fn new(grace: Duration, damping: Duration) -> Self {
        Self {
            grace,
            damping,
            there: BTreeMap::new(),
            went: BTreeMap::new(),
            empty_since: None,
        }
    }

    /// Updates the believed workers from the listed ones.
    fn update(&mut self, now: Moment, listed: &[(String, MoreWorker)]) -> Vec<MoreWorker> {
        self.went.retain(|_, went| now.since(*went) < self.damping);
        if listed.is_empty() && !self.there.is_empty() {
            let since = *self.empty_since.get_or_insert(now);
            if now.since(since) < self.grace {
                return self.believed();
            }
        } else {
            self.empty_since = None;
        }
        for (key, worker) in listed {
            let flaps = self.went.remove(key).is_some();
            let there = self
                .there
                .entry(key.clone())
                .or_insert_with(|| DiscoveredWorker {
                    worker: worker.clone(),
                    flaps,
                    missing_since: None,
                });
            there.worker.clone_from(worker);
            there.flaps |= there.missing_since.take().is_some();
        }
        let (damping, went) = (self.damping, &mut self.went);
        let listed: HashSet<&str> = listed.iter().map(|(key, _)| key.as_str()).collect();
        self.there.retain(|key, there| {
            if listed.contains(key.as_str()) {
                return true;
            }
            let since = *there.missing_since.get_or_insert(now);
            let stays = there.flaps && now.since(since) < damping;
            if !stays && went.len() < MOST {
                went.insert(key.clone(), now);
            }
            stays
        });
        self.believed()
    }

    fn believed(&self) -> Vec<MoreWorker> {
        self.there
            .values()
            .map(|there| there.worker.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    fn listed(names: &[&str]) -> Vec<(String, MoreWorker)> {
        let worker = |name: &&str| MoreWorker {
            origin: "test".to_owned(),
            text: (*name).to_owned(),
        };
        names
            .iter()
            .map(|name| ((*name).to_owned(), worker(name)))
            .collect()
    }

    fn names(believed: Vec<MoreWorker>) -> Vec<String> {
        believed.into_iter().map(|worker| worker.text).collect()
    }

    fn damper() -> FlapDamper {
        FlapDamper::new(Duration::from_secs(60), Duration::from_secs(30))
    }

    #[test]
    #[contract("S78")]
    fn the_workers_of_a_name_have_the_scheme_of_its_entry() {
        for (keys, url) in [
            ("", "http://10.0.0.5:8000"),
            (", scheme: https", "https://10.0.0.5:8000"),
        ] {
            let yaml = format!("discovery: {{dns: [{{host: engines.pool{keys}}}]}}\n");
            let settings = config::load(config::ConfigSource::of_text("f.yaml", &yaml)).unwrap();
            let (_, worker) = entry(&settings.discovery.dns[0], "10.0.0.5:8000");
            let entry: Value = serde_json::from_str(&worker.text).unwrap();
            assert_eq!(entry["url"], url);
        }
    }

    #[test]
    #[contract("F85")]
    fn an_empty_list_is_believed_after_the_grace_and_a_shorter_one_at_once() {
        let mut damper = damper();
        assert_eq!(
            names(damper.update(at(0), &listed(&["a", "b"]))),
            ["a", "b"]
        );
        assert_eq!(names(damper.update(at(1), &listed(&["a"]))), ["a"]);
        assert_eq!(names(damper.update(at(2), &[])), ["a"]);
        assert_eq!(names(damper.update(at(61), &[])), ["a"]);
        assert_eq!(names(damper.update(at(62), &[])), Vec::<String>::new());
    }

    #[test]
    #[contract("F84")]
    fn a_worker_whose_entry_is_edited_while_it_comes_and_goes_stays_one_worker() {
        let list = |entries: &[&str]| {
            let entry = |text: &&str| MoreWorker {
                origin: "test".to_owned(),
                text: (*text).to_owned(),
            };
            keyed(entries.iter().map(entry).collect())
        };
        let mut damper = damper();
        let a = r#"{"name":"a","url":"http://h:1"}"#;
        let [old, new] = [
            r#"{"url":"http://h:2"}"#,
            r#"{"url":"http://h:2","weight":2}"#,
        ];
        for (second, entries) in [(0, &[a, old][..]), (1, &[a]), (2, &[a, old]), (3, &[a])] {
            damper.update(at(second), &list(entries));
        }
        assert_eq!(
            names(damper.update(at(4), &list(&[a]))),
            [a, old],
            "it is held on to"
        );
        assert_eq!(names(damper.update(at(5), &list(&[a, new]))), [a, new]);
        // Two workers of one name stay two, so that validation reports them.
        assert_eq!(
            names(damper.update(at(6), &list(&[a, new, old]))),
            [a, new, old]
        );
    }

    #[test]
    #[contract("F84")]
    fn who_comes_and_goes_stays_until_it_has_been_missing_for_the_damping() {
        let mut damper = damper();
        let (with, without) = (listed(&["a", "b"]), listed(&["a"]));
        damper.update(at(0), &with);
        assert_eq!(
            names(damper.update(at(1), &without)),
            ["a"],
            "the first time it is believed"
        );
        for second in 2..40 {
            let list = if second % 2 == 0 { &with } else { &without };
            assert_eq!(
                names(damper.update(at(second), list)),
                ["a", "b"],
                "second {second}"
            );
        }
        assert_eq!(names(damper.update(at(41), &without)), ["a", "b"]);
        assert_eq!(names(damper.update(at(68), &without)), ["a", "b"]);
        assert_eq!(names(damper.update(at(71), &without)), ["a"]);
    }
}
