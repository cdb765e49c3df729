//! Replicas that see the keys of one store, in steps of the caller's time.

use super::*;

const STEP: Duration = Duration::from_millis(50);

/// Replicas around one store of keys.
struct Fleet {
    now: Moment,
    replicas: BTreeMap<Arc<str>, Ownership>,
    /// Owner and revision by stream.
    store: HashMap<Arc<str>, (Option<Arc<str>>, u64)>,
    revision: u64,
    /// Replicas that cannot publish.
    unable: Vec<Arc<str>>,
    renewed: Moment,
}

impl Fleet {
    fn new(replicas: &[&str], streams: &[&str]) -> Self {
        let mut fleet = Self {
            now: Moment::START,
            replicas: BTreeMap::new(),
            store: HashMap::new(),
            revision: 0,
            unable: Vec::new(),
            renewed: Moment::START,
        };
        for replica in replicas {
            fleet.start(replica, streams);
        }
        fleet
    }

    fn start(&mut self, replica: &str, streams: &[&str]) {
        let mut ownership = Ownership::new(replica.into());
        for stream in streams {
            ownership.join((*stream).into());
        }
        for (token, (owner, revision)) in &self.store {
            ownership.owned(Arc::clone(token), owner.clone(), *revision);
        }
        self.replicas.insert(replica.into(), ownership);
        self.renew();
    }

    fn kill(&mut self, replica: &str) {
        self.replicas.remove(replica);
    }

    fn renew(&mut self) {
        self.renewed = self.now;
        let names: Vec<Arc<str>> = self.replicas.keys().cloned().collect();
        for ownership in self.replicas.values_mut() {
            for name in &names {
                let presence = Presence {
                    able: !self.unable.contains(name),
                    acknowledged: 0,
                };
                ownership.present(self.now, Arc::clone(name), presence);
            }
        }
    }

    /// Lets this time pass.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + STEP;
            if self.now.since(self.renewed) >= RENEWAL {
                self.renew();
            }
            let writes: Vec<(Arc<str>, OwnershipWrite)> = self
                .replicas
                .iter_mut()
                .flat_map(|(name, ownership)| {
                    let writes = ownership.tick(self.now, 0.5);
                    writes.into_iter().map(|write| (Arc::clone(name), write))
                })
                .collect();
            for (name, write) in writes {
                self.write(&name, write);
            }
        }
    }

    fn write(&mut self, writer: &Arc<str>, write: OwnershipWrite) {
        let (token, expected, owner) = match write {
            OwnershipWrite::Claim { token, revision } => {
                (token, revision, Some(Arc::clone(writer)))
            }
            OwnershipWrite::Release { token, revision } => (token, revision, None),
        };
        if self.store.get(&token).map_or(0, |(_, revision)| *revision) != expected {
            self.replicas.get_mut(writer).unwrap().claim_failed(&token);
            return;
        }
        self.revision += 1;
        self.store
            .insert(Arc::clone(&token), (owner.clone(), self.revision));
        for ownership in self.replicas.values_mut() {
            ownership.owned(Arc::clone(&token), owner.clone(), self.revision);
        }
    }

    fn role(&self, replica: &str, stream: &str) -> StreamRole {
        self.replicas[replica].role(self.now, stream)
    }

    fn owner(&self, stream: &str) -> Option<String> {
        let owners: Vec<&Arc<str>> = self
            .replicas
            .iter()
            .filter(|(_, ownership)| ownership.role(self.now, stream) == StreamRole::Owner)
            .map(|(name, _)| name)
            .collect();
        assert!(owners.len() < 2, "{stream} has two owners");
        owners.first().map(ToString::to_string)
    }
}

#[test]
fn one_replica_owns_each_stream_and_the_others_follow_it() {
    let streams: Vec<String> = (0..30).map(|number| format!("w{number}.0")).collect();
    let streams: Vec<&str> = streams.iter().map(String::as_str).collect();
    let mut fleet = Fleet::new(&["a", "b", "c"], &streams);
    fleet.pass(Duration::from_secs(1));
    let mut counts = BTreeMap::new();
    for stream in &streams {
        let owner = fleet.owner(stream).unwrap();
        for replica in ["a", "b", "c"] {
            let expected = if replica == owner {
                StreamRole::Owner
            } else {
                StreamRole::Follower
            };
            assert_eq!(fleet.role(replica, stream), expected);
        }
        *counts.entry(owner).or_insert(0) += 1;
    }
    assert!(
        counts.len() == 3 && counts.values().all(|count| *count >= 4),
        "{counts:?}"
    );
}

