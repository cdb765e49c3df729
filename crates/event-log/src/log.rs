//! The log of one fleet, as one replica uses it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kv_blocks::Moment;
use nats_client::{
    Bucket, BucketConfig, Client, JetStream, JetStreamError, SharedConnection, Storage,
    StreamConfig, StreamInfo, backoff,
};
use net::Clock;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::sleep,
};

use crate::{
    LogCounts, LogDelivery, LogHistory, LogMessage, LogNames, StreamRole, consumer,
    counts::{LogCounters, add},
    member::MemberState,
    names::token,
    outbox::{Outbox, OutgoingMessage},
    ownership::{Ownership, OwnershipWrite, PRESENCE_TTL},
    presence, publisher,
};

/// First pause of a replica that cannot publish; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

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

/// One worker's stream in the log. Dropping it leaves the stream to the other replicas.
#[derive(Debug)]
pub struct LogMember {
    log: Arc<LogState>,
    state: Arc<MemberState>,
}

/// The state of a log for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogReport {
    /// The name of this replica.
    pub replica: Arc<str>,
    /// Whether the log is in use.
    pub connected: bool,
    /// The last error, while there is one.
    pub last_error: Option<String>,
    /// Messages by outcome.
    pub counts: LogCounts,
    /// Messages that wait to be published.
    pub outbox: usize,
    /// The last message taken, in the log's sequence.
    pub taken: u64,
    /// The joined streams by role.
    pub roles: BTreeMap<String, StreamRole>,
    /// The replicas that are present.
    pub replicas: Vec<ReplicaReport>,
}

/// A replica as this one sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaReport {
    /// Its name.
    pub replica: Arc<str>,
    /// Whether it can publish.
    pub able: bool,
    /// The last message that it has taken, in the log's sequence.
    pub acknowledged: u64,
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
    in_use: watch::Sender<bool>,
    history_from: AtomicU64,
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
}

/// Whether this replica can publish. One that cannot does not try for a while.
#[derive(Debug, Default)]
pub(crate) struct PublishAbility {
    until: Option<Moment>,
    pause: Duration,
}

impl PublishAbility {
    pub(crate) fn is_able(&self, now: Moment) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    pub(crate) fn record_failure(&mut self, now: Moment) {
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.until = Some(now + self.pause);
    }

    pub(crate) fn record_success(&mut self) {
        *self = Self::default();
    }
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
            in_use: watch::Sender::new(false),
            history_from: AtomicU64::new(1),
        });
        let task = runtime::spawn(run(Arc::clone(&state)));
        Arc::new(Self { state, task })
    }

    /// Joins one rank's stream of a worker.
    pub fn join(&self, worker: &str, rank: u32) -> LogMember {
        let token: Arc<str> = token(worker, rank).into();
        let member = Arc::new(MemberState::new(Arc::clone(&token)));
        // Its past counts as unapplied until it was read or given up.
        let from = self.state.history_from.load(Ordering::Relaxed);
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
        self.state.history_from.store(log_seq, Ordering::Relaxed);
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

    /// Tells the other replicas that this one ends, so that they take over at once.
    pub async fn leave(&self) {
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
        let ownership = state.ownership.lock();
        let replicas = ownership.present_replicas(now);
        LogReport {
            replica: Arc::clone(&state.settings.replica),
            connected: *state.in_use.borrow(),
            last_error: state.last_error.lock().clone(),
            counts: state.counters.counts(),
            outbox: state.outgoing.lock().waiting.len(),
            taken: state.progress.lock().taken,
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

impl LogMember {
    /// Returns the present role, and its changes.
    pub fn roles(&self) -> watch::Receiver<StreamRole> {
        self.state.role.subscribe()
    }

    /// Returns the present role.
    pub fn role(&self) -> StreamRole {
        *self.state.role.borrow()
    }

    /// Queues a message for the log; never waits.
    pub fn publish(&self, message: LogMessage) {
        let token = Arc::clone(&self.state.token);
        let dropped = self
            .log
            .outgoing
            .lock()
            .waiting
            .push(OutgoingMessage { token, message });
        add(&self.log.counters.dropped, dropped);
        self.log.filled.notify_one();
    }

    /// Returns the next delivery; the one before counts as applied. Cancel-safe.
    pub async fn next(&self) -> LogDelivery {
        self.state.next().await
    }

    /// Returns the next delivery if there is one; the one before counts as applied.
    pub fn try_next(&self) -> Option<LogDelivery> {
        self.state.try_next()
    }

    /// Drops what was delivered: the engine is followed directly.
    pub fn discard(&self) {
        self.state.discard();
    }

    /// Reports that the engine cannot be followed here, so that another replica publishes its
    /// stream.
    pub fn record_unable(&self) {
        let now = self.log.clock.now();
        let released = self.log.ownership.lock().unable(now, &self.state.token);
        self.log.releases.lock().extend(released);
    }

    /// Records that the past of the stream was read, or is given up.
    pub fn set_past_read(&self) {
        self.state.set_in_hand(None);
    }

    /// Counts a repair from the engine's replay.
    pub fn record_repair(&self) {
        add(&self.log.counters.repairs, 1);
    }

    /// Returns whether the log is in use, and its changes.
    pub fn in_use(&self) -> watch::Receiver<bool> {
        self.log.in_use.subscribe()
    }

    /// Returns the past of the stream, from the snapshot on that was restored, if any.
    pub async fn history(&self) -> Result<LogHistory, JetStreamError> {
        let client = self.log.connection.client();
        let client = client.ok_or_else(|| JetStreamError::NoAnswer {
            subject: self.state.token.to_string(),
            reason: "there is no connection".to_owned(),
        })?;
        let names = &self.log.settings.names;
        let subject = format!(
            "{}{}",
            names.subjects().trim_end_matches('>'),
            self.state.token
        );
        let from = self.log.history_from.load(Ordering::Relaxed);
        let reader = JetStream::new(client)
            .read(names.stream(), &subject, from)
            .await?;
        Ok(LogHistory::new(reader, Arc::clone(&self.state)))
    }
}

impl Drop for LogMember {
    fn drop(&mut self) {
        let mut members = self.log.members.lock();
        let is_current = members
            .get(&self.state.token)
            .is_some_and(|current| Arc::ptr_eq(current, &self.state));
        if is_current {
            members.remove(&self.state.token);
            drop(members);
            let released = self.log.ownership.lock().leave(&self.state.token);
            self.log.releases.lock().extend(released);
        }
    }
}

impl LogState {
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
        sleep(backoff::wait(&mut backoff, lasted, runtime::chance())).await;
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
