//! Replicas in front of a bucket that behaves as the server's does.

use std::{collections::BTreeMap, time::Duration};

use contract_id::contract;
use serde_json::json;

use super::*;

const LEASE: Duration = Duration::from_secs(10);

fn at(seconds: u64) -> Moment {
    Moment::at(Duration::from_secs(seconds))
}

fn registration(url: &str, lease: Option<Duration>) -> Registration {
    let entry = json!({"name": "w", "url": url});
    Registration {
        entry: Arc::new(entry.as_object().unwrap().clone()),
        lease,
    }
}

/// What happened to a key.
#[derive(Clone)]
enum BucketEvent {
    Put(String, Vec<u8>),
    Deleted(String),
}

/// A bucket; the revision of an event is its place in the history, from 1 on.
#[derive(Default)]
struct FakeBucket {
    history: Vec<BucketEvent>,
    /// The last event of each key.
    keys: BTreeMap<String, u64>,
    refused: usize,
}

impl FakeBucket {
    fn last_value(&self, key: &str) -> Option<u64> {
        let revision = *self.keys.get(key)?;
        let index = usize::try_from(revision - 1).unwrap();
        matches!(self.history[index], BucketEvent::Put(..)).then_some(revision)
    }

    fn add(&mut self, key: &str, event: BucketEvent) {
        self.history.push(event);
        let revision = self.history.len() as u64;
        self.keys.insert(key.to_owned(), revision);
    }

    fn write(&mut self, write: KeyWrite) {
        match write {
            KeyWrite::Put {
                key,
                revision,
                value,
            } if self.last_value(&key) == revision => {
                self.add(&key.clone(), BucketEvent::Put(key, value));
            }
            KeyWrite::Delete { key, revision } if self.last_value(&key) == Some(revision) => {
                self.add(&key.clone(), BucketEvent::Deleted(key));
            }
            KeyWrite::ForgetDeletion { revision } => self.keys.retain(|_, last| *last != revision),
            KeyWrite::Put { .. } | KeyWrite::Delete { .. } => self.refused += 1,
        }
    }
}

/// A replica: its table, its own workers, and how far it has read the bucket.
struct Replica {
    table: RegistrationTable,
    workers: BTreeMap<String, SharedWorker>,
    read: usize,
}

impl Replica {
    fn new(name: &str) -> Self {
        Self {
            table: RegistrationTable::new(name.into()),
            workers: BTreeMap::new(),
            read: 0,
        }
    }

    fn connected(name: &str, bucket: &FakeBucket, now: Moment) -> Self {
        let mut replica = Self::new(name);
        replica.connect(bucket, now);
        replica
    }

    /// Reads the last event of each key, as a new watch reports it.
    fn connect(&mut self, bucket: &FakeBucket, now: Moment) {
        self.table.begin_read();
        let mut last: Vec<u64> = bucket.keys.values().copied().collect();
        last.sort_unstable();
        for revision in last {
            let index = usize::try_from(revision - 1).unwrap();
            self.observe(&bucket.history[index], revision, now);
        }
        self.table.end_read(now);
        self.read = bucket.history.len();
        self.apply(None);
    }

    fn observe(&mut self, event: &BucketEvent, revision: u64, now: Moment) {
        match event {
            BucketEvent::Put(key, value) => {
                self.table.observe(now, key, (value, revision)).unwrap();
            }
            BucketEvent::Deleted(key) => self.table.observe_deletion(key, revision),
        }
    }

    /// Reads one event; returns whether there was one.
    fn read_one(&mut self, bucket: &FakeBucket, now: Moment) -> bool {
        let Some(event) = bucket.history.get(self.read) else {
            return false;
        };
        self.read += 1;
        self.observe(event, self.read as u64, now);
        self.apply(None);
        true
    }

    /// Reads one event without applying it.
    fn read_only(&mut self, bucket: &FakeBucket) {
        self.read += 1;
        let event = &bucket.history[self.read - 1];
        self.observe(event, self.read as u64, at(0));
    }

