//! Addresses from which a worker's engine may connect to a bound event socket.

use std::net::IpAddr;

use config::AddressRange;
use event_sources::PeerFilter;
use net::WorkerUrl;

/// Returns the filter of a worker's publisher: it is at an address of the worker's host, as
/// requests to it use, or in a range of `allowed`.
pub(super) fn of(url: &WorkerUrl, allowed: &[AddressRange]) -> PeerFilter {
    let (url, allowed) = (url.clone(), allowed.to_vec());
    PeerFilter::new(move |address| {
        allowed.iter().any(|range| range.contains(address)) || is_of_worker(&url, address)
    })
}

fn is_of_worker(url: &WorkerUrl, address: IpAddr) -> bool {
    if url.is_loopback() {
        return address.is_loopback();
    }
    url.host().is_some_and(|host| {
        let own = net::cached_addresses(host);
        own.iter().any(|own| own.to_canonical() == address)
    })
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

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
