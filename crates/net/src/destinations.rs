//! Restricts the addresses to connect to where an outside party chose the host.
//!
//! A caller that may register an endpoint makes this process connect to it. Addresses that serve
//! secrets to any process on the machine, or that are no single host at all, are forbidden. Engines
//! do live on loopback and in private networks, so those are allowed.
//!
//! **Invariant**: an address is checked on every connection, whenever its name was resolved, and
//! the checked address is the one connected to: a name cannot lead elsewhere the second time.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use settings::AddressRange;
use tokio::net::{TcpStream, UnixStream};

use crate::{Address, Stream, connect::within, memory, resolver};

/// The set of permitted addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Destinations {
    /// All addresses: the operator wrote them down.
    #[default]
    Any,
    /// Possible addresses of engines: not link-local (the metadata services of clouds live there),
    /// not multicast, broadcast or unspecified, not a metadata address elsewhere, nor any of these
    /// inside an IPv6 address that is mapped, translated or tunnelled. Unix sockets are permitted.
    Engines,
    /// Those of `Engines` that are in one of these networks. Unix sockets are permitted.
    EnginesIn(Arc<[AddressRange]>),
}

/// A forbidden address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{address} is {kind}: no engine may be reached there, use the address of the engine's own machine"
)]
pub struct ForbiddenAddress {
    /// The address.
    pub address: IpAddr,
    /// The kind of the address.
    pub kind: &'static str,
}

/// Metadata services outside the link-local range.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];
const METADATA_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

impl Destinations {
    /// Returns the possible addresses of engines; if `networks` are given, only those in them.
    pub fn engines(networks: &[AddressRange]) -> Self {
        if networks.is_empty() {
            Self::Engines
        } else {
            Self::EnginesIn(networks.into())
        }
    }

    /// Checks whether `address` may be connected to.
    ///
    /// ```
    /// use net::Destinations;
    ///
    /// assert!(Destinations::Engines.check("10.0.0.5".parse().unwrap()).is_ok());
    /// assert!(Destinations::Engines.check("169.254.169.254".parse().unwrap()).is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// The address is forbidden; the error names the reason.
    pub fn check(&self, address: IpAddr) -> Result<(), ForbiddenAddress> {
        let kind = match self {
            Self::Any => None,
            Self::Engines => forbidden(address),
            Self::EnginesIn(networks) => forbidden(address).or_else(|| {
                let is_in = networks.iter().any(|network| network.contains(address));
                (!is_in).then_some("outside discovery.allowed_networks")
            }),
        };
        kind.map_or(Ok(()), |kind| Err(ForbiddenAddress { address, kind }))
    }

    /// Checks an address whose host may be a name: a name passes here, and its addresses are
    /// checked at each connect.
    ///
    /// # Errors
    ///
    /// The host is a forbidden address.
    pub fn check_host(&self, address: &Address) -> Result<(), ForbiddenAddress> {
        match address {
            Address::Tcp { host, .. } => host.parse().map_or(Ok(()), |ip| self.check(ip)),
            Address::Unix(_) => Ok(()),
        }
    }

    /// Connects like [`crate::connect`], but tries only the permitted ones of a name's addresses.
    ///
    /// # Errors
    ///
    /// As [`crate::connect`], and [`io::ErrorKind::PermissionDenied`] around a
    /// [`ForbiddenAddress`].
    pub async fn connect(&self, address: &Address, timeout: Duration) -> io::Result<Stream> {
        if runtime::is_simulated() {
            return memory::connect(address).map(Stream::Memory);
        }
        let opening = async {
            match address {
                Address::Tcp { host, port } => self.open(host, *port).await,
                Address::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await?)),
            }
        };
        within(address, timeout, opening).await
    }

    async fn open(&self, host: &str, port: u16) -> io::Result<Stream> {
        let mut last = io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            format!("{host} has no address"),
        );
        for ip in resolver::resolve(host).await?.iter() {
            if let Err(forbidden) = self.check(*ip) {
                last = io::Error::new(io::ErrorKind::PermissionDenied, forbidden);
                continue;
            }
            match TcpStream::connect(SocketAddr::new(*ip, port)).await {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Stream::Tcp(stream));
                }
                Err(error) => last = error,
            }
        }
        resolver::mark_stale(host);
        Err(last)
    }
}

fn forbidden(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) => forbidden_v4(v4),
        IpAddr::V6(v6) => forbidden_v6(v6),
    }
}

