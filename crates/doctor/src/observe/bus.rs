//! One look at the NATS server that replicas share. Nothing is stored there.

use std::time::Duration;

use config::Settings;
use event_log::LogNames;
use nats_client::{
    AccountInfo, Client, ConnectionEvent, DialError, HeaderMap, JetStream, JetStreamError,
    NatsConnection, NatsDialer,
};
use replicas::SeenReplica;
use tokio::time::timeout;

/// Time for an error that the server reports beside its answers.
const ERRORS: Duration = Duration::from_millis(200);
/// Last token of the subjects that are tried.
const PROBE: &str = "warmroute-doctor";
/// A sequence that no stream has: a stream does not take the message.
const NO_SEQUENCE: &str = "999999999999999999";

/// The server as it was seen.
#[derive(Debug)]
pub(crate) struct BusObservation {
    /// Its address.
    pub(crate) server: String,
    /// Its properties, or the reason why they are unknown.
    pub(crate) facts: Result<BusFacts, BusFailure>,
}

/// Why the server cannot be used.
#[derive(Debug)]
pub(crate) enum BusFailure {
    /// It does not accept the credentials.
    Refused(String),
    /// There is no connection.
    Unreachable(String),
}

/// Properties of the server.
#[derive(Debug)]
pub(crate) struct BusFacts {
    pub(crate) version: String,
    /// Largest message, bytes.
    pub(crate) max_payload: usize,
    /// Permissions that the user lacks, as a server's configuration has them.
    pub(crate) denied: Vec<String>,
    pub(crate) account: Result<AccountInfo, JetStreamError>,
    /// Replicas that are there.
    pub(crate) replicas: Result<Vec<SeenReplica>, String>,
}

/// Connects, asks, and listens to the replicas' presences.
pub(crate) async fn observe(
    settings: &Settings,
    dialer: &NatsDialer,
    limit: Duration,
) -> BusObservation {
    let server = dialer.server.to_string();
    let looked = timeout(limit, look(settings, dialer, limit / 2)).await;
    let facts = looked.unwrap_or_else(|_| {
        let reason = format!("{server} did not answer everything within {limit:?}");
        Err(BusFailure::Unreachable(reason))
    });
    BusObservation { server, facts }
}

async fn look(
    settings: &Settings,
    dialer: &NatsDialer,
    limit: Duration,
) -> Result<BusFacts, BusFailure> {
    let mut connection = dialer.open().await.map_err(|error| match error {
        DialError::Refused { .. } => BusFailure::Refused(error.to_string()),
        _ => BusFailure::Unreachable(error.to_string()),
    })?;
    let client = connection.client.clone();
    let subjects = subjects(settings);
    for (subject, _) in &subjects {
        try_publishing(&client, subject).await;
    }
    let replicas = replicas::probe_bus(&client, settings, limit).await;
    // The server reads in order: its answer comes behind its errors.
    let account = JetStream::new(client.clone()).account().await;
    let errors = errors(&mut connection).await;
    let is_denied = |subject: &str| {
        let subject = format!("\"{}\"", subject.to_lowercase());
        errors.iter().any(|error| error.contains(&subject))
    };
    let mut denied: Vec<String> = Vec::new();
    for (subject, permission) in subjects {
        if is_denied(&subject) && !denied.contains(&permission) {
            denied.push(permission);
        }
    }
    if errors.iter().any(|error| error.contains("\"_inbox.")) {
        denied.push("_INBOX.>".to_owned());
    }
    let info = client.server_info();
    Ok(BusFacts {
        version: info.version,
        max_payload: info.max_payload,
        denied,
        account,
        replicas,
    })
}

/// Returns the subjects that a replica publishes to or reads, and the permission for each.
fn subjects(settings: &Settings) -> Vec<(String, String)> {
    let replicas = &settings.replicas;
    let (stream, group) = (
        &replicas.nats.stream,
        format!("{}.{}", replicas.namespace, replicas.component),
    );
    let mut subjects = vec![
        ("$JS.API.INFO".to_owned(), "$JS.API.>".to_owned()),
        (format!("$JS.ACK.{PROBE}"), "$JS.ACK.>".to_owned()),
        (format!("{group}.replicas.{PROBE}"), format!("{group}.>")),
        (format!("{group}.replicas"), format!("{group}.>")),
    ];
    // The names are checked settings.
    if let Ok(names) = LogNames::new(stream, &replicas.namespace, &replicas.component) {
        let log = names.subjects().replace('>', PROBE);
        subjects.push((log, format!("{stream}.>")));
        for purpose in ["replicas", "owners", "workers", "state", "locks"] {
            let subject = format!("$KV.{}.{PROBE}", names.bucket(purpose));
            subjects.push((subject, "$KV.>".to_owned()));
        }
        let objects = names.bucket("snapshots");
        subjects.push((format!("$O.{objects}.M.{PROBE}"), "$O.>".to_owned()));
    }
    subjects
}

/// Publishes what no stream and no replica takes; whether it may is seen in the server's errors.
async fn try_publishing(client: &Client, subject: &str) {
    // Others read or answer these.
    if subject.starts_with("$JS.API.") || subject.ends_with(".replicas") {
        return;
    }
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Expected-Last-Subject-Sequence", NO_SEQUENCE);
    let sent = client.publish_with_headers(subject.to_owned(), headers, "".into());
    // A lost connection is seen at the next request.
    let _ = sent.await;
}

/// Returns the errors that the server has reported so far, in lower case.
async fn errors(connection: &mut NatsConnection) -> Vec<String> {
    let mut errors = Vec::new();
    while let Ok(ConnectionEvent::Fault(error)) = timeout(ERRORS, connection.next()).await {
        errors.push(error.to_lowercase());
    }
    errors
}