#[test]
fn the_stream_of_a_killed_owner_has_another_owner_within_two_seconds() {
    for seed in 0..20 {
        let stream = format!("w{seed}.0");
        let mut fleet = Fleet::new(&["a", "b", "c"], &[&stream]);
        fleet.pass(Duration::from_millis(1_000 + 50 * seed));
        let owner = fleet.owner(&stream).unwrap();
        fleet.kill(&owner);
        let killed = fleet.now;
        let survivor = if owner == "a" { "b" } else { "a" };
        while fleet.owner(&stream).is_none() {
            let role = fleet.role(survivor, &stream);
            assert_eq!(role, StreamRole::Follower, "it waits for the successor");
            fleet.pass(STEP);
        }
        let took = fleet.now.since(killed);
        assert!(took <= Duration::from_secs(2), "{took:?}");
    }
}

#[test]
fn an_owner_that_says_farewell_is_replaced_at_once() {
    let mut fleet = Fleet::new(&["a", "b"], &["w.0"]);
    fleet.pass(Duration::from_secs(1));
    let owner = fleet.owner("w.0").unwrap();
    fleet.kill(&owner);
    for ownership in fleet.replicas.values_mut() {
        ownership.gone(&owner);
    }
    fleet.pass(Duration::from_millis(400));
    assert!(fleet.owner("w.0").is_some());
}

#[test]
fn a_replica_that_cannot_publish_owns_nothing_and_without_any_all_are_alone() {
    let mut fleet = Fleet::new(&["a", "b"], &["w.0"]);
    fleet.pass(Duration::from_secs(1));
    let owner = fleet.owner("w.0").unwrap();
    let other = if owner == "a" { "b" } else { "a" };
    fleet.unable = vec![owner.as_str().into()];
    fleet.pass(Duration::from_secs(2));
    assert_eq!(fleet.owner("w.0").as_deref(), Some(other));
    fleet.unable.push(other.into());
    fleet.pass(Duration::from_secs(2));
    for replica in ["a", "b"] {
        assert_eq!(fleet.role(replica, "w.0"), StreamRole::Alone);
    }
    fleet.unable.clear();
    fleet.pass(Duration::from_secs(1));
    assert!(fleet.owner("w.0").is_some());
}

#[test]
fn a_replica_that_cannot_follow_the_engine_hands_the_stream_over() {
    let mut fleet = Fleet::new(&["a", "b"], &["w.0"]);
    fleet.pass(Duration::from_secs(1));
    let owner: Arc<str> = fleet.owner("w.0").unwrap().into();
    let now = fleet.now;
    let write = fleet
        .replicas
        .get_mut(&owner)
        .unwrap()
        .unable(now, &"w.0".into());
    fleet.write(&owner, write.unwrap());
    fleet.pass(Duration::from_secs(1));
    assert_ne!(fleet.owner("w.0").unwrap(), *owner);
}

#[test]
fn a_replica_that_does_not_follow_a_worker_does_not_claim_its_stream() {
    let mut fleet = Fleet::new(&["a"], &["w.0"]);
    fleet.start("b", &[]);
    fleet.pass(Duration::from_secs(1));
    assert_eq!(fleet.owner("w.0").as_deref(), Some("a"));
    fleet.kill("a");
    fleet.pass(Duration::from_secs(4));
    assert_eq!(fleet.owner("w.0"), None);
}

#[test]
fn a_new_replica_gets_its_share() {
    let streams: Vec<String> = (0..40).map(|number| format!("w{number}.0")).collect();
    let streams: Vec<&str> = streams.iter().map(String::as_str).collect();
    let mut fleet = Fleet::new(&["a"], &streams);
    fleet.pass(Duration::from_secs(1));
    fleet.start("b", &streams);
    fleet.pass(Duration::from_secs(60));
    let owned_by_b = |fleet: &Fleet| {
        let owners = streams.iter().filter_map(|stream| fleet.owner(stream));
        owners.filter(|owner| owner == "b").count()
    };
    let count = owned_by_b(&fleet);
    assert!((14..=26).contains(&count), "{count}");
    fleet.pass(Duration::from_secs(60));
    assert_eq!(owned_by_b(&fleet), count, "it settles");
}

#[test]
fn without_a_connection_every_stream_is_followed_directly() {
    let mut fleet = Fleet::new(&["a", "b"], &["w.0"]);
    fleet.pass(Duration::from_secs(1));
    for ownership in fleet.replicas.values_mut() {
        ownership.disconnected();
    }
    for replica in ["a", "b"] {
        assert_eq!(fleet.role(replica, "w.0"), StreamRole::Alone);
        let cut = &fleet.replicas[replica];
        assert_eq!(cut.owner("w.0"), None);
    }
}