    /// Applies the changes, or refuses their registrations; returns the number of new refusals.
    fn apply(&mut self, refusal: Option<Refusal>) -> usize {
        let mut refused = 0;
        for change in self.table.changes() {
            let worker = self.workers.entry(change.name.clone()).or_default();
            worker.drained = change.wanted.drained;
            if change.is_new_registration && refusal.is_none() {
                worker.registration.clone_from(&change.wanted.registration);
            }
            refused += usize::from(self.table.applied(change, refusal.map_or(Ok(()), Err)));
        }
        refused
    }

    fn write(&mut self, bucket: &mut FakeBucket) {
        for write in self.table.writes(at(0)) {
            bucket.write(write);
        }
    }

    fn register(&mut self, now: Moment, url: &str, lease: Option<Duration>) {
        let registration = registration(url, lease);
        self.worker().registration = Some(registration.clone());
        self.table.register(now, "w", registration).unwrap();
    }

    fn unregister(&mut self) -> bool {
        *self.worker() = SharedWorker::default();
        self.table.unregister("w")
    }

    fn drain(&mut self, drained: bool) {
        self.worker().drained = drained;
        self.table.set_drained("w", drained).unwrap();
    }

    fn worker(&mut self) -> &mut SharedWorker {
        self.workers.entry("w".to_owned()).or_default()
    }

    /// The URL of the worker, as this replica's own list has it.
    fn url(&mut self) -> Option<String> {
        let registration = self.worker().registration.clone()?;
        Some(registration.entry["url"].as_str().unwrap().to_owned())
    }
}

/// Lets all replicas write and read until nothing happens any more.
fn settle(replicas: &mut [Replica], bucket: &mut FakeBucket, now: Moment) {
    loop {
        let mut is_quiet = true;
        for replica in replicas.iter_mut() {
            let before = bucket.history.len();
            replica.write(bucket);
            is_quiet &= bucket.history.len() == before;
            while replica.read_one(bucket, now) {
                is_quiet = false;
            }
        }
        if is_quiet {
            break;
        }
    }
    for replica in replicas {
        assert_eq!(replica.table.counts().pending, 0);
    }
}

fn three(bucket: &FakeBucket) -> Vec<Replica> {
    let names = ["a", "b", "c"];
    let replicas = names.map(|name| Replica::connected(name, bucket, at(0)));
    replicas.into()
}

fn urls(replicas: &mut [Replica]) -> Vec<Option<String>> {
    replicas.iter_mut().map(Replica::url).collect()
}

fn drains(replicas: &mut [Replica]) -> Vec<bool> {
    let drained = replicas.iter_mut().map(|it| it.worker().drained);
    drained.collect()
}

#[test]
#[contract("DY38")]
fn a_worker_registered_at_one_replica_is_at_all_and_at_one_that_starts_later() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].register(at(0), "http://1", None);
    settle(&mut replicas, &mut bucket, at(0));
    replicas.push(Replica::connected("d", &bucket, at(100)));
    assert_eq!(urls(&mut replicas), vec![Some("http://1".to_owned()); 4]);

    assert!(replicas[3].unregister());
    settle(&mut replicas, &mut bucket, at(100));
    assert_eq!(urls(&mut replicas), vec![None; 4]);
    assert!(replicas.iter().all(|it| it.table.records.is_empty()));
    assert!(!replicas[0].unregister(), "it is gone");
}

/// A call at a replica, or a step of its task.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Call(usize),
    Write(usize),
    Read(usize),
}