fn forbidden_v4(address: Ipv4Addr) -> Option<&'static str> {
    if address.is_link_local() || METADATA_V4.contains(&address) {
        Some("link-local or a cloud's metadata service")
    } else if address.is_multicast() || address.is_broadcast() {
        Some("not a single host's address")
    } else if address.octets()[0] == 0 {
        Some("no address to connect to")
    } else {
        None
    }
}

fn forbidden_v6(address: Ipv6Addr) -> Option<&'static str> {
    if address.is_unicast_link_local() || METADATA_V6.contains(&address) {
        Some("link-local or a cloud's metadata service")
    } else if address.is_multicast() {
        Some("not a single host's address")
    } else if address.is_unspecified() {
        Some("no address to connect to")
    } else if address.segments()[0] & 0xffc0 == 0xfec0 {
        Some("of the abolished site-local range")
    } else if address.is_loopback() {
        None
    } else {
        inner_v4(address).and_then(forbidden_v4)
    }
}

/// Returns whether an address is one of the public internet: permitted for engines, and neither
/// loopback nor private nor reserved.
pub(crate) fn is_public(address: IpAddr) -> bool {
    let is_of_a_host = forbidden(address).is_none();
    is_of_a_host
        && match address {
            IpAddr::V4(v4) => is_public_v4(v4),
            IpAddr::V6(v6) => is_public_v6(v6),
        }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let is_reserved = match address.octets() {
        // Of providers (RFC 6598), of protocols (RFC 6890), of benchmarks (RFC 2544).
        [100, second, ..] => second & 0xc0 == 64,
        [192, 0, 0, _] => true,
        [198, second, ..] => second & 0xfe == 18,
        [first, ..] => first >= 240,
    };
    !(is_reserved || address.is_loopback() || address.is_private() || address.is_documentation())
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let is_reserved = match address.segments() {
        // Private (RFC 4193), of examples (RFC 3849).
        [first, ..] if first & 0xfe00 == 0xfc00 => true,
        [0x2001, 0xdb8, ..] => true,
        // Teredo and a gateway of the own network lead to addresses that stand in them in forms of
        // their own (RFC 4380, RFC 8215).
        [0x2001, 0, ..] | [0x64, 0xff9b, 1, ..] => true,
        _ => false,
    };
    !(is_reserved || address.is_loopback()) && inner_v4(address).is_none_or(is_public_v4)
}

