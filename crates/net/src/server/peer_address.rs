//! The client address by which shares are counted.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The address of a connection's peer, as shares are counted.
///
/// An IPv6 host usually owns a whole /64 network and may change its address within it at will, so
/// that is one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PeerAddress {
    /// This machine, over a unix socket, or a connection that is already closed.
    Local,
    /// An IPv4 address, also one that is mapped into IPv6.
    V4(Ipv4Addr),
    /// The first 64 bits of an IPv6 address.
    V6(u64),
}

impl PeerAddress {
    /// Returns the address of a connection's peer ([`crate::Stream::peer_addr`]).
    pub fn of(address: Option<SocketAddr>) -> Self {
        match address.map(|address| address.ip().to_canonical()) {
            None => Self::Local,
            Some(IpAddr::V4(address)) => Self::V4(address),
            Some(IpAddr::V6(address)) => Self::V6((address.to_bits() >> 64) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(address: &str) -> PeerAddress {
        PeerAddress::of(Some(address.parse().unwrap()))
    }

    #[test]
    fn a_network_of_one_host_counts_as_one_address() {
        assert_eq!(of("[2001:db8:1:2::1]:80"), of("[2001:db8:1:2:ffff::9]:81"));
        assert_ne!(of("[2001:db8:1:2::1]:80"), of("[2001:db8:1:3::1]:80"));
        assert_eq!(of("[::ffff:10.0.0.1]:80"), of("10.0.0.1:9"));
        assert_ne!(of("10.0.0.2:80"), of("10.0.0.1:80"));
    }
}
