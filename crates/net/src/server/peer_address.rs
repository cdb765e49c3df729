//! The client address by which shares are counted.

use std::net::{IpAddr, Ipv4Addr};

use crate::Stream;

/// The address of a connection's peer, as shares are counted.
///
/// An IPv6 host usually owns a whole /64 network and may change its address within it at will, so
/// that is one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PeerAddress {
    /// This machine, over a unix socket.
    Local,
    /// An IPv4 address, also one that is mapped into IPv6.
    V4(Ipv4Addr),
    /// The first 64 bits of an IPv6 address.
    V6(u64),
}

impl PeerAddress {
    /// Returns the address of a peer over TCP.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => Self::V6((address.to_bits() >> 64) as u64),
        }
    }

    /// Returns the address of a stream's peer; `None`: the peer is gone, and its address is not
    /// known.
    pub(super) fn of_stream(stream: &Stream) -> Option<Self> {
        match stream.peer_addr() {
            Some(address) => Some(Self::of(address.ip())),
            None => stream.is_unix().then_some(Self::Local),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(address: &str) -> PeerAddress {
        PeerAddress::of(address.parse().unwrap())
    }

    #[test]
    fn a_network_of_one_host_counts_as_one_address() {
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.2"), of("10.0.0.1"));
    }
}
