//! One look at the replicas that run, for checks before traffic: who is there, and whether it would
//! be understood. It sends nothing that a replica takes.

use std::time::Duration;

use config::Settings;
use futures_util::future::join_all;
use http::StatusCode;
use net::{WorkerUrl, fetch};
use tokio::time::timeout;

use crate::{
    identity::ShownId,
    replicas::{ReplicaStartError, peer_spec},
    settings_digest,
    transport::{FEED, FrameSplitter, PeerTransportSpec},
    wire::{self, Envelope},
};

/// Time limit of connecting to a peer.
const CONNECT: Duration = Duration::from_secs(2);
/// Intervals of presences that are waited for one.
const INTERVALS: u32 = 2;
/// Most replicas of one look.
const MOST: usize = 256;

/// A replica, by its presence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeenReplica {
    /// Its id.
    pub id: String,
    /// Where its admin listener is reached.
    pub address: String,
    /// Whether it would be refused.
    pub mismatch: Option<ReplicaMismatch>,
}

/// Why replicas refuse each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplicaMismatch {
    /// Another version of the messages.
    Version,
    /// Another namespace, component or hash of blocks.
    Settings,
}

/// Why the feed of a peer gives no presence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerFailure {
    /// It cannot be reached, or says nothing.
    Silent(String),
    /// It wants another admin token.
    Token,
    /// It has no feed: it is no router, or its mode is another one.
    NoFeed,
    /// Another status.
    Status(u16),
}

/// The answer of one admin listener of `replicas.peers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerProbe {
    /// Its address.
    pub peer: String,
    /// Its presence, or the reason why there is none.
    pub answer: Result<SeenReplica, PeerFailure>,
}

impl SeenReplica {
    /// Reads a message; `None`: it has no presence, or is the last one of a replica.
    fn of(message: &[u8], settings: u64) -> Option<Self> {
        let message: Envelope = wire::decode(message).ok()?;
        let presence = message.presence.filter(|presence| !presence.leaving)?;
        let mismatch = if message.version != wire::VERSION {
            Some(ReplicaMismatch::Version)
        } else {
            (presence.settings != settings).then_some(ReplicaMismatch::Settings)
        };
        Some(Self {
            id: ShownId(message.sender).to_string(),
            address: presence.address,
            mismatch,
        })
    }
}

/// Reads one presence of each admin listener in `replicas.peers`; each has `limit`, at most.
///
/// # Errors
///
/// An address, a certificate authority or the token cannot be used.
pub async fn probe_peers(
    settings: &Settings,
    token: Option<&str>,
    limit: Duration,
) -> Result<Vec<PeerProbe>, ReplicaStartError> {
    let spec = peer_spec(&settings.replicas, 0, token)?;
    let resolved = spec
        .peers
        .iter()
        .map(async |entry| match entry.resolve().await {
            Ok(urls) => urls.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(PeerProbe {
                peer: entry.to_string(),
                answer: Err(PeerFailure::Silent(error.to_string())),
            })],
        });
    let listed = join_all(resolved).await.into_iter().flatten().take(MOST);
    let probes = listed.map(async |entry| match entry {
        Ok(url) => PeerProbe {
            peer: url.to_string(),
            answer: probe_peer(url, &spec, settings, limit).await,
        },
        Err(unresolved) => unresolved,
    });
    Ok(join_all(probes).await)
}

async fn probe_peer(
    url: WorkerUrl,
    spec: &PeerTransportSpec,
    settings: &Settings,
    limit: Duration,
) -> Result<SeenReplica, PeerFailure> {
    let url = match &spec.trust {
        Some(trust) => url.with_trust(trust.clone()),
        None => url,
    };
    let mut reply = fetch::open(&url, FEED, &spec.headers, limit.min(CONNECT))
        .await
        .map_err(|error| PeerFailure::Silent(error.to_string()))?;
    match reply.status {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS => {
            return Err(PeerFailure::Token);
        }
        StatusCode::NOT_FOUND => return Err(PeerFailure::NoFeed),
        status => return Err(PeerFailure::Status(status.as_u16())),
    }
    let digest = settings_digest(settings);
    let read = async {
        let mut splitter = FrameSplitter::default();
        while let Some(bytes) = reply.next().await.ok()? {
            splitter.push(&bytes);
            while let Some(message) = splitter.next().ok()? {
                if let Some(seen) = SeenReplica::of(&message, digest) {
                    return Some(seen);
                }
            }
        }
        None
    };
    let limit = limit.min(CONNECT + settings.replicas.digest_interval * INTERVALS);
    let read = timeout(limit, read).await;
    read.ok()
        .flatten()
        .ok_or_else(|| PeerFailure::Silent(format!("it said nothing within {limit:?}")))
}

/// Listens to the presences on a bus for as long as `limit`, at most.
///
/// # Errors
///
/// The subject cannot be read.
#[cfg(feature = "nats")]
pub async fn probe_bus(
    client: &nats_client::Client,
    settings: &Settings,
    limit: Duration,
) -> Result<Vec<SeenReplica>, String> {
    use futures_util::StreamExt;

    let replicas = &settings.replicas;
    let subjects = crate::transport::ReplicaSubjects::new(&replicas.namespace, &replicas.component);
    let subscribed = client.subscribe(subjects.all().to_owned()).await;
    let mut messages = subscribed.map_err(|error| error.to_string())?;
    let digest = settings_digest(settings);
    let mut seen = std::collections::BTreeSet::new();
    let listen = async {
        while let Some(message) = messages.next().await {
            seen.extend(SeenReplica::of(&message.payload, digest));
            if seen.len() >= MOST {
                return;
            }
        }
    };
    let limit = limit.min(replicas.digest_interval * INTERVALS);
    // It ends with the time limit, unless the connection ends before.
    let _ = timeout(limit, listen).await;
    Ok(seen.into_iter().collect())
}
