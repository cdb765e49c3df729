//! The log of one fleet, as one replica uses it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use nats_client::{
    Bucket, BucketConfig, Client, JetStream, JetStreamError, SharedConnection, Storage,
    StreamConfig, StreamInfo, backoff,
};
use net::Clock;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    LogMember, LogNames, LogReport, ReplicaReport, SnapshotReport, StreamRole,
    ability::PublishAbility,
    consumer,
    counts::{LogCounters, add},
    member::MemberState,
    names::token,
    outbox::{Outbox, OutgoingMessage},
    ownership::{Ownership, OwnershipWrite, PRESENCE_TTL},
    presence, publisher,
};

/// The settings of a log.
#[derive(Clone, Debug)]
pub struct EventLogSettings {
    /// The names of the fleet.
    pub names: LogNames,
    /// The name of this process: letters, digits, - and _, and never that of another one.
    pub replica: Arc<str>,
    /// Retention time of messages.
    pub retention: Duration,
}

/// The log of one fleet. Dropping it ends its tasks.
#[derive(Debug)]
pub struct EventLog {
    state: Arc<LogState>,
    task: JoinHandle<()>,
}

/// What the tasks of a log share.
#[derive(Debug)]
pub(crate) struct LogState {
    pub(crate) settings: EventLogSettings,
    pub(crate) clock: Clock,
    pub(crate) connection: Arc<SharedConnection>,
    pub(crate) members: Mutex<HashMap<Arc<str>, Arc<MemberState>>>,
    pub(crate) ownership: Mutex<Ownership>,
    /// Writes of ownership that do not wait for the next tick.
    pub(crate) releases: Mutex<Vec<OwnershipWrite>>,
    pub(crate) outgoing: Mutex<Outgoing>,
    pub(crate) filled: Notify,
    pub(crate) progress: Mutex<LogProgress>,
    pub(crate) ability: Mutex<PublishAbility>,
    pub(crate) counters: LogCounters,
    last_error: Mutex<Option<String>>,
    /// The snapshot in force at the last look.
    pub(crate) snapshot: Mutex<Option<SnapshotReport>>,
    pub(crate) in_use: watch::Sender<bool>,
}

/// Messages on their way: waiting, and published but not yet acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) waiting: Outbox,
    /// Bounded by the publisher's window.
    pub(crate) in_flight: BTreeMap<u64, OutgoingMessage>,
}

/// How far this replica has read.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogProgress {
    /// Creation time of the stream that the sequences belong to.
    pub(crate) created: String,
    /// The last message that was given to the streams.
    pub(crate) taken: u64,
    /// Messages that the server had for this replica behind it.
    pub(crate) pending: u64,
    /// The message from which on streams read their past; 0 means the first one, too.
    history_from: u64,
}

impl EventLog {
    /// Starts the log's tasks in the current runtime.
    pub fn spawn(
        settings: EventLogSettings,
        connection: Arc<SharedConnection>,
        clock: Clock,
    ) -> Arc<Self> {
        let state = Arc::new(LogState {
            ownership: Mutex::new(Ownership::new(Arc::clone(&settings.replica))),
            settings,
            clock,
            connection,
            members: Mutex::default(),
            releases: Mutex::default(),
            outgoing: Mutex::default(),
            filled: Notify::new(),
            progress: Mutex::default(),
            ability: Mutex::default(),
            counters: LogCounters::default(),
            last_error: Mutex::default(),
            snapshot: Mutex::default(),
            in_use: watch::Sender::new(false),
        });
        let task = runtime::spawn(run(Arc::clone(&state)));
        Arc::new(Self { state, task })
    }

    /// Joins one rank's stream of a worker.
    pub fn join(&self, worker: &str, rank: u32) -> LogMember {
        let token: Arc<str> = token(worker, rank).into();
        let member = Arc::new(MemberState::new(Arc::clone(&token)));
        // Its past counts as unapplied until it was read or given up.
        let from = self.state.history_from();
        member.set_in_hand(Some(from));
        self.state.ownership.lock().join(Arc::clone(&token));
        self.state.members.lock().insert(token, Arc::clone(&member));
        LogMember {
            log: Arc::clone(&self.state),
            state: member,
        }
    }

    /// Sets the message from which on streams read their past: the one behind a restored snapshot.
    pub fn set_history_from(&self, log_seq: u64) {
        self.state.progress.lock().history_from = log_seq;
    }

    /// Returns the last message that every stream has applied.
    pub fn covered(&self) -> u64 {
        self.state.covered()
    }

    /// Returns the last message that every present replica has taken.
    pub fn acknowledged_by_all(&self) -> u64 {
        let now = self.state.clock.now();
        let ownership = self.state.ownership.lock();
        let own = self.state.progress.lock().taken;
        ownership
            .present_replicas(now)
            .map(|(_, presence)| presence.acknowledged)
            .fold(own, u64::min)
    }

    pub(crate) fn state(&self) -> &Arc<LogState> {
        &self.state
    }

    /// Ends the log's tasks and tells the other replicas, so that they take over at once.
    pub async fn leave(&self) {
        // It would renew the key.
        self.task.abort();
        let Some(client) = self.state.connection.client() else {
            return;
        };
        if let Ok(bucket) = self.state.presence_bucket(&client).await {
            let replica = &self.state.settings.replica;
            if let Ok(Some(entry)) = bucket.get(replica).await {
                // The key expires by itself.
                let _ = bucket.delete(replica, entry.revision).await;
            }
        }
    }

