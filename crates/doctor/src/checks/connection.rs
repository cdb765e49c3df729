//! Checks whether the worker answers, and its identity.

use config::EngineKind;
use fleet::WorkerProbe;

use super::{CheckSubject, Finding, Findings};
use crate::{
    observe::{PortOccupant, ProbeOutcome},
    report::WORKER_CHECKS,
};

/// Releases of vLLM before this one publish nothing.
const FIRST_WITH_EVENTS: (u32, u32) = (0, 9);

/// Checks reachability, health, models and version. `None`: nothing else can be checked, and the
/// rest is skipped.
pub(super) fn check<'a>(
    subject: &CheckSubject<'a>,
    findings: &mut Findings,
) -> Option<&'a WorkerProbe> {
    let seen = subject.seen;
    if let Some(reason) = &seen.unreachable {
        let fix = format!("start the engine, or correct {}", subject.key("url"));
        findings.set(
            "reachable",
            Finding::fail(format!("cannot be reached: {reason}"), fix)
                .found(reason)
                .expected(&subject.worker.url),
        );
        findings.skip_rest(&WORKER_CHECKS, "the worker cannot be reached");
        return None;
    }
    if let Some(instead) = &seen.instead {
        address(subject, instead, findings);
        return None;
    }
    match &seen.probes.outcome {
        ProbeOutcome::Failed(reason) => {
            let message = format!("a one-token request got no answer: {reason}");
            findings.set(
                "reachable",
                Finding::fail(
                    message,
                    "look at the engine's log, or allow more time with --timeout",
                ),
            );
        }
        _ => findings.set("reachable", Finding::ok("answers")),
    }
    findings.set("health_endpoint", health_endpoint(subject));
    let probe = probed(subject, findings)?;
    findings.set("model_listed", model_listed(subject, probe));
    findings.set("engine_version", version(subject, probe));
    Some(probe)
}

/// Returns the worker's probe; `None` if it failed, and why is reported.
fn probed<'a>(subject: &CheckSubject<'a>, findings: &mut Findings) -> Option<&'a WorkerProbe> {
    match &subject.seen.probe {
        Some(Ok(probe)) => return Some(probe),
        Some(Err(reason)) if findings.failed("health_endpoint") => {
            findings.skip_rest(&WORKER_CHECKS, &format!("the worker is not well: {reason}"));
        }
        Some(Err(reason)) => {
            let fix = format!(
                "start the engine with a model, or correct {}, {} or {}",
                subject.key("url"),
                subject.key("api_key"),
                subject.key("models")
            );
            findings.set(
                "model_listed",
                Finding::fail(format!("{} {reason}", subject.worker.name), fix),
            );
            findings.skip_rest(&WORKER_CHECKS, "which model the worker serves is not known");
        }
        None => findings.skip_rest(&WORKER_CHECKS, "the worker was not asked who it is"),
    }
    None
}

/// Reports that the address is not an engine's: other results from it say nothing about the engine.
fn address(subject: &CheckSubject<'_>, instead: &PortOccupant, findings: &mut Findings) {
    let (id, finding) = occupied(subject, instead);
    findings.set(id, finding);
    // The first finding stays.
    findings.set("reachable", Finding::ok("answers"));
    if matches!(subject.seen.health, Some(Ok(()))) {
        findings.set("health_endpoint", health_endpoint(subject));
    }
    findings.skip_rest(
        &WORKER_CHECKS,
        "the worker does not answer as an engine there",
    );
}

/// Returns the check that fails, and its finding.
fn occupied(subject: &CheckSubject<'_>, instead: &PortOccupant) -> (&'static str, Finding) {
    let (url, key) = (&subject.worker.url, subject.key("url"));
    let fail = |message: String, fix: String| Finding::fail(message, fix).found(url);
    match instead {
        PortOccupant::Zmtp => {
            let endpoint = url.replacen("http://", "tcp://", 1);
            let message = format!(
                "{url} is a ZeroMQ socket, where an engine publishes events, and not its HTTP port"
            );
            let fix = format!(
                "set {key} to the engine's --host and --port, and {}: \"{endpoint}\" if that is its publisher",
                subject.key("kv_events.endpoint")
            );
            ("reachable", fail(message, fix))
        }
        PortOccupant::EngineAt(there) => {
            let message = format!("there is no /v1/models below {url}, but below {there}");
            (
                "model_listed",
                fail(message, format!("set {key}: \"{there}\"")).expected(there),
            )
        }
        PortOccupant::NoSuchPath => {
            let message = format!(
                "there is no /v1/models below {url}: the engine is behind a path, or elsewhere"
            );
            let fix =
                format!("set {key}: \"{url}/PATH\" with the path that the engine is served under");
            ("model_listed", fail(message, fix))
        }
        PortOccupant::Locked => {
            let key = subject.key("api_key");
            let (message, found) = match subject.worker.api_key {
                Some(_) => (format!("the engine refuses {key}"), "another key"),
                None => (
                    format!("the engine wants a key, and {key} is not set"),
                    "none",
                ),
            };
            let fix =
                format!("set {key}: ${{ENGINE_KEY}}, with the engine's --api-key in that variable");
            (
                "model_listed",
                Finding::fail(message, fix)
                    .found(found)
                    .expected("the engine's key"),
            )
        }
        PortOccupant::OtherModels(models) => {
            let models: Vec<&str> = models.iter().map(String::as_str).collect();
            ("model_listed", listed(subject, &models))
        }
    }
}