/// All orders of these steps in which each replica's own steps keep their order.
fn interleavings(sequences: &[Vec<Step>]) -> Vec<Vec<Step>> {
    if sequences.iter().all(Vec::is_empty) {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (index, sequence) in sequences.iter().enumerate() {
        let Some((first, rest)) = sequence.split_first() else {
            continue;
        };
        let mut others = sequences.to_vec();
        others[index] = rest.to_vec();
        for mut order in interleavings(&others) {
            order.insert(0, *first);
            all.push(order);
        }
    }
    all
}

/// Runs two replicas' calls in every order with their writes and reads, on a worker that is
/// registered already. `check` gets all replicas' workers at the end.
fn in_every_order(call: impl Fn(&mut Replica, usize), check: impl Fn(&[SharedWorker])) {
    let steps = |replica| {
        vec![
            Step::Call(replica),
            Step::Write(replica),
            Step::Read(replica),
            Step::Read(replica),
            Step::Write(replica),
        ]
    };
    for order in interleavings(&[steps(0), steps(1)]) {
        let mut bucket = FakeBucket::default();
        let mut replicas = three(&bucket);
        replicas[2].register(at(0), "http://0", None);
        settle(&mut replicas, &mut bucket, at(0));
        for step in order {
            match step {
                Step::Call(index) => call(&mut replicas[index], index),
                Step::Write(index) => replicas[index].write(&mut bucket),
                Step::Read(index) => _ = replicas[index].read_one(&bucket, at(0)),
            }
        }
        settle(&mut replicas, &mut bucket, at(0));
        let workers: Vec<SharedWorker> = replicas
            .iter_mut()
            .map(|replica| replica.worker().clone())
            .collect();
        assert!(
            workers.iter().all(|worker| *worker == workers[0]),
            "{workers:?}"
        );
        check(&workers);
    }
}

#[test]
fn replicas_agree_whatever_the_order_in_which_two_replace_a_worker() {
    in_every_order(
        |replica, index| replica.register(at(0), &format!("http://{}", index + 1), None),
        |workers| assert!(workers[0].registration.is_some()),
    );
}

#[test]
#[contract("DY38")]
fn a_drain_and_a_renewal_at_two_replicas_both_count_in_every_order() {
    in_every_order(
        |replica, index| match index {
            0 => replica.drain(true),
            _ => replica.register(at(0), "http://1", Some(LEASE)),
        },
        |workers| {
            assert!(workers[0].drained);
            let registration = workers[0].registration.clone().unwrap();
            assert_eq!(registration.entry["url"], "http://1");
        },
    );
}

#[test]
fn replicas_agree_whatever_the_order_of_a_removal_and_a_change() {
    in_every_order(
        |replica, index| match index {
            0 => _ = replica.unregister(),
            _ => replica.register(at(0), "http://1", None),
        },
        |_| {},
    );
    in_every_order(
        |replica, index| match index {
            0 => _ = replica.unregister(),
            _ => replica.drain(true),
        },
        |workers| assert!(workers[0].registration.is_none()),
    );
}

#[test]
fn two_removals_remove_it_in_every_order() {
    in_every_order(
        |replica, _| {
            replica.unregister();
        },
        |workers| assert!(workers[0].is_empty()),
    );
}

#[test]
fn a_worker_of_the_file_can_be_drained_everywhere_and_leaves_no_key_when_resumed() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].drain(true);
    settle(&mut replicas, &mut bucket, at(0));
    assert_eq!(drains(&mut replicas), [true; 3]);
    assert_eq!(replicas[1].table.drained(), ["w"]);
    replicas[1].drain(false);
    settle(&mut replicas, &mut bucket, at(0));
    assert_eq!(drains(&mut replicas), [false; 3]);
    assert_eq!(bucket.last_value("w"), None);
}

#[test]
fn a_drain_of_a_worker_that_was_removed_meanwhile_leaves_no_key() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].register(at(0), "http://1", None);
    settle(&mut replicas, &mut bucket, at(0));
    replicas[1].unregister();
    replicas[1].write(&mut bucket);
    replicas[2].drain(true);
    settle(&mut replicas, &mut bucket, at(0));
    assert_eq!(drains(&mut replicas), [false; 3]);
    assert_eq!(bucket.last_value("w"), None);
}

#[test]
fn a_worker_that_registers_again_is_not_drained() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].register(at(0), "http://1", None);
    replicas[0].drain(true);
    settle(&mut replicas, &mut bucket, at(0));
    assert_eq!(drains(&mut replicas), [true; 3]);
    replicas[1].unregister();
    replicas[1].register(at(0), "http://2", None);
    settle(&mut replicas, &mut bucket, at(0));
    assert_eq!(urls(&mut replicas), vec![Some("http://2".to_owned()); 3]);
    assert_eq!(drains(&mut replicas), [false; 3]);
}