/// Returns the IPv4 address that an IPv6 address leads to: mapped or compatible, translated by
/// a gateway (64:ff9b::/96, and 64:ff9b:1::/48 with a prefix of 96 bits or of 48), or tunnelled
/// (2002::/16).
fn inner_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let last = |[.., a, b, c, d]: [u8; 16]| Some(Ipv4Addr::new(a, b, c, d));
    match address.octets() {
        bytes @ ([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..]
        | [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ..]
        | [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, ..]) => last(bytes),
        // A prefix of 48 bits leaves nothing behind the address (RFC 6052, 2.2).
        [0, 0x64, 0xff, 0x9b, 0, 1, a, b, 0, c, d, 0, 0, 0, 0, 0] => {
            Some(Ipv4Addr::new(a, b, c, d))
        }
        bytes @ [0, 0x64, 0xff, 0x9b, 0, 1, ..] => last(bytes),
        [0x20, 0x02, a, b, c, d, ..] => Some(Ipv4Addr::new(a, b, c, d)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn allowed(address: &str) -> bool {
        Destinations::Engines
            .check(address.parse().unwrap())
            .is_ok()
    }

    #[test]
    #[contract("S39")]
    fn engines_are_on_loopback_in_private_networks_and_elsewhere() {
        for address in [
            "127.0.0.1",
            "10.0.0.5",
            "172.16.3.4",
            "192.168.1.1",
            "100.64.0.1",
            "8.8.8.8",
            "::1",
            "fd00::5",
            "64:ff9b::10.0.0.5",
            "64:ff9b:1::10.0.0.5",
            "64:ff9b:1:1::10.0.0.5",
            "64:ff9b:1:a00:0:500::",
            "2002:a00:5::1",
            "168.63.129.17",
            "fd20:ce::253",
        ] {
            assert!(allowed(address), "{address}");
        }
        assert!(allowed("2001:db8::1") && allowed("::ffff:10.0.0.5"));
    }

    #[test]
    #[contract("S39")]
    fn metadata_services_and_non_unicast_addresses_are_refused_in_any_spelling() {
        for address in [
            "169.254.169.254",
            "169.254.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "fe80::1",
            "fd00:ec2::254",
            "100.100.100.200",
            "192.0.0.192",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "::ffff:0.0.0.0",
            "168.63.129.16",
            "fd20:ce::254",
            "fd00:ec2::23",
            "64:ff9b:1::a9fe:a9fe",
            "64:ff9b:1:1::a9fe:a9fe",
            "64:ff9b:1:a9fe:a9:fe00::",
            "64:ff9b:1::",
            "2002:a9fe:a9fe::1",
            "::a9fe:a9fe",
            "::ffff:a83f:8110",
            "fec0::1",
        ] {
            assert!(!allowed(address), "{address}");
            assert!(Destinations::Any.check(address.parse().unwrap()).is_ok());
        }
    }

    #[test]
    fn a_host_that_is_an_address_is_refused_before_anything_is_resolved() {
        let at = |host: &str| Address::Tcp {
            host: host.to_owned(),
            port: 5557,
        };
        assert!(
            Destinations::Engines
                .check_host(&at("169.254.169.254"))
                .is_err()
        );
        assert!(
            Destinations::Engines
                .check_host(&at("engine-0.pool"))
                .is_ok()
        );
        assert!(
            Destinations::Engines
                .check_host(&Address::Unix("/run/kv.sock".into()))
                .is_ok()
        );
    }

    #[tokio::test]
    #[contract("S38", "S40")]
    async fn an_unusual_spelling_is_checked_by_its_resolved_address() {
        // The resolver reads this number as 169.254.169.254.
        let address = Address::Tcp {
            host: "2852039166".to_owned(),
            port: 80,
        };
        let error = Destinations::Engines
            .connect(&address, Duration::from_secs(5))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        assert!(
            error
                .to_string()
                .starts_with("169.254.169.254 is link-local"),
            "{error}"
        );
    }

    fn networks(list: &[&str]) -> Destinations {
        let list: Vec<_> = list.iter().map(|range| range.parse().unwrap()).collect();
        Destinations::engines(&list)
    }

    #[test]
    #[contract("S39")]
    fn networks_restrict_the_addresses_and_permit_none_that_is_no_engine_s() {
        assert_eq!(networks(&[]), Destinations::Engines);
        for (list, address, permitted) in [
            (&["10.0.0.0/8"][..], "10.1.2.3", true),
            (&["10.0.0.0/8"], "11.1.2.3", false),
            (&["10.0.0.0/8"], "127.0.0.1", false),
            (&["10.0.0.0/8"], "::1", false),
            (&["10.0.0.0/8", "fd00::/8"], "fd00::5", true),
            (&["10.0.0.0/8"], "::ffff:10.1.2.3", true),
            // An address that leads to 10.1.2.3 through a gateway is no address of that network.
            (&["10.0.0.0/8"], "64:ff9b::10.1.2.3", false),
            (&["0.0.0.0/0", "::/0"], "8.8.8.8", true),
            (&["0.0.0.0/0", "::/0"], "169.254.169.254", false),
            (&["0.0.0.0/0", "::/0"], "::ffff:169.254.169.254", false),
            (&["169.254.0.0/16"], "169.254.169.254", false),
        ] {
            let checked = networks(list).check(address.parse().unwrap());
            assert_eq!(checked.is_ok(), permitted, "{list:?} {address}");
        }
    }

    #[tokio::test]
    #[contract("S39", "S40")]
    async fn a_name_is_connected_to_at_those_of_its_addresses_that_are_in_the_networks() {
        let listener = crate::listen(&crate::ListenAddr::tcp("127.0.0.1", 0))
            .await
            .unwrap();
        let address = Address::Tcp {
            host: "localhost".to_owned(),
            port: listener.address().port().unwrap(),
        };
        let patience = Duration::from_secs(5);
        let outside = networks(&["10.0.0.0/8"]);
        assert!(outside.check_host(&address).is_ok(), "a name is not judged");
        let error = outside.connect(&address, patience).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        assert!(
            error
                .to_string()
                .contains("is outside discovery.allowed_networks"),
            "{error}"
        );
        let inside = networks(&["127.0.0.0/8"]);
        inside.connect(&address, patience).await.unwrap();
    }

    #[tokio::test]
    async fn a_permitted_name_connects() {
        let listener = crate::listen(&crate::ListenAddr::tcp("127.0.0.1", 0))
            .await
            .unwrap();
        let port = listener.address().port().unwrap();
        let address = Address::Tcp {
            host: "localhost".to_owned(),
            port,
        };
        Destinations::Engines
            .connect(&address, Duration::from_secs(5))
            .await
            .unwrap();
    }
}
