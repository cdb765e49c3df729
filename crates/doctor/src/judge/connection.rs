//! Whether the worker answers, and who it says it is.

use config::Engine;
use fleet::Meeting;

use super::{Finding, Findings, Subject};
use crate::{gather::Outcome, report::WORKER_CHECKS};

/// Releases of vLLM before this one publish nothing.
const FIRST_WITH_EVENTS: (u32, u32) = (0, 9);

/// Judges reach, health, models and version. `None`: nothing else can be told, and is skipped.
pub(super) fn judge<'a>(subject: &Subject<'a>, findings: &mut Findings) -> Option<&'a Meeting> {
    let seen = subject.seen;
    if let Some(reason) = &seen.unreachable {
        let fix = format!("start the engine, or correct {}", subject.key("url"));
        findings.set(
            "reachable",
            Finding::fail(format!("cannot be reached: {reason}"), fix).found(reason).expected(&subject.worker.url),
        );
        findings.skip_rest(&WORKER_CHECKS, "the worker cannot be reached");
        return None;
    }
    match &seen.probes.outcome {
        Outcome::Failed(reason) => {
            let message = format!("a one-token request got no answer: {reason}");
            findings.set(
                "reachable",
                Finding::fail(message, "look at the engine's log, or allow more time with --timeout"),
            );
        }
        _ => findings.set("reachable", Finding::ok("answers")),
    }
    findings.set(
        "health_endpoint",
        match &seen.health {
            Some(Err(reason)) => Finding::fail(
                format!("its health check fails: {reason}"),
                format!("wait until the engine is up, or set {}", subject.key("health_check.endpoint")),
            ),
            Some(Ok(())) => Finding::ok("its health check passes"),
            None => Finding::skip("it was not asked"),
        },
    );
    let meeting = match &seen.meeting {
        Some(Ok(meeting)) => meeting,
        Some(Err(reason)) if findings.failed("health_endpoint") => {
            findings.skip_rest(&WORKER_CHECKS, &format!("the worker is not well: {reason}"));
            return None;
        }
        Some(Err(reason)) => {
            let fix = format!(
                "start the engine with a model, or correct {}, {} or {}",
                subject.key("url"),
                subject.key("api_key"),
                subject.key("models")
            );
            findings.set("model_listed", Finding::fail(format!("{} {reason}", subject.worker.name), fix));
            findings.skip_rest(&WORKER_CHECKS, "which model the worker serves is not known");
            return None;
        }
        None => {
            findings.skip_rest(&WORKER_CHECKS, "the worker was not asked who it is");
            return None;
        }
    };
    findings.set("model_listed", model_listed(subject, meeting));
    findings.set("engine_version", version(subject, meeting));
    Some(meeting)
}

fn model_listed(subject: &Subject<'_>, meeting: &Meeting) -> Finding {
    let ids = meeting.models.iter().map(|model| &*model.id).chain(meeting.loras.iter().map(|lora| &*lora.id));
    let ids: Vec<&str> = ids.collect();
    let missing: Vec<&str> =
        subject.worker.models.iter().map(String::as_str).filter(|wanted| !ids.contains(wanted)).collect();
    let found = ids.join(", ");
    if missing.is_empty() {
        return Finding::ok(format!("serves {found}")).found(found);
    }
    let fix = format!("serve {} there, or take it out of {}", missing.join(", "), subject.key("models"));
    Finding::fail(format!("does not list {}", missing.join(", ")), fix)
        .found(found)
        .expected(subject.worker.models.join(", "))
}

fn version(subject: &Subject<'_>, meeting: &Meeting) -> Finding {
    let engine = meeting.engine.as_str();
    let Some(version) = &meeting.version else { return Finding::skip(format!("{engine} does not tell its version")) };
    let found = format!("{engine} {version}");
    let old = meeting.engine == Engine::Vllm && release(version).is_some_and(|release| release < FIRST_WITH_EVENTS);
    if old && subject.wants_events() {
        let fix = "use vLLM 0.9.0 or later, or set kv_events.source: none for this worker";
        return Finding::fail(format!("{found} publishes no KV events"), fix)
            .found(found)
            .expected("vllm 0.9.0 or later");
    }
    Finding::ok(found.clone()).found(found)
}

fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use crate::{
        gather::{Outcome, Probes},
        report::Status,
    };

    #[test]
    fn what_cannot_be_reached_is_one_failure_and_nothing_else_is_judged() {
        let mut scene = Scene::healthy();
        scene.seen.unreachable = Some("connection refused".to_owned());
        let checks = scene.report().checks;
        assert_eq!(checks[0].status, Status::Fail);
        assert_eq!(checks[0].fix.as_deref(), Some("start the engine, or correct workers[0].url"));
        assert!(checks[1..].iter().all(|check| check.status == Status::Skip), "{checks:?}");
    }

    #[test]
    fn a_worker_without_a_usable_model_list_is_one_failure() {
        let mut scene = Scene::healthy();
        scene.seen.meeting =
            Some(Err("answered /v1/models with 401: set this worker's api_key to the engine's key".to_owned()));
        assert_eq!(scene.failed(), ["model_listed"]);
    }

    #[test]
    fn a_sick_worker_fails_its_health_check_only() {
        let mut scene = Scene::healthy();
        scene.seen.health = Some(Err("answered /health with 503: the engine is loading, wait".to_owned()));
        scene.seen.meeting = Some(Err("answered /v1/models with 503".to_owned()));
        assert_eq!(scene.failed(), ["health_endpoint"]);
    }

    #[test]
    fn a_release_without_events_is_too_old() {
        for (version, old) in [("0.8.5", true), ("0.9.0", false), ("0.32.0", false), ("1.0", false), ("dev", false)] {
            let mut scene = Scene::healthy();
            scene.meeting().version = Some(version.into());
            assert_eq!(scene.failed(), if old { &["engine_version"][..] } else { &[] }, "{version}");
            // It announces nothing, which is no second failure.
            scene.meeting().announced = None;
            scene.silence();
            assert_eq!(scene.failed(), if old { &["engine_version"][..] } else { &["events_enabled"] }, "{version}");
        }
    }

    #[test]
    fn an_old_release_is_fine_where_its_events_are_not_wanted() {
        for mut scene in
            [Scene::configured("kv_events: {source: none}"), Scene::with_sections("kv_events: {enabled: false}")]
        {
            scene.meeting().version = Some("0.8.5".into());
            scene.silence();
            assert_eq!(scene.failed(), ["events_enabled"]);
            assert_eq!(scene.check("engine_version").status, Status::Ok);
        }
    }

    #[test]
    fn an_engine_that_takes_no_prompts_can_be_reached() {
        let mut scene = Scene::healthy();
        let reason = "answered /v1/completions with 400: the model does not support generation".to_owned();
        scene.seen.probes = Probes { outcome: Outcome::Unfit(reason), ..Probes::default() };
        assert_eq!(scene.failed(), [""; 0]);
        assert_eq!(scene.check("reachable").status, Status::Ok);
    }
}