#[test]
#[contract("DY38")]
fn a_lease_that_any_replica_renews_goes_on_everywhere_and_ends_everywhere() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].register(at(0), "http://1", Some(LEASE));
    settle(&mut replicas, &mut bucket, at(0));
    for (second, renewed_at) in [(6, 1), (12, 2), (18, 1)] {
        replicas[renewed_at].register(at(second), "http://1", Some(LEASE));
        settle(&mut replicas, &mut bucket, at(second));
        for replica in &mut replicas {
            replica.table.end_leases(at(second + 9));
        }
        settle(&mut replicas, &mut bucket, at(second));
        assert_eq!(urls(&mut replicas), vec![Some("http://1".to_owned()); 3]);
    }
    // The replica that took it first is killed.
    replicas.remove(0);
    for replica in &mut replicas {
        replica.table.end_leases(at(28));
    }
    settle(&mut replicas, &mut bucket, at(28));
    assert_eq!(urls(&mut replicas), [None, None]);
}

#[test]
fn a_replica_that_missed_a_renewal_does_not_remove_the_worker() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].register(at(0), "http://1", Some(LEASE));
    settle(&mut replicas, &mut bucket, at(0));
    replicas[0].register(at(9), "http://1", Some(LEASE));
    replicas[0].write(&mut bucket);
    // The renewal is on its way to it.
    replicas[1].table.end_leases(at(11));
    replicas[1].apply(None);
    replicas[1].write(&mut bucket);
    assert_eq!(bucket.refused, 1);
    assert!(replicas[1].url().is_some());
    settle(&mut replicas, &mut bucket, at(11));
    assert_eq!(urls(&mut replicas), vec![Some("http://1".to_owned()); 3]);
}

#[test]
fn a_lease_does_not_end_while_the_bucket_is_away_and_begins_anew_behind_it() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].register(at(0), "http://1", Some(LEASE));
    settle(&mut replicas, &mut bucket, at(0));
    let cut = &mut replicas[1];
    cut.table.disconnected();
    cut.table.end_leases(at(60));
    assert!(cut.table.writes(at(0)).is_empty());
    cut.apply(None);
    assert!(cut.url().is_some());
    cut.connect(&bucket, at(60));
    cut.table.end_leases(at(69));
    assert!(cut.table.writes(at(0)).is_empty());
    cut.table.end_leases(at(70));
    settle(&mut replicas, &mut bucket, at(70));
    assert_eq!(urls(&mut replicas), [None, None, None]);
}

#[test]
fn a_replica_that_starts_gives_a_fresh_lease() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].register(at(0), "http://1", Some(LEASE));
    settle(&mut replicas, &mut bucket, at(0));
    drop(replicas);
    // All were away for an hour; this one's clock begins at 0 again.
    let mut late = [Replica::connected("d", &bucket, at(1))];
    late[0].table.end_leases(at(10));
    settle(&mut late, &mut bucket, at(10));
    assert!(late[0].url().is_some());
    late[0].table.end_leases(at(11));
    settle(&mut late, &mut bucket, at(11));
    assert_eq!(late[0].url(), None);
}

#[test]
fn changes_without_the_bucket_are_written_when_it_is_there_and_the_last_one_counts() {
    let mut bucket = FakeBucket::default();
    let mut alone = Replica::new("a");
    alone.register(at(0), "http://1", None);
    alone.register(at(1), "http://2", None);
    alone.drain(true);
    assert_eq!(alone.table.counts().pending, 1);
    assert!(alone.table.writes(at(0)).is_empty());
    alone.connect(&bucket, at(2));
    let mut replicas = vec![alone, Replica::connected("b", &bucket, at(2))];
    settle(&mut replicas, &mut bucket, at(2));
    assert_eq!(bucket.history.len(), 1);
    assert_eq!(urls(&mut replicas), vec![Some("http://2".to_owned()); 2]);
    assert_eq!(drains(&mut replicas), [true, true]);
}

