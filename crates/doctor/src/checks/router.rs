//! Checks of the router's own settings.

use api::CheckResult;
use std::time::Duration;

use config::{CacheBackend, ListenerTls, Settings};

#[cfg(feature = "nats")]
use super::bus;
use super::{Finding, Findings, replicas};
use crate::{Environment, observe::ReplicaObservation, report::ROUTER_CHECKS};

/// Runs the checks that involve no worker.
pub(crate) fn router(
    settings: &Settings,
    environment: &Environment,
    replicas: &ReplicaObservation,
) -> Vec<CheckResult> {
    let mut findings = Findings::default();
    let workers = settings.workers.len();
    findings.set(
        "config",
        Finding::ok(if workers == 1 {
            "one worker is configured".to_owned()
        } else {
            format!("{workers} workers are configured")
        })
        .found(workers),
    );
    findings.set("listener_exposed", listener_exposed(settings, environment));
    findings.set("admin_exposed", admin_exposed(settings));
    findings.set("key_in_arguments", key_in_arguments(environment));
    check_replicas(settings, replicas, &mut findings);
    findings.skip_rest(&["tenants_salted", "nats", "replicas"], "not configured");
    let cache = &settings.response_cache;
    let store = |is_used: bool| match is_used {
        true => "not looked at: /health of a running router says whether it is there",
        false => "not configured",
    };
    let in_redis =
        settings.kv_cache_index.redis.is_some() || (cache.enabled && cache.is_in_redis());
    findings.skip_rest(&["redis"], store(in_redis));
    findings.skip_rest(
        &["s3"],
        store(cache.enabled && cache.backend == CacheBackend::Tiered),
    );
    findings.set("limits_fd", limits_fd(settings, environment));
    findings.set("timers", timers(settings));
    findings.into_checks(&ROUTER_CHECKS)
}

#[cfg_attr(
    not(feature = "nats"),
    expect(unused_variables, reason = "only the bus has settings to check")
)]
fn check_replicas(settings: &Settings, seen: &ReplicaObservation, findings: &mut Findings) {
    match seen {
        ReplicaObservation::Alone => {}
        ReplicaObservation::Peers(Ok(probes)) => findings.set("replicas", replicas::peers(probes)),
        ReplicaObservation::Peers(Err(reason)) => {
            let fix = "correct replicas.peers, replicas.ca or admin.token_file";
            findings.set("replicas", Finding::fail(reason.clone(), fix));
        }
        #[cfg(feature = "nats")]
        ReplicaObservation::Bus(seen) => {
            let seen_replicas = seen.as_ref().ok().and_then(|seen| {
                let facts = seen.facts.as_ref().ok()?;
                facts.replicas.as_ref().ok()
            });
            findings.set("nats", bus::check(settings, seen));
            findings.set(
                "replicas",
                match seen_replicas {
                    Some(seen) => replicas::replicas(seen),
                    None => Finding::skip("the nats server cannot be used"),
                },
            );
        }
        #[cfg(not(feature = "nats"))]
        ReplicaObservation::NotBuilt => {
            let reason = "this program was built without NATS";
            findings.skip_rest(&["nats", "replicas"], reason);
        }
    }
}

fn listener_exposed(settings: &Settings, environment: &Environment) -> Finding {
    let server = &settings.server;
    let Some(open) = std::iter::once(&server.listen)
        .chain(&server.also_listen)
        .find(|address| !address.is_local())
    else {
        return Finding::ok("clients connect from this machine only").found(&server.listen);
    };
    if environment.keys.required {
        return Finding::ok("clients must send a key").found(open);
    }
    if knows_its_clients(server.tls.as_ref()) {
        return Finding::ok("clients must show a certificate").found(open);
    }
    let message = format!("{open} can be reached from other machines, and no key is required");
    let key = "require a key (WARMROUTE_API_KEY or --api-key-file FILE)";
    let fix = if *open == server.listen {
        format!("{key}, or set server.listen: \"127.0.0.1:8080\"")
    } else {
        format!("{key}, or leave {open} out of server.also_listen")
    };
    Finding::warn(message, fix).found(open)
}