    /// Returns the state for operators.
    pub fn report(&self) -> LogReport {
        let state = &self.state;
        let now = state.clock.now();
        let roles = state
            .members
            .lock()
            .iter()
            .map(|(token, member)| (token.to_string(), *member.role.borrow()))
            .collect();
        let progress = state.progress.lock().clone();
        let ownership = state.ownership.lock();
        let replicas = ownership.present_replicas(now);
        LogReport {
            replica: Arc::clone(&state.settings.replica),
            connected: *state.in_use.borrow(),
            last_error: state.last_error.lock().clone(),
            snapshot: *state.snapshot.lock(),
            counts: state.counters.counts(),
            outbox: state.outgoing.lock().waiting.len(),
            taken: progress.taken,
            pending: progress.pending,
            roles,
            replicas: replicas
                .map(|(replica, presence)| ReplicaReport {
                    replica: Arc::clone(replica),
                    able: presence.able,
                    acknowledged: presence.acknowledged,
                })
                .collect(),
        }
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl LogState {
    pub(crate) fn history_from(&self) -> u64 {
        self.progress.lock().history_from.max(1)
    }

    pub(crate) fn covered(&self) -> u64 {
        // Read before the queues: a message that is taken later is not covered.
        let taken = self.progress.lock().taken;
        let members = self.members.lock();
        let unapplied = members
            .values()
            .filter_map(|member| member.first_unapplied());
        unapplied.map(|first| first - 1).fold(taken, u64::min)
    }

    /// Gives every stream its present role.
    pub(crate) fn assign_roles(&self) {
        let now = self.clock.now();
        let ownership = self.ownership.lock();
        let in_use = *self.in_use.borrow();
        for (token, member) in &*self.members.lock() {
            let role = if in_use {
                ownership.role(now, token)
            } else {
                StreamRole::Alone
            };
            let changed = member.role.send_if_modified(|current| {
                let changed = *current != role;
                *current = role;
                changed
            });
            if changed {
                tracing::info!(stream = %token, ?role, owner = ?ownership.owner(token), "role in the event log");
            }
        }
    }

    pub(crate) fn begin_use(&self) {
        self.in_use.send_replace(true);
        *self.last_error.lock() = None;
    }

    /// Ends the use of a connection: every stream follows its engine, and messages that were not
    /// acknowledged are sent again over the next one.
    fn end_use(&self, reason: String) {
        self.in_use.send_replace(false);
        self.ownership.lock().disconnected();
        self.assign_roles();
        let mut outgoing = self.outgoing.lock();
        let unsent = std::mem::take(&mut outgoing.in_flight);
        let dropped = outgoing.waiting.put_back(unsent.into_values());
        drop(outgoing);
        add(&self.counters.dropped, dropped);
        let mut last_error = self.last_error.lock();
        if last_error.as_ref() != Some(&reason) {
            tracing::warn!(
                error = reason,
                "the event log is not used: each engine is followed directly"
            );
            *last_error = Some(reason);
        }
    }

    pub(crate) async fn presence_bucket(&self, client: &Client) -> Result<Bucket, JetStreamError> {
        presence_bucket(client, &self.settings.names).await
    }

    /// Creates the stream, and begins anew if it is another one than before.
    async fn open_stream(&self, jetstream: &JetStream) -> Result<StreamInfo, JetStreamError> {
        let names = &self.settings.names;
        let config = StreamConfig::new(names.stream(), vec![names.subjects()])
            .max_age(self.settings.retention);
        let info = jetstream.ensure_stream(&config).await?;
        let mut progress = self.progress.lock();
        if progress.created != info.created {
            let is_first = progress.created.is_empty();
            progress.created.clone_from(&info.created);
            // What was there before this process is its streams' past, which they read themselves.
            // What is in a new stream of a running process is news.
            progress.taken = if is_first { info.state.last_seq } else { 0 };
        }
        Ok(info)
    }
}

/// Opens the bucket of the replicas' presence.
pub(crate) async fn presence_bucket(
    client: &Client,
    names: &LogNames,
) -> Result<Bucket, JetStreamError> {
    let config = BucketConfig {
        name: names.bucket("replicas"),
        max_age: Some(PRESENCE_TTL),
        storage: Storage::Memory,
    };
    Bucket::open(client, &config).await
}

async fn run(state: Arc<LogState>) {
    let mut connection = state.connection.watch();
    let mut backoff = backoff::reconnects();
    loop {
        let Ok(current) = connection
            .wait_for(|current| current.client.is_some())
            .await
            .map(|current| current.clone())
        else {
            return;
        };
        let Some(client) = current.client else {
            continue;
        };
        let number = current.connections;
        let started = state.clock.now();
        let reason = tokio::select! {
            error = use_connection(&state, client) => error.to_string(),
            _ = connection.wait_for(|now| now.client.is_none() || now.connections != number) => {
                "the connection to nats was lost".to_owned()
            }
        };
        state.end_use(reason);
        let lasted = state.clock.now().since(started);
        let pause = backoff::wait(&mut backoff, lasted, runtime::chance());
        // A new connection is used at once: its owner has paused before it.
        let _ = timeout(pause, connection.wait_for(|now| now.connections != number)).await;
    }
}

/// Uses one connection until it fails.
async fn use_connection(state: &Arc<LogState>, client: Client) -> JetStreamError {
    let jetstream = JetStream::new(client.clone());
    if let Err(error) = state.open_stream(&jetstream).await {
        return error;
    }
    let failed = tokio::select! {
        failed = publisher::run(state, &jetstream) => failed,
        failed = consumer::run(state, &jetstream) => failed,
        failed = presence::run(state, &client) => failed,
    };
    match failed {
        Ok(never) => match never {},
        Err(error) => error,
    }
}