#[test]
fn a_lease_that_only_this_replica_knows_ends_without_the_bucket() {
    let mut alone = Replica::new("a");
    alone.register(at(0), "http://1", Some(LEASE));
    alone.table.end_leases(at(9));
    alone.apply(None);
    assert!(alone.url().is_some());
    alone.table.end_leases(at(10));
    alone.apply(None);
    assert_eq!(alone.url(), None);
    assert!(alone.table.records.is_empty());
}

#[test]
fn a_write_whose_answer_was_lost_is_not_made_again() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].register(at(0), "http://1", None);
    replicas[0].write(&mut bucket);
    replicas[0].table.disconnected();
    replicas[0].connect(&bucket, at(1));
    settle(&mut replicas, &mut bucket, at(1));
    assert_eq!(bucket.history.len(), 1);
}

#[test]
fn a_new_bucket_gets_what_the_replicas_know() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].register(at(0), "http://1", None);
    replicas[0].drain(true);
    settle(&mut replicas, &mut bucket, at(0));
    let mut bucket = FakeBucket::default();
    for replica in &mut replicas {
        replica.table.disconnected();
        replica.connect(&bucket, at(1));
    }
    settle(&mut replicas, &mut bucket, at(1));
    assert_eq!(bucket.history.len(), 1, "one of them writes it");
    replicas.push(Replica::connected("d", &bucket, at(1)));
    assert_eq!(urls(&mut replicas), vec![Some("http://1".to_owned()); 4]);
    assert_eq!(drains(&mut replicas), [true; 4]);
}

#[test]
fn a_new_bucket_gets_a_worker_whose_lease_may_have_been_renewed_meanwhile() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].register(at(0), "http://1", Some(LEASE));
    settle(&mut replicas, &mut bucket, at(0));
    let mut bucket = FakeBucket::default();
    for replica in &mut replicas {
        replica.table.disconnected();
        replica.table.end_leases(at(60));
        replica.connect(&bucket, at(60));
        replica.table.end_leases(at(60));
    }
    settle(&mut replicas, &mut bucket, at(60));
    assert_eq!(urls(&mut replicas), vec![Some("http://1".to_owned()); 3]);
    for replica in &mut replicas {
        replica.table.end_leases(at(70));
    }
    settle(&mut replicas, &mut bucket, at(70));
    assert_eq!(urls(&mut replicas), vec![None; 3]);
}

#[test]
fn a_worker_of_the_state_file_is_shared_unless_it_was_removed_or_changed_meanwhile() {
    let restarted = |bucket: &mut FakeBucket| {
        let mut replica = Replica::new("r");
        let known = registration("http://old", None);
        replica.worker().registration = Some(known.clone());
        replica.table.restore("w", known).unwrap();
        replica.connect(bucket, at(0));
        let mut all = [replica];
        settle(&mut all, bucket, at(0));
        all[0].url()
    };
    let mut bucket = FakeBucket::default();
    assert_eq!(restarted(&mut bucket).unwrap(), "http://old");

    let mut replicas = three(&bucket);
    replicas[0].register(at(0), "http://new", None);
    settle(&mut replicas, &mut bucket, at(0));
    assert_eq!(restarted(&mut bucket).unwrap(), "http://new");

    replicas = three(&bucket);
    replicas[0].unregister();
    settle(&mut replicas, &mut bucket, at(0));
    assert_eq!(restarted(&mut bucket), None);
}

#[test]
fn a_refused_registration_is_reported_once_and_tried_again_when_it_changes() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].register(at(0), "http://1", Some(LEASE));
    replicas[0].write(&mut bucket);
    let refuse = |replica: &mut Replica, bucket: &FakeBucket, reason| {
        let event = bucket.history[replica.read].clone();
        replica.read += 1;
        replica.observe(&event, replica.read as u64, at(0));
        replica.apply(Some(reason))
    };
    let [renewing, refusing, _] = &mut replicas[..] else {
        unreachable!("three replicas")
    };
    assert_eq!(refuse(refusing, &bucket, Refusal::Configured), 1);
    assert_eq!(refusing.table.counts().refused, 1);
    while renewing.read_one(&bucket, at(0)) {}
    renewing.register(at(1), "http://1", Some(LEASE));
    renewing.write(&mut bucket);
    assert_eq!(
        refuse(refusing, &bucket, Refusal::Configured),
        0,
        "a renewal"
    );
    refusing.table.retry_refused();
    assert_eq!(refusing.apply(Some(Refusal::Configured)), 0, "the same");
    refusing.table.retry_refused();
    assert_eq!(refusing.apply(None), 0);
    assert_eq!(refusing.url().unwrap(), "http://1");
    assert_eq!(refusing.table.counts().refused, 0);
}