fn admin_exposed(settings: &Settings) -> Finding {
    let admin = &settings.admin;
    // The listener of the metrics has the token and the certificate of the admin listener.
    let Some(open) = std::iter::once(&admin.listen)
        .chain(&settings.metrics.listen)
        .find(|address| !address.is_local())
    else {
        return Finding::ok("operators connect from this machine only").found(&admin.listen);
    };
    if admin.requires_token() {
        return Finding::ok("operators must send a token").found(open);
    }
    if knows_its_clients(admin.tls.as_ref()) {
        return Finding::ok("operators must show a certificate").found(open);
    }
    let message = format!("{open} can be reached from other machines, and no token is required");
    let loopback = if *open == admin.listen {
        "admin.listen: \"127.0.0.1:9191\""
    } else {
        "metrics.listen: \"127.0.0.1:29000\""
    };
    let fix = format!("set admin.token_file: FILE, or {loopback}");
    Finding::fail(message, fix).found(open)
}

fn key_in_arguments(environment: &Environment) -> Finding {
    if !environment.keys.in_arguments {
        return Finding::ok("no key is an argument of the process");
    }
    let message = "the key of clients is an argument of the process, which all users of this machine can read";
    let fix = "put it into the variable WARMROUTE_API_KEY, or into a file for --api-key-file, in place of --api-key";
    Finding::warn(message, fix)
}

/// Returns whether clients need a certificate of a named authority.
fn knows_its_clients(tls: Option<&ListenerTls>) -> bool {
    tls.is_some_and(|tls| tls.client_ca.is_some())
}

fn limits_fd(settings: &Settings, environment: &Environment) -> Finding {
    let Some(files) = environment.files else {
        return Finding::skip("the system does not tell the limit of open files");
    };
    let (limit, needed) = (files.limit, files.needed);
    if needed > limit {
        let message = format!(
            "{limit} open files are allowed, and as many clients as are accepted need {needed}"
        );
        let fitting = files.fitting_connections as u64;
        let accepted = settings
            .server
            .max_connections
            .map_or(fitting, |most| u64::from(most.get()));
        // A client takes two files, its own connection and its worker's.
        let with_fitting = needed.saturating_sub(2 * accepted.saturating_sub(fitting));
        let fix = if with_fitting <= limit {
            format!(
                "raise the limit (ulimit -n {needed}), or set server.max_connections: {fitting}"
            )
        } else {
            format!("raise the limit (ulimit -n {needed}): it is too low for any number of clients")
        };
        return Finding::fail(message, fix).found(limit).expected(needed);
    }
    Finding::ok(format!(
        "{limit} open files are allowed, {needed} may be needed"
    ))
    .found(limit)
}

/// A timeout that must be shorter than another one.
struct TimeoutPair {
    short: &'static str,
    is: Duration,
    long: &'static str,
    than: Duration,
    /// Consequence of a violation, if it is more than a timeout without effect.
    costs: Option<&'static str>,
}

fn timeout_pairs(settings: &Settings) -> [TimeoutPair; 5] {
    let (request, checks, retry) = (&settings.request, &settings.health_checks, &settings.retry);
    let pair = |(short, is), (long, than), costs| TimeoutPair {
        short,
        is,
        long,
        than,
        costs,
    };
    let whole = ("request.timeout", request.timeout);
    [
        pair(
            ("request.connect_timeout", request.connect_timeout),
            whole,
            Some("no request moves on from a dead worker"),
        ),
        pair(
            ("request.stream_idle_timeout", request.stream_idle_timeout),
            ("request.stream_max_duration", request.stream_max_duration),
            Some("a stream that hangs is not noticed before its longest time is over"),
        ),
        pair(
            ("retry.base_delay", retry.base_delay),
            whole,
            Some("no request is ever tried again"),
        ),
        pair(
            ("health_checks.timeout", checks.timeout),
            ("health_checks.interval", checks.interval),
            None,
        ),
        pair(
            ("server.head_timeout", settings.server.head_timeout),
            ("server.keep_alive", settings.server.keep_alive),
            None,
        ),
    ]
}

