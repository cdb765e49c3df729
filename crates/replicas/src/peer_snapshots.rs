//! Copies of the index that peers offer.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use config::{ReplicaMode, ReplicasSection};
use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use http::StatusCode;
use net::{
    WorkerUrl,
    fetch::{self, StreamedReply},
};

use crate::{
    replicas::{ReplicaStartError, peer_spec},
    transport::PeerTransportSpec,
};

/// Path of the copy on an admin listener.
const SNAPSHOT: &str = "/admin/replicas/snapshot";
/// Time limit of connecting, and of the head of the reply, which a running router sends at once.
const PATIENCE: Duration = Duration::from_secs(1);

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

    /// Returns the copy of the peer that answers first, with its address. A peer that is starting
    /// itself answers nothing yet, and neither does this process where its own address is listed:
    /// none of them is waited for longer than a second.
    pub async fn first(&self) -> Option<(String, Bytes)> {
        let urls = join_all(self.spec.peers.iter().map(|address| address.resolve())).await;
        let urls = urls.into_iter().flat_map(Result::unwrap_or_default);
        let mut opened: FuturesUnordered<_> = urls.map(|url| self.open(url)).collect();
        while let Some((peer, reply)) = opened.next().await {
            let copied = match reply {
                Ok(reply) => self.read(reply).await,
                Err(error) => Err(error),
            };
            match copied {
                Ok(bytes) => return Some((peer, bytes)),
                Err(error) => tracing::debug!(peer, error, "no index to copy"),
            }
        }
        None
    }

    async fn open(&self, url: WorkerUrl) -> (String, Result<StreamedReply, String>) {
        let url = match &self.spec.trust {
            Some(trust) => url.with_trust(trust.clone()),
            None => url,
        };
        let opened = fetch::open(&url, SNAPSHOT, &self.spec.headers, PATIENCE).await;
        let reply = match opened {
            Ok(reply) if reply.status == StatusCode::OK => Ok(reply),
            Ok(reply) => Err(format!("status {}", reply.status)),
            Err(error) => Err(error.to_string()),
        };
        (url.to_string(), reply)
    }

    async fn read(&self, mut reply: StreamedReply) -> Result<Bytes, String> {
        let mut bytes = BytesMut::new();
        while let Some(piece) = reply.next().await.map_err(|error| error.to_string())? {
            if bytes.len() + piece.len() > self.limit {
                return Err(format!("more than {} bytes", self.limit));
            }
            bytes.extend_from_slice(&piece);
        }
        if bytes.is_empty() {
            return Err("it has no copy to give now".to_owned());
        }
        Ok(bytes.freeze())
    }
}