#[test]
fn a_value_of_another_version_leaves_the_worker_and_is_an_error_once() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].register(at(0), "http://1", None);
    settle(&mut replicas, &mut bucket, at(0));
    let newer = json!({"form": 2}).to_string();
    bucket.add("w", BucketEvent::Put("w".to_owned(), newer.into_bytes()));
    let revision = bucket.history.len() as u64;
    let BucketEvent::Put(_, bytes) = bucket.history.last().unwrap().clone() else {
        unreachable!("a value")
    };
    let observe = |replica: &mut Replica| {
        let observed = replica.table.observe(at(0), "w", (&bytes, revision));
        replica.read = bucket.history.len();
        observed
    };
    for replica in &mut replicas {
        let error = observe(replica).unwrap_err();
        assert!(matches!(
            error,
            ObservationError::Value(ValueError::UnknownForm(2))
        ));
        assert_eq!(observe(replica), Ok(()));
        replica.apply(None);
    }
    assert_eq!(urls(&mut replicas), vec![Some("http://1".to_owned()); 3]);
    // A call here replaces it.
    replicas[1].register(at(0), "http://2", None);
    settle(&mut replicas, &mut bucket, at(0));
    assert_eq!(urls(&mut replicas), vec![Some("http://2".to_owned()); 3]);
}

#[test]
fn a_registration_in_place_of_an_unreadable_value_replaces_it() {
    let mut bucket = FakeBucket::default();
    bucket.add("w", BucketEvent::Put("w".to_owned(), b"{".to_vec()));
    let mut replica = Replica::new("a");
    replica.table.begin_read();
    assert!(replica.table.observe(at(0), "w", (b"{", 1)).is_err());
    replica.table.end_read(at(0));
    replica.read = 1;
    replica.register(at(0), "http://1", None);
    let mut all = [replica];
    settle(&mut all, &mut bucket, at(0));
    assert_eq!(bucket.last_value("w"), Some(2));
}

#[test]
fn the_table_takes_a_bounded_number_of_workers() {
    let mut table = RegistrationTable::new("a".into());
    for number in 0..MOST_WORKERS {
        let name = format!("w{number}");
        table
            .register(at(0), &name, registration("http://1", None))
            .unwrap();
    }
    let one_more = table.register(at(0), "more", registration("http://1", None));
    assert_eq!(one_more, Err(TableFull));
    assert_eq!(table.set_drained("more", true), Err(TableFull));
    assert!(!table.has_room_for("more"));
    let value = WorkerValue {
        name: "more".to_owned(),
        worker: SharedWorker::default(),
        renewal: 0,
        writer: "b".to_owned(),
        change: 1,
    };
    let observed = table.observe(at(0), "more", (&value.encode(), 1));
    assert_eq!(observed, Err(ObservationError::TableFull));
    assert!(table.unregister("w7"));
}

#[test]
fn old_deletions_are_removed_from_the_bucket() {
    let mut table = RegistrationTable::new("a".into());
    table.begin_read();
    for revision in 1..=MOST_DELETIONS as u64 + 2 {
        table.observe_deletion(&format!("w{revision}"), revision);
    }
    table.end_read(at(0));
    assert_eq!(
        table.writes(at(0)),
        [1, 2].map(|revision| KeyWrite::ForgetDeletion { revision })
    );
    assert!(table.writes(at(0)).is_empty());
}