fn timers(settings: &Settings) -> Finding {
    let Some(TimeoutPair {
        short,
        is,
        long,
        than,
        costs,
    }) = timeout_pairs(settings)
        .into_iter()
        .find(|pair| pair.is > pair.than)
    else {
        return if settings.health_checks.enabled {
            Finding::ok("no time limit makes another one pointless")
        } else {
            let message =
                "health_checks.enabled is false: only failing requests tell that a worker is gone";
            Finding::warn(message, "set health_checks.enabled: true")
                .found("off")
                .expected("on")
        };
    };
    let message = format!("{short} is {is:?}, longer than {long} ({than:?})");
    let fix = format!(
        "set {short}: {} or less, or {long}: {} or more",
        as_key(than),
        as_key(is)
    );
    let finding = match costs {
        Some(costs) => Finding::fail(format!("{message}: {costs}"), fix),
        None => Finding::warn(message, fix),
    };
    finding
        .found(format!("{is:?}"))
        .expected(format!("at most {than:?}"))
}

/// Writes a time as the configuration does.
fn as_key(time: Duration) -> String {
    match (time.as_secs(), time.subsec_millis()) {
        (seconds, 0) => format!("{seconds}s"),
        _ => format!("{}ms", time.as_millis()),
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::{super::fixture, *};
    use api::CheckStatus;

    use crate::{ClientKeys, FileLimit};

    const REQUIRED: ClientKeys = ClientKeys {
        required: true,
        in_arguments: false,
    };

    fn router_check(yaml: &str, environment: &Environment, id: &str) -> CheckResult {
        let checks = router(
            &fixture::settings(yaml),
            environment,
            &ReplicaObservation::Alone,
        );
        checks
            .into_iter()
            .find(|check| check.id == id)
            .expect("every check is there")
    }

    #[test]
    fn the_defaults_pass_and_checks_of_unconfigured_parts_are_skipped() {
        let checks = router(
            &fixture::settings(""),
            &Environment::default(),
            &ReplicaObservation::Alone,
        );
        assert_eq!(
            checks.iter().map(|check| &*check.id).collect::<Vec<_>>(),
            ROUTER_CHECKS
        );
        for check in &checks {
            let skipped = [
                "tenants_salted",
                "redis",
                "nats",
                "replicas",
                "s3",
                "limits_fd",
            ]
            .contains(&&*check.id);
            assert_eq!(
                check.status,
                if skipped {
                    CheckStatus::Skip
                } else {
                    CheckStatus::Ok
                },
                "{check:?}"
            );
        }
    }

    #[test]
    #[contract("G28")]
    fn an_open_listener_is_a_warning_unless_a_key_protects_it() {
        let open = "server: {listen: \"0.0.0.0:8080\", insecure_open: true}";
        assert_eq!(
            router_check(open, &Environment::default(), "listener_exposed").status,
            CheckStatus::Warn
        );
        let keyed = Environment {
            keys: REQUIRED,
            ..Environment::default()
        };
        assert_eq!(
            router_check(open, &keyed, "listener_exposed").status,
            CheckStatus::Ok
        );
    }

    #[test]
    #[contract("S80")]
    fn a_key_in_the_arguments_is_a_warning() {
        for (in_arguments, status) in [(true, CheckStatus::Warn), (false, CheckStatus::Ok)] {
            let keyed = Environment {
                keys: ClientKeys {
                    in_arguments,
                    ..REQUIRED
                },
                ..Environment::default()
            };
            assert_eq!(router_check("", &keyed, "key_in_arguments").status, status);
        }
    }

    #[test]
    #[contract("G28")]
    fn client_certificates_protect_a_listener_like_a_key_or_a_token() {
        let known = "server: {listen: \"0.0.0.0:8080\", tls: {cert: c, key: k, client_ca: a}}\n\
                     admin: {listen: \"0.0.0.0:9191\", tls: {cert: c, key: k, client_ca: a}}\n";
        for id in ["listener_exposed", "admin_exposed"] {
            let check = router_check(known, &Environment::default(), id);
            assert_eq!(
                (check.status, check.message.contains("certificate")),
                (CheckStatus::Ok, true),
                "{check:?}"
            );
        }
        // Encryption alone restricts no client.
        let encrypted =
            "server: {listen: \"0.0.0.0:8080\", insecure_open: true, tls: {cert: c, key: k}}";
        let check = router_check(encrypted, &Environment::default(), "listener_exposed");
        assert_eq!(check.status, CheckStatus::Warn, "{check:?}");
    }

    #[test]
    #[contract("G28")]
    fn every_data_listener_is_checked() {
        let yaml =
            "server: {also_listen: [\"unix:/run/w.sock\", \"0.0.0.0:8081\"], insecure_open: true}";
        let check = router_check(yaml, &Environment::default(), "listener_exposed");
        assert_eq!(check.status, CheckStatus::Warn, "{check:?}");
        assert!(
            check.message.starts_with("0.0.0.0:8081")
                && check.fix.is_some_and(|fix| fix.contains("also_listen"))
        );
        let keyed = Environment {
            keys: REQUIRED,
            ..Environment::default()
        };
        assert_eq!(
            router_check(yaml, &keyed, "listener_exposed").status,
            CheckStatus::Ok
        );
        let local = "server: {also_listen: [\"unix:/run/w.sock\", \"127.0.0.1:8081\"]}";
        assert_eq!(
            router_check(local, &Environment::default(), "listener_exposed").status,
            CheckStatus::Ok
        );
    }

    #[test]
    #[contract("G28")]
    fn the_metrics_listener_is_checked_as_the_admin_listener_is() {
        let open = "metrics: {listen: \"0.0.0.0:29000\"}\nadmin: {token_file: /t}";
        let check = router_check(open, &Environment::default(), "admin_exposed");
        assert_eq!(check.status, CheckStatus::Ok, "{check:?}");
        assert!(check.message.contains("token"), "{check:?}");
        assert_eq!(check.found.as_deref(), Some("0.0.0.0:29000"), "{check:?}");
    }

    #[test]
    fn too_few_open_files_are_reported_with_both_fixes() {
        let files = Some(FileLimit {
            limit: 1024,
            needed: 20_512,
            fitting_connections: 256,
        });
        let check = router_check(
            "server: {max_connections: 10000}",
            &Environment {
                files,
                ..Environment::default()
            },
            "limits_fd",
        );
        assert_eq!(check.status, CheckStatus::Fail);
        let fix = "raise the limit (ulimit -n 20512), or set server.max_connections: 256";
        assert_eq!(check.fix.as_deref(), Some(fix));
        // Even with the smallest accepted limit it would be too low.
        let files = Some(FileLimit {
            limit: 256,
            needed: 640,
            fitting_connections: 64,
        });
        let check = router_check(
            "",
            &Environment {
                files,
                ..Environment::default()
            },
            "limits_fd",
        );
        assert!(
            check.fix.is_some_and(
                |fix| fix.contains("ulimit -n 640") && !fix.contains("max_connections")
            )
        );
    }

    #[test]
    fn a_time_limit_that_another_one_overrides_is_reported() {
        for (yaml, fix, status) in [
            (
                "request: {stream_idle_timeout: 2h, stream_max_duration: 1h}",
                "set request.stream_idle_timeout: 3600s or less, or request.stream_max_duration: 7200s or more",
                CheckStatus::Fail,
            ),
            (
                "request: {connect_timeout: 20s, timeout: 10s}",
                "set request.connect_timeout: 10s or less, or request.timeout: 20s or more",
                CheckStatus::Fail,
            ),
            (
                "health_checks: {timeout: 1500ms, interval: 1s}",
                "set health_checks.timeout: 1s or less, or health_checks.interval: 1500ms or more",
                CheckStatus::Warn,
            ),
        ] {
            let check = router_check(yaml, &Environment::default(), "timers");
            assert_eq!(check.status, status, "{yaml}");
            assert_eq!(check.fix.as_deref(), Some(fix), "{}", check.message);
        }
    }
}
