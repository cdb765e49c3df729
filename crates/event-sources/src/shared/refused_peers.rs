//! Warnings about peers whose events are not accepted.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use kv_blocks::Moment;

/// Time after which an address is logged again.
const REPEAT: Duration = Duration::from_secs(3600);
/// Most addresses that are logged in that time: anybody who reaches the port can be refused.
const MAX_ADDRESSES: usize = 64;

/// The addresses that were logged within the last hour.
#[derive(Debug, Default)]
pub(super) struct RefusedPeers(BTreeMap<IpAddr, Moment>);

impl RefusedPeers {
    /// Returns whether the refusal of this address should be logged now: once for each address.
    fn is_new(&mut self, address: IpAddr, now: Moment) -> bool {
        self.0.retain(|_, logged| now.since(*logged) < REPEAT);
        if self.0.contains_key(&address) || self.0.len() >= MAX_ADDRESSES {
            return false;
        }
        self.0.insert(address, now);
        true
    }

    /// Logs the refusal with the setting that would end it.
    pub(super) fn warn(&mut self, endpoint: &zmtp::Endpoint, address: IpAddr, now: Moment) {
        let address = address.to_canonical();
        if self.is_new(address, now) {
            tracing::warn!(
                %endpoint, %address,
                "a publisher of events was refused: no worker that publishes here is at its address; if it is an engine, add {}",
                setting(address)
            );
        }
    }
}

/// Returns the setting that lets a publisher at this address in.
pub(super) fn setting(address: IpAddr) -> String {
    format!("kv_events: {{allowed_peers: [\"{address}\"]}}")
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn after(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    #[test]
    #[contract("S79")]
    fn an_address_is_logged_once_an_hour() {
        let mut refused = RefusedPeers::default();
        let logged = [
            ("10.0.0.7", 0, true),
            ("10.0.0.7", 1, false),
            ("10.0.0.8", 2, true),
            ("10.0.0.7", 3599, false),
            ("10.0.0.7", 3600, true),
            ("10.0.0.8", 3601, false),
        ];
        for (address, seconds, is_logged) in logged {
            assert_eq!(
                refused.is_new(address.parse().unwrap(), after(seconds)),
                is_logged,
                "{address} after {seconds} s"
            );
        }
    }

    #[test]
    #[contract("S79")]
    fn a_flood_of_addresses_logs_a_bounded_number_of_lines() {
        let mut refused = RefusedPeers::default();
        let flood = |refused: &mut RefusedPeers, seconds| {
            (0..100_000_u32)
                .filter(|n| refused.is_new(IpAddr::V4((*n).into()), after(seconds)))
                .count()
        };
        assert_eq!(flood(&mut refused, 0), MAX_ADDRESSES);
        assert_eq!(flood(&mut refused, 3599), 0);
        assert_eq!(flood(&mut refused, 3600), MAX_ADDRESSES);
    }
}
