//! Check of the NATS server that replicas share.

use config::Settings;

use super::Finding;
use crate::observe::{BusFacts, BusFailure, BusObservation};

/// First release with what replicas use of JetStream.
const FIRST_RELEASE: (u32, u32) = (2, 9);
/// Bytes of the largest message that replicas cannot do without: the changes of load, which are
/// sent from 256 KiB on.
const LEAST_PAYLOAD: usize = 512 << 10;
/// The server's default. Batches of events may be as large.
const USUAL_PAYLOAD: usize = 1 << 20;
/// File storage that a log with two snapshots should find, bytes.
const LEAST_STORAGE: u64 = 64 << 20;

pub(super) fn check(settings: &Settings, seen: &Result<BusObservation, String>) -> Finding {
    let seen = match seen {
        Ok(seen) => seen,
        Err(reason) => {
            let fix = "correct replicas.nats.url or replicas.nats.credentials_file";
            return Finding::fail(reason.clone(), fix);
        }
    };
    match &seen.facts {
        Err(BusFailure::Refused(reason)) => {
            let fix = "set replicas.nats.credentials_file to a token or a .creds file that the server accepts";
            Finding::fail(reason.clone(), fix)
        }
        Err(BusFailure::Unreachable(reason)) => {
            let fix = "start nats-server -js there, or set replicas.nats.url";
            Finding::fail(reason.clone(), fix)
        }
        Ok(facts) => release(facts)
            .or_else(|| permissions(facts))
            .or_else(|| jetstream(facts))
            .or_else(|| payload(facts))
            .or_else(|| storage(settings, facts))
            .unwrap_or_else(|| {
                let version = &facts.version;
                let message = format!("{}: nats-server {version} with JetStream", seen.server);
                Finding::ok(message).found(version)
            }),
    }
}

fn release(facts: &BusFacts) -> Option<Finding> {
    let mut parts = facts.version.split('.').map(|part| part.parse().ok());
    let (major, minor): (u32, u32) = (parts.next()??, parts.next()??);
    if (major, minor) >= FIRST_RELEASE {
        return None;
    }
    let message = format!(
        "nats-server {} lacks what replicas use of JetStream",
        facts.version
    );
    let fix = "use nats-server 2.9 or newer";
    let finding = Finding::fail(message, fix).found(&facts.version);
    Some(finding.expected("2.9 or newer"))
}

fn permissions(facts: &BusFacts) -> Option<Finding> {
    if facts.denied.is_empty() {
        return None;
    }
    let denied = facts.denied.join(", ");
    let message = format!("the server does not let replicas use {denied}");
    let fix = format!("let this user publish and subscribe to {denied}");
    Some(Finding::fail(message, fix))
}

fn jetstream(facts: &BusFacts) -> Option<Finding> {
    let error = facts.account.as_ref().err()?;
    let fix = if error.is_not_enabled() {
        "start nats-server with -js, and enable JetStream for the account"
    } else {
        "look into the log of nats-server"
    };
    Some(Finding::fail(error.to_string(), fix))
}

fn payload(facts: &BusFacts) -> Option<Finding> {
    let (found, least) = (facts.max_payload, LEAST_PAYLOAD);
    if found >= USUAL_PAYLOAD {
        return None;
    }
    let fix = "set max_payload: 1MB or more in the configuration of nats-server";
    let finding = if found < least {
        let message = format!("max_payload is {found}: load and snapshots do not fit");
        Finding::fail(message, fix).expected(format!("at least {least}"))
    } else {
        let message = format!("max_payload is {found}: larger batches of events are not shared");
        Finding::warn(message, fix).expected(USUAL_PAYLOAD)
    };
    Some(finding.found(found))
}

fn storage(settings: &Settings, facts: &BusFacts) -> Option<Finding> {
    let account = facts.account.as_ref().ok()?;
    let most = u64::try_from(account.limits.max_storage).ok()?;
    let left = most.saturating_sub(account.storage);
    if left >= LEAST_STORAGE {
        return None;
    }
    let retention = settings.replicas.nats.retention;
    let message = format!(
        "the account may store {left} bytes more: the events of {retention:?} and two snapshots need more"
    );
    let fix = "raise max_file of the account, or lower replicas.nats.retention";
    let finding = Finding::warn(message, fix).found(left);
    Some(finding.expected(format!("at least {LEAST_STORAGE}")))
}

#[cfg(test)]
mod tests {
    use api::CheckStatus;
    use nats_client::{AccountInfo, AccountLimits};

    use super::{super::fixture, *};

    fn facts() -> BusFacts {
        BusFacts {
            version: "2.9.10".to_owned(),
            max_payload: USUAL_PAYLOAD,
            denied: Vec::new(),
            account: Ok(AccountInfo {
                storage: 0,
                limits: AccountLimits::default(),
            }),
            replicas: Ok(Vec::new()),
        }
    }

    fn status(facts: BusFacts) -> CheckStatus {
        let seen = BusObservation {
            server: "nats://bus:4222".to_owned(),
            facts: Ok(facts),
        };
        check(&fixture::settings(""), &Ok(seen)).status
    }

    #[test]
    fn releases_before_2_9_are_too_old() {
        for (version, expected) in [
            ("2.8.4", CheckStatus::Fail),
            ("1.4.1", CheckStatus::Fail),
            ("2.9.0", CheckStatus::Ok),
            ("2.10.0-beta.1", CheckStatus::Ok),
            ("3.0.0", CheckStatus::Ok),
            ("unknown", CheckStatus::Ok),
        ] {
            let version = version.to_owned();
            assert_eq!(status(BusFacts { version, ..facts() }), expected);
        }
    }

    #[test]
    fn a_small_payload_warns_and_a_smaller_one_fails() {
        for (max_payload, expected) in [
            (USUAL_PAYLOAD, CheckStatus::Ok),
            (USUAL_PAYLOAD - 1, CheckStatus::Warn),
            (LEAST_PAYLOAD, CheckStatus::Warn),
            (LEAST_PAYLOAD - 1, CheckStatus::Fail),
        ] {
            let facts = BusFacts {
                max_payload,
                ..facts()
            };
            assert_eq!(status(facts), expected, "{max_payload}");
        }
    }

    #[test]
    fn little_storage_that_is_left_warns() {
        let mib = |count: u64| count << 20;
        for (storage, max_storage, expected) in [
            (mib(10_000), -1, CheckStatus::Ok),
            (mib(36), 100 << 20, CheckStatus::Ok),
            (mib(37), 100 << 20, CheckStatus::Warn),
            (mib(101), 100 << 20, CheckStatus::Warn),
        ] {
            let account = Ok(AccountInfo {
                storage,
                limits: AccountLimits { max_storage },
            });
            let found = status(BusFacts { account, ..facts() });
            assert_eq!(found, expected, "{storage} of {max_storage}");
        }
    }
}