#[test]
fn the_drain_of_a_worker_that_nobody_has_ends_with_a_removal_or_a_resume() {
    for end in [
        |replica: &mut Replica| assert!(replica.unregister()),
        |replica: &mut Replica| replica.drain(false),
    ] {
        let mut bucket = FakeBucket::default();
        let mut replicas = three(&bucket);
        replicas[0].drain(true);
        settle(&mut replicas, &mut bucket, at(0));
        end(&mut replicas[1]);
        settle(&mut replicas, &mut bucket, at(0));
        assert_eq!(drains(&mut replicas), [false; 3]);
        assert_eq!(bucket.last_value("w"), None);
        assert!(!replicas[2].unregister(), "it is gone");
    }
}

#[test]
fn a_renewal_does_not_write_a_drain_again_that_was_resumed_meanwhile() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].register(at(0), "http://1", Some(LEASE));
    settle(&mut replicas, &mut bucket, at(0));
    replicas[0].drain(true);
    replicas[0].write(&mut bucket);
    while replicas[1].read_one(&bucket, at(0)) {}
    replicas[1].drain(false);
    replicas[1].write(&mut bucket);
    // It has seen neither its own drain in the bucket nor the resume.
    replicas[0].register(at(1), "http://1", Some(LEASE));
    settle(&mut replicas, &mut bucket, at(1));
    assert_eq!(drains(&mut replicas), [false; 3]);
}

#[test]
fn a_drain_or_a_resume_is_no_renewal() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].register(at(0), "http://1", Some(LEASE));
    settle(&mut replicas, &mut bucket, at(0));
    for (second, drained) in [(4, true), (8, false)] {
        replicas[1].drain(drained);
        settle(&mut replicas, &mut bucket, at(second));
    }
    for replica in &mut replicas {
        replica.table.end_leases(at(10));
    }
    settle(&mut replicas, &mut bucket, at(10));
    assert_eq!(urls(&mut replicas), vec![None; 3]);
}

#[test]
fn a_lease_that_ends_while_the_worker_is_drained_removes_it() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].register(at(0), "http://1", Some(LEASE));
    settle(&mut replicas, &mut bucket, at(0));
    replicas[1].table.end_leases(at(10));
    replicas[2].drain(true);
    replicas[2].write(&mut bucket);
    settle(&mut replicas, &mut bucket, at(10));
    assert_eq!(drains(&mut replicas), [true; 3]);
    for replica in &mut replicas {
        replica.table.end_leases(at(11));
    }
    settle(&mut replicas, &mut bucket, at(11));
    assert_eq!(urls(&mut replicas), vec![None; 3]);
    assert_eq!(bucket.last_value("w"), None);
}

/// Three replicas with a worker that the second one refuses for this reason.
fn refusing(reason: Refusal, bucket: &mut FakeBucket) -> Vec<Replica> {
    let mut replicas = three(bucket);
    replicas[0].register(at(0), "http://1", None);
    replicas[0].write(bucket);
    replicas[1].read_only(bucket);
    assert_eq!(replicas[1].apply(Some(reason)), 1);
    replicas
}

#[test]
fn every_refusal_is_tried_again_but_that_of_a_forbidden_address() {
    for (reason, is_used) in [
        (Refusal::Configured, true),
        (Refusal::BadEntry, true),
        (Refusal::TooMany, true),
        (Refusal::Forbidden, false),
    ] {
        let mut bucket = FakeBucket::default();
        let refusing = &mut refusing(reason, &mut bucket)[1];
        refusing.apply(None);
        assert_eq!(refusing.url(), None, "{reason:?}: not before its time");
        refusing.table.retry_refused();
        refusing.apply(None);
        assert_eq!(refusing.url().is_some(), is_used, "{reason:?}");
    }
}

#[test]
fn a_refused_removal_is_tried_again_unless_the_worker_registers_again() {
    for registers_again in [false, true] {
        let mut bucket = FakeBucket::default();
        let mut replicas = three(&bucket);
        replicas[0].register(at(0), "http://1", None);
        settle(&mut replicas, &mut bucket, at(0));
        replicas[0].unregister();
        replicas[0].write(&mut bucket);
        replicas[1].read_only(&bucket);
        assert_eq!(replicas[1].apply(Some(Refusal::BadEntry)), 1);
        assert!(replicas[1].url().is_some());
        assert_eq!(replicas[1].table.counts().refused, 1);
        if registers_again {
            replicas[0].register(at(0), "http://1", None);
            settle(&mut replicas, &mut bucket, at(0));
        }
        replicas[1].table.retry_refused();
        replicas[1].apply(None);
        assert_eq!(replicas[1].url().is_some(), registers_again);
        assert_eq!(replicas[1].table.counts().refused, 0);
    }
}

