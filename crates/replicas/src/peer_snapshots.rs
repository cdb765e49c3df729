//! Copies of the index that peers offer.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use config::{ReplicaMode, ReplicasSection};
use http::StatusCode;
use net::{WorkerUrl, fetch};

use crate::{replicas::ReplicaStartError, replicas::peer_spec, transport::PeerTransportSpec};

/// Path of the copy on an admin listener.
const SNAPSHOT: &str = "/admin/replicas/snapshot";
/// Time limit of connecting, and of the beginning of the reply.
const PATIENCE: Duration = Duration::from_secs(5);

/// The peers that may have a copy.
#[derive(Debug)]
pub struct PeerSnapshots {
    spec: PeerTransportSpec,
    limit: usize,
}

impl PeerSnapshots {
    /// Returns the peers of these settings; none unless the mode is `peers`. A copy may have
    /// `limit` bytes.
    ///
    /// # Errors
    ///
    /// An address, a certificate authority or the token cannot be used.
    pub fn of(
        settings: &ReplicasSection,
        token: Option<&str>,
        limit: usize,
    ) -> Result<Self, ReplicaStartError> {
        let mut spec = peer_spec(settings, 0, token)?;
        if settings.mode != ReplicaMode::Peers {
            spec.peers.clear();
        }
        Ok(Self { spec, limit })
    }

    /// Returns the copy of the first peer that answers, with its address. This process answers
    /// nothing yet, so its own address is skipped like that of a peer that is away.
    pub async fn first(&self) -> Option<(String, Bytes)> {
        for address in &self.spec.peers {
            for url in address.resolve().await.unwrap_or_default() {
                let url = match &self.spec.trust {
                    Some(trust) => url.with_trust(trust.clone()),
                    None => url,
                };
                match self.copy(&url).await {
                    Ok(bytes) => return Some((url.to_string(), bytes)),
                    Err(error) => tracing::debug!(peer = %url, error, "no index to copy"),
                }
            }
        }
        None
    }

    async fn copy(&self, url: &WorkerUrl) -> Result<Bytes, String> {
        let opened = fetch::open(url, SNAPSHOT, &self.spec.headers, PATIENCE).await;
        let mut reply = opened.map_err(|error| error.to_string())?;
        if reply.status != StatusCode::OK {
            return Err(format!("status {}", reply.status));
        }
        let mut bytes = BytesMut::new();
        while let Some(piece) = reply.next().await.map_err(|error| error.to_string())? {
            if bytes.len() + piece.len() > self.limit {
                return Err(format!("more than {} bytes", self.limit));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes.freeze())
    }
}
