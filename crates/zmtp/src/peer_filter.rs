//! Addresses from which peers may connect to a bound socket.

use std::{fmt, net::IpAddr, sync::Arc};

/// Decides by its address whether a peer is served. The default serves all.
#[derive(Clone, Default)]
pub struct PeerFilter(Option<Arc<PeerFilterFn>>);

type PeerFilterFn = dyn Fn(IpAddr) -> bool + Send + Sync;

impl PeerFilter {
    /// Serves the peers at addresses for which `admits` returns `true`; it must return at once.
    pub fn new(admits: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(admits)))
    }

    /// Returns whether a peer at `address` is served. A peer without an address, behind a unix
    /// socket, always is: permissions of the file decide about it.
    pub fn admits(&self, address: Option<IpAddr>) -> bool {
        match (&self.0, address) {
            (Some(admits), Some(address)) => admits(address.to_canonical()),
            (None, _) | (_, None) => true,
        }
    }
}

impl fmt::Debug for PeerFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerFilter")
    }
}

/// A filter is equal to its clones only.
impl PartialEq for PeerFilter {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        }
    }
}

impl Eq for PeerFilter {}