fn health_endpoint(subject: &CheckSubject<'_>) -> Finding {
    let reason = match &subject.seen.health {
        Some(Err(reason)) => reason,
        Some(Ok(())) => return Finding::ok("its health check passes"),
        None => return Finding::skip("it was not asked"),
    };
    let own = ["endpoint", "method", "body", "accept_status"]
        .map(|key| subject.key(&format!("health_check.{key}")));
    let keys = own
        .iter()
        .map(String::as_str)
        .chain(["health_checks.endpoint"]);
    let set: Vec<&str> = keys.filter(|key| subject.settings.is_set(key)).collect();
    let well = matches!(subject.seen.probe, Some(Ok(_)));
    let fix = if well && !set.is_empty() {
        format!(
            "leave out {}: the engine answers GET /v1/models",
            set.join(" and ")
        )
    } else {
        format!(
            "wait until the engine is up, or set {}: /v1/models",
            subject.key("health_check.endpoint")
        )
    };
    Finding::fail(format!("its health check fails: {reason}"), fix)
}

fn model_listed(subject: &CheckSubject<'_>, probe: &WorkerProbe) -> Finding {
    let ids = probe
        .models
        .iter()
        .map(|model| &*model.id)
        .chain(probe.loras.iter().map(|lora| &*lora.id));
    listed(subject, &ids.collect::<Vec<_>>())
}

/// Checks that the worker lists its configured models.
fn listed(subject: &CheckSubject<'_>, ids: &[&str]) -> Finding {
    let configured = || subject.worker.models.iter().map(String::as_str);
    let missing: Vec<&str> = configured().filter(|name| !ids.contains(name)).collect();
    let found = ids.join(", ");
    if missing.is_empty() {
        return Finding::ok(format!("serves {found}")).found(found);
    }
    let missing = missing.join(", ");
    let there: Vec<&str> = configured().filter(|name| ids.contains(name)).collect();
    let right = if there.is_empty() {
        found.clone()
    } else {
        there.join(", ")
    };
    let key = subject.key("models");
    let fix =
        format!("set {key}: [{right}], or start the engine with --served-model-name {missing}");
    Finding::fail(format!("does not list {missing}"), fix)
        .found(found)
        .expected(configured().collect::<Vec<_>>().join(", "))
}

fn version(subject: &CheckSubject<'_>, probe: &WorkerProbe) -> Finding {
    let engine = probe.engine.as_str();
    let Some(version) = &probe.version else {
        return Finding::skip(format!("{engine} does not tell its version"));
    };
    let found = format!("{engine} {version}");
    if publishes_none(probe) && subject.wants_events() {
        let fix = format!(
            "use vLLM 0.9.0 or later, or set {}: none",
            subject.key("kv_events.source")
        );
        return Finding::fail(format!("{found} publishes no KV events"), fix)
            .found(found)
            .expected("vllm 0.9.0 or later");
    }
    Finding::ok(found.clone()).found(found)
}

/// Returns whether the release predates events.
pub(super) fn publishes_none(probe: &WorkerProbe) -> bool {
    let version = probe.version.as_deref().and_then(release);
    probe.engine == EngineKind::Vllm && version.is_some_and(|release| release < FIRST_WITH_EVENTS)
}

fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::CheckFixture;
    use crate::observe::{PortOccupant, ProbeOutcome, ProbeResults};
    use api::CheckStatus;

    #[test]
    fn an_unreachable_worker_is_one_failure_and_further_checks_are_skipped() {
        let mut fixture = CheckFixture::healthy();
        fixture.seen.unreachable = Some("connection refused".to_owned());
        let checks = fixture.report().checks;
        assert_eq!(checks[0].status, CheckStatus::Fail);
        assert_eq!(
            checks[0].fix.as_deref(),
            Some("start the engine, or correct workers[0].url")
        );
        assert!(
            checks[1..]
                .iter()
                .all(|check| check.status == CheckStatus::Skip),
            "{checks:?}"
        );
    }

    #[test]
    fn a_worker_without_a_usable_model_list_is_one_failure() {
        let mut fixture = CheckFixture::healthy();
        fixture.seen.probe = Some(Err(
            "answered /v1/models with 401: set this worker's api_key to the engine's key"
                .to_owned(),
        ));
        assert_eq!(fixture.failed(), ["model_listed"]);
    }

    #[test]
    fn an_unhealthy_worker_fails_only_its_health_check() {
        let mut fixture = CheckFixture::healthy();
        fixture.seen.health = Some(Err(
            "answered /health with 503: the engine is loading, wait".to_owned(),
        ));
        fixture.seen.probe = Some(Err("answered /v1/models with 503".to_owned()));
        assert_eq!(fixture.failed(), ["health_endpoint"]);
    }

    #[test]
    fn a_release_without_events_is_too_old() {
        for (version, old) in [
            ("0.8.5", true),
            ("0.9.0", false),
            ("0.32.0", false),
            ("1.0", false),
            ("dev", false),
        ] {
            let mut fixture = CheckFixture::healthy();
            fixture.probe().version = Some(version.into());
            assert_eq!(
                fixture.failed(),
                if old { &["engine_version"][..] } else { &[] },
                "{version}"
            );
            // It announces nothing, which is not a second failure.
            fixture.probe().announced = None;
            fixture.silence();
            assert_eq!(
                fixture.failed(),
                if old {
                    &["engine_version"][..]
                } else {
                    &["events_enabled"]
                },
                "{version}"
            );
        }
    }

    #[test]
    fn an_old_release_passes_without_events() {
        for mut fixture in [
            CheckFixture::configured("kv_events: {source: none}"),
            CheckFixture::with_sections("kv_events: {enabled: false}"),
        ] {
            fixture.probe().version = Some("0.8.5".into());
            fixture.silence();
            assert_eq!(fixture.failed(), [""; 0]);
            assert_eq!(fixture.check("engine_version").status, CheckStatus::Ok);
            assert_eq!(fixture.check("events_enabled").status, CheckStatus::Skip);
        }
    }

    #[test]
    fn another_program_on_the_engines_port_is_one_failure() {
        for (instead, id, fix) in [
            (
                PortOccupant::Zmtp,
                "reachable",
                "set workers[0].url to the engine's --host and --port, and workers[0].kv_events.endpoint: \
                 \"tcp://127.0.0.1:8000\" if that is its publisher",
            ),
            (
                PortOccupant::EngineAt("http://127.0.0.1:8000/a".to_owned()),
                "model_listed",
                "set workers[0].url: \"http://127.0.0.1:8000/a\"",
            ),
            (
                PortOccupant::NoSuchPath,
                "model_listed",
                "set workers[0].url: \"http://127.0.0.1:8000/PATH\" with the path that the engine is served under",
            ),
            (
                PortOccupant::Locked,
                "model_listed",
                "set workers[0].api_key: ${ENGINE_KEY}, with the engine's --api-key in that variable",
            ),
        ] {
            let mut fixture = CheckFixture::healthy();
            // Its health check may fail there, too.
            fixture.seen.health = Some(Err("answered /health with 404".to_owned()));
            fixture.seen.probe = Some(Err("answered /v1/models with 404".to_owned()));
            fixture.seen.instead = Some(instead);
            assert_eq!(fixture.failed(), [id]);
            assert_eq!(fixture.check(id).fix.as_deref(), Some(fix));
        }
    }

    #[test]
    fn missing_models_are_reported_beside_the_available_ones() {
        let mut fixture = CheckFixture::configured("models: [sim, x]");
        let fix = |right: &str, missing: &str| {
            Some(format!(
                "set workers[0].models: [{right}], or start the engine with --served-model-name {missing}"
            ))
        };
        assert_eq!(
            (fixture.failed(), fixture.check("model_listed").fix),
            (vec!["model_listed".into()], fix("sim", "x"))
        );
        fixture.seen.instead = Some(PortOccupant::OtherModels(vec![
            "a".to_owned(),
            "b".to_owned(),
        ]));
        assert_eq!(
            (fixture.failed(), fixture.check("model_listed").fix),
            (vec!["model_listed".into()], fix("a, b", "sim, x"))
        );
    }

    #[test]
    fn a_failing_configured_health_check_is_blamed_first() {
        let mut fixture = CheckFixture::configured("health_check: {endpoint: /up, method: post}");
        fixture.seen.health = Some(Err("answered /up with 405".to_owned()));
        let fix = "leave out workers[0].health_check.endpoint and workers[0].health_check.method: the engine answers GET \
                   /v1/models";
        assert_eq!(
            (
                fixture.failed(),
                fixture.check("health_endpoint").fix.as_deref()
            ),
            (vec!["health_endpoint".into()], Some(fix))
        );
    }

    #[test]
    fn an_engine_without_prompts_is_reachable() {
        let mut fixture = CheckFixture::healthy();
        let reason =
            "answered /v1/completions with 400: the model does not support generation".to_owned();
        fixture.seen.probes = ProbeResults {
            outcome: ProbeOutcome::Unfit(reason),
            ..ProbeResults::default()
        };
        assert_eq!(fixture.failed(), [""; 0]);
        assert_eq!(fixture.check("reachable").status, CheckStatus::Ok);
    }
}
