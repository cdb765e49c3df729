//! Addresses from which a worker's engine may connect to a bound event socket.

use std::net::IpAddr;

use config::AddressRange;
use event_sources::PeerFilter;
use net::WorkerUrl;

/// Returns the filter of a worker's publisher: it is at an address of the worker's host, as
/// requests to it use, at any own address of this machine if the worker is on it, or in a range of
/// `allowed`.
pub(super) fn of(url: &WorkerUrl, allowed: &[AddressRange]) -> PeerFilter {
    let (url, allowed) = (url.clone(), allowed.to_vec());
    PeerFilter::new(move |address| {
        allowed.iter().any(|range| range.contains(address))
            || is_of_worker(&url, address, net::is_own_address)
    })
}

/// `is_own` tells whether an address is this machine's. An engine beside the router may connect
/// from another of the machine's addresses than its URL names.
fn is_of_worker(url: &WorkerUrl, address: IpAddr, is_own: impl Fn(IpAddr) -> bool) -> bool {
    let hosts = url.host().map(net::cached_addresses).unwrap_or_default();
    let mut hosts = hosts.iter().map(IpAddr::to_canonical);
    if is_own(address) {
        url.is_loopback() || hosts.any(is_own)
    } else {
        hosts.any(|host| host == address)
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    /// The table's machine has the address 10.0.0.1 beside those of loopback.
    fn is_own(address: IpAddr) -> bool {
        address.is_loopback() || address == IpAddr::from([10, 0, 0, 1])
    }

    #[test]
    #[contract("S79")]
    fn an_engine_on_this_machine_may_connect_from_any_of_its_addresses() {
        for (url, address, admitted) in [
            ("http://10.0.0.1:8000", "10.0.0.1", true),
            ("http://10.0.0.1:8000", "127.0.0.1", true),
            ("http://10.0.0.1:8000", "::1", true),
            ("http://10.0.0.1:8000", "10.0.0.5", false),
            ("http://[::ffff:10.0.0.1]:8000", "127.0.0.1", true),
            ("http://127.0.0.1:8000", "10.0.0.1", true),
            ("http://localhost:8000", "10.0.0.1", true),
            ("http://127.0.0.1:8000", "10.0.0.5", false),
            ("unix:///run/engine.sock", "10.0.0.1", true),
            // A worker elsewhere is none of this machine's processes.
            ("http://10.0.0.5:8000", "10.0.0.1", false),
            ("http://10.0.0.5:8000", "127.0.0.1", false),
            ("http://10.0.0.5:8000", "10.0.0.5", true),
        ] {
            let url: WorkerUrl = url.parse().unwrap();
            let admits = is_of_worker(&url, address.parse().unwrap(), is_own);
            assert_eq!(admits, admitted, "{url} {address}");
        }
    }

    #[test]
    #[contract("S79")]
    fn a_publisher_is_at_its_worker_s_address_or_in_an_allowed_range() {
        for (url, allowed, address, admitted) in [
            ("http://10.0.0.5:8000", "", "10.0.0.5", true),
            ("http://10.0.0.5:8000", "", "::ffff:10.0.0.5", true),
            ("http://10.0.0.5:8000", "", "10.0.0.6", false),
            ("http://10.0.0.5:8000", "", "127.0.0.1", false),
            ("http://10.0.0.5:8000", "10.0.0.6", "10.0.0.6", true),
            ("http://10.0.0.5:8000", "10.244.0.0/16", "10.244.3.9", true),
            ("http://10.0.0.5:8000", "10.244.0.0/16", "10.245.3.9", false),
            ("http://127.0.0.1:8000", "", "127.0.0.2", true),
            ("http://localhost:8000", "", "::1", true),
            ("unix:///run/engine.sock", "", "127.0.0.1", true),
            ("unix:///run/engine.sock", "", "10.0.0.5", false),
            ("http://[fd00::5]:8000", "", "fd00::5", true),
            // Nothing has connected to this name, so its addresses are unknown.
            ("http://never-resolved.test:8000", "", "10.0.0.5", false),
        ] {
            let allowed: Vec<_> = allowed
                .split_terminator(',')
                .map(|range| range.parse().unwrap())
                .collect();
            let filter = of(&url.parse().unwrap(), &allowed);
            let admits = filter.admits(Some(address.parse().unwrap()));
            assert_eq!(admits, admitted, "{url} {address}");
        }
    }
}
