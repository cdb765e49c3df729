//! Whether an address belongs to this machine.

use std::{
    fs,
    net::{IpAddr, UdpSocket},
};

/// Returns whether `address` is one of this machine's own, in its network namespace: a loopback
/// address, or that of an interface. No packet is sent.
///
/// ```
/// assert!(net::is_own_address("127.0.0.1".parse().unwrap()));
/// assert!(!net::is_own_address("203.0.113.7".parse().unwrap()));
/// ```
pub fn is_own_address(address: IpAddr) -> bool {
    // Only an own address can be bound, unless the system allows others for load balancers; there
    // only loopback addresses are known to be own.
    address.is_loopback()
        || (is_one_host(address)
            && UdpSocket::bind((address, 0)).is_ok()
            && !allows_foreign_addresses(address))
}

/// Returns whether the address is that of one host: others can be bound as well.
fn is_one_host(address: IpAddr) -> bool {
    !address.is_unspecified()
        && !address.is_multicast()
        && !matches!(address, IpAddr::V4(v4) if v4.is_broadcast())
}

fn allows_foreign_addresses(address: IpAddr) -> bool {
    let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    fs::read_to_string(format!("/proc/sys/net/{family}/ip_nonlocal_bind"))
        .is_ok_and(|value| value.trim() != "0")
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("S79")]
    fn loopback_addresses_are_own_and_those_of_other_networks_are_not() {
        for address in ["127.0.0.1", "127.8.9.10", "::1"] {
            assert!(is_own_address(address.parse().unwrap()), "{address}");
        }
        for address in [
            "203.0.113.7",
            "2001:db8::7",
            "0.0.0.0",
            "::",
            "255.255.255.255",
            "224.0.0.1",
            "ff02::1",
        ] {
            assert!(!is_own_address(address.parse().unwrap()), "{address}");
        }
    }

    /// The address that packets to other networks would leave from, if there is a route.
    #[test]
    #[contract("S79")]
    fn an_address_of_an_interface_is_own() {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let address = socket
            .connect("203.0.113.7:9")
            .and_then(|()| socket.local_addr())
            .map_or(IpAddr::from([127, 0, 0, 1]), |address| address.ip());
        assert!(is_own_address(address), "{address}");
    }
}
