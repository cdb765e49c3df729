//! Check of the other replicas: whether they can be read, and share with this one.

use std::collections::BTreeMap;

use replicas::{PeerFailure, PeerProbe, ReplicaMismatch, SeenReplica};

use super::Finding;

/// Checks the answers of the peers.
pub(super) fn peers(probes: &[PeerProbe]) -> Finding {
    let mut silent = Vec::new();
    let mut seen = Vec::new();
    for PeerProbe { peer, answer } in probes {
        match answer {
            Ok(replica) => seen.push(replica.clone()),
            Err(PeerFailure::Silent(reason)) => silent.push((peer, reason)),
            Err(PeerFailure::Token) => {
                let message = format!("{peer} wants another admin token");
                return Finding::fail(message, "give all replicas the same admin.token_file");
            }
            Err(PeerFailure::NoFeed) => {
                let message = format!("{peer} shares nothing with peers");
                let fix = format!(
                    "set replicas.mode: peers in the router at {peer}, or leave it out of replicas.peers"
                );
                return Finding::fail(message, fix);
            }
            Err(PeerFailure::Status(status)) => {
                let message = format!("{peer} answers with status {status}");
                let fix = format!("write the admin listener of a router in place of {peer}");
                return Finding::fail(message, fix);
            }
        }
    }
    let found = replicas(&seen);
    match silent.first() {
        Some((peer, reason)) if found.status == api::CheckStatus::Ok => {
            let fix = format!("start the router at {peer}, or correct replicas.peers");
            Finding::warn((*reason).clone(), fix)
        }
        _ => found,
    }
}

/// Checks the presences of replicas.
pub(super) fn replicas(seen: &[SeenReplica]) -> Finding {
    let mut addresses: BTreeMap<&str, &str> = BTreeMap::new();
    for SeenReplica { id, address, .. } in seen {
        let first = addresses.entry(id).or_insert(address);
        if first != address {
            let message = format!("the processes at {first} and {address} have the same id {id}");
            return Finding::fail(message, format!("restart the router at {address}"));
        }
    }
    let with = |mismatch| {
        let mut all = seen.iter();
        all.find(|replica| replica.mismatch == Some(mismatch))
    };
    if let Some(SeenReplica { address, .. }) = with(ReplicaMismatch::Settings) {
        let message =
            format!("the router at {address} has other settings, so they refuse each other");
        let fix = "make replicas.namespace, replicas.component, kv_events.block_hash and kv_events.block_hash_seed equal in all replicas";
        return Finding::fail(message, fix);
    }
    if let Some(SeenReplica { address, .. }) = with(ReplicaMismatch::Version) {
        let message = format!("the router at {address} has another version of the messages");
        return Finding::warn(
            message,
            "finish the upgrade: each version shares with its own",
        );
    }
    let count = addresses.len();
    Finding::ok(match count {
        0 => "no replica runs yet".to_owned(),
        1 => "one replica runs".to_owned(),
        _ => format!("{count} replicas run"),
    })
    .found(count)
}

#[cfg(test)]
mod tests {
    use api::CheckStatus;

    use super::*;

    fn replica(id: &str, address: &str, mismatch: Option<ReplicaMismatch>) -> SeenReplica {
        SeenReplica {
            id: id.to_owned(),
            address: address.to_owned(),
            mismatch,
        }
    }

    #[test]
    fn two_processes_with_one_id_are_found_and_one_under_two_names_is_not() {
        let seen = |address| [replica("1", "http://a", None), replica("1", address, None)];
        assert_eq!(replicas(&seen("http://a")).status, CheckStatus::Ok);
        assert_eq!(replicas(&seen("http://b")).status, CheckStatus::Fail);
    }

    #[test]
    fn a_replica_with_other_settings_fails_and_one_of_another_version_warns() {
        for (mismatch, expected) in [
            (None, CheckStatus::Ok),
            (Some(ReplicaMismatch::Settings), CheckStatus::Fail),
            (Some(ReplicaMismatch::Version), CheckStatus::Warn),
        ] {
            let seen = [
                replica("1", "http://a", None),
                replica("2", "http://b", mismatch),
            ];
            assert_eq!(replicas(&seen).status, expected, "{mismatch:?}");
        }
    }

    #[test]
    fn a_silent_peer_warns_unless_a_running_one_is_wrong() {
        let silent = || PeerProbe {
            peer: "http://a".to_owned(),
            answer: Err(PeerFailure::Silent("connection refused".to_owned())),
        };
        let running = |mismatch| PeerProbe {
            peer: "http://b".to_owned(),
            answer: Ok(replica("2", "http://b", mismatch)),
        };
        let settings = Some(ReplicaMismatch::Settings);
        assert_eq!(peers(&[silent(), running(None)]).status, CheckStatus::Warn);
        assert_eq!(
            peers(&[silent(), running(settings)]).status,
            CheckStatus::Fail
        );
    }
}