#[test]
fn many_refusals_are_tried_again_in_turn() {
    let mut table = RegistrationTable::new("a".into());
    let refused = MOST_RETRIES + 10;
    for number in 0..refused {
        let name = format!("w{number}");
        let value = WorkerValue {
            name: name.clone(),
            worker: SharedWorker {
                registration: Some(registration("http://1", None)),
                drained: false,
            },
            renewal: 1,
            writer: "b".to_owned(),
            change: 1,
        };
        let revision = number as u64 + 1;
        table
            .observe(at(0), &name, (&value.encode(), revision))
            .unwrap();
    }
    let refuse = |table: &mut RegistrationTable| {
        let changes = table.changes();
        let count = changes.len();
        for change in changes {
            table.applied(change, Err(Refusal::BadEntry));
        }
        count
    };
    assert_eq!(refuse(&mut table), refused);
    for count in [MOST_RETRIES, 10, MOST_RETRIES] {
        table.retry_refused();
        assert_eq!(refuse(&mut table), count);
    }
}

#[test]
fn a_write_that_the_bucket_does_not_show_for_long_is_lost_and_made_again() {
    let mut bucket = FakeBucket::default();
    let mut replica = Replica::connected("a", &bucket, at(0));
    replica.register(at(0), "http://1", None);
    assert_eq!(replica.table.writes(at(100)).len(), 1, "it gets nowhere");
    assert!(!replica.table.has_lost_write(at(109)));
    assert!(replica.table.has_lost_write(at(110)));
    replica.table.disconnected();
    assert!(!replica.table.has_lost_write(at(110)));
    replica.connect(&bucket, at(111));
    let mut all = [replica];
    settle(&mut all, &mut bucket, at(111));
    assert_eq!(bucket.last_value("w"), Some(1));
    assert!(!all[0].table.has_lost_write(at(1_000)));
}

#[test]
fn changes_that_were_not_answered_come_again() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].register(at(0), "http://1", None);
    replicas[0].write(&mut bucket);
    replicas[1].read_only(&bucket);
    assert_eq!(
        replicas[1].table.changes().len(),
        1,
        "whoever takes it panics"
    );
    assert!(!replicas[1].table.has_changes());
    replicas[1].table.repeat_changes();
    assert!(replicas[1].table.has_changes());
    replicas[1].apply(None);
    assert_eq!(replicas[1].url().unwrap(), "http://1");
}

#[test]
fn a_call_that_takes_back_one_on_its_way_counts() {
    let mut bucket = FakeBucket::default();
    let mut replicas = three(&bucket);
    replicas[0].drain(true);
    replicas[0].write(&mut bucket);
    replicas[0].drain(false);
    settle(&mut replicas, &mut bucket, at(0));
    assert_eq!(drains(&mut replicas), [false; 3]);
    assert_eq!(bucket.last_value("w"), None);

    let take_back: [fn(&mut Replica, &mut FakeBucket); 2] = [
        |replica, bucket| {
            replica.drain(true);
            replica.write(bucket);
            replica.drain(false);
        },
        |replica, bucket| {
            replica.unregister();
            replica.write(bucket);
            replica.register(at(0), "http://1", None);
        },
    ];
    for calls in take_back {
        let mut bucket = FakeBucket::default();
        let mut replicas = three(&bucket);
        replicas[0].register(at(0), "http://1", None);
        settle(&mut replicas, &mut bucket, at(0));
        calls(&mut replicas[0], &mut bucket);
        settle(&mut replicas, &mut bucket, at(0));
        assert_eq!(urls(&mut replicas), vec![Some("http://1".to_owned()); 3]);
        assert_eq!(drains(&mut replicas), [false; 3]);
    }
}
