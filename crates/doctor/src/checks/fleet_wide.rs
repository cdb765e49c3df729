//! Checks that compare workers with each other.

use std::sync::Arc;

use fleet::WorkerProbe;
use kv_blocks::Role;

use super::{CheckSubject, Finding, Findings};
use api::CheckStatus;

/// Checks that have no result for a worker whose publisher belongs to another one.
const RESTS_ON_OWN_EVENTS: [&str; 3] = ["events_arriving", "hash_alias", "block_size"];

/// Runs the checks; `findings` are those of `subjects`, in the same order.
pub(super) fn check(subjects: &[CheckSubject<'_>], findings: &mut [Findings]) {
    for at in 0..subjects.len() {
        let agrees = model_agrees(subjects, at);
        let unique = identity_unique(subjects, findings, at);
        let paired = role_pairing(subjects, at);
        findings[at].set("model_agrees", agrees);
        if unique.status == CheckStatus::Fail {
            findings[at]
                .explain_failures(&RESTS_ON_OWN_EVENTS, "the events may be another worker's");
        }
        findings[at].set("identity_unique", unique);
        findings[at].set("role_pairing", paired);
    }
}

fn probe<'a>(subject: &CheckSubject<'a>) -> Option<&'a WorkerProbe> {
    subject.seen.probe.as_ref()?.as_ref().ok()
}

/// Returns the other workers that serve the same base model.
fn peers<'a>(
    subjects: &'a [CheckSubject<'a>],
    at: usize,
    base: &'a str,
) -> impl Iterator<Item = (&'a CheckSubject<'a>, &'a WorkerProbe)> {
    let others = subjects
        .iter()
        .enumerate()
        .filter(move |(other, _)| *other != at)
        .map(|(_, subject)| subject);
    others
        .filter_map(move |subject| Some((subject, probe(subject)?)))
        .filter(move |(_, probe)| &*probe.base == base)
}

fn model_agrees(subjects: &[CheckSubject<'_>], at: usize) -> Finding {
    let Some(own) = probe(&subjects[at]) else {
        return Finding::skip("the worker's model is not known");
    };
    let base: Arc<str> = Arc::clone(&own.base);
    let mut alone = true;
    for (peer, other) in peers(subjects, at, &base) {
        alone = false;
        let name = &peer.worker.name;
        let fix = format!(
            "start both with the same model, or serve one of them as another name than {base} (--served-model-name)"
        );
        let digests = |probe: &WorkerProbe| {
            let prompt = probe.artefacts.prompt.as_ref()?;
            Some((
                prompt.tokenizer_digest().to_owned(),
                prompt.template_digest().map(str::to_owned),
            ))
        };
        if let (Some(ours), Some(theirs)) = (digests(own), digests(other))
            && ours != theirs
        {
            let message = format!("serves {base} with another tokenizer or template than {name}");
            return Finding::fail(message, fix).found(ours.0).expected(theirs.0);
        }
        let longest = |probe: &WorkerProbe| {
            probe
                .models
                .iter()
                .find(|model| model.id == base)?
                .max_model_len
        };
        if let (Some(ours), Some(theirs)) = (longest(own), longest(other))
            && ours != theirs
        {
            let message =
                format!("serves {base} with prompts of up to {ours} tokens, {name} with {theirs}");
            let fix = format!(
                "start both with the same --max-model-len: the router goes by the smaller one for {base}"
            );
            return Finding::warn(message, fix).found(ours).expected(theirs);
        }
    }
    if alone {
        Finding::skip(format!("no other worker serves {base}"))
    } else {
        Finding::ok("agrees with its peers").found(base)
    }
}

/// Checks that no two workers share a publisher: they would be credited with each other's blocks.
fn identity_unique(subjects: &[CheckSubject<'_>], findings: &[Findings], at: usize) -> Finding {
    let Some(own) = probe(&subjects[at]) else {
        return Finding::skip("the worker's publishers are not known");
    };
    let good = |at: usize| {
        matches!(
            findings[at].status("events_endpoint"),
            Some(CheckStatus::Ok | CheckStatus::Warn)
        )
    };
    if !good(at) {
        return Finding::skip("the worker's publishers are not known");
    }
    let others = subjects
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != at && good(*other));
    for (there, other) in others {
        let Some(theirs) = probe(other) else {
            continue;
        };
        let shared = own.streams.iter().find(|mine| {
            theirs
                .streams
                .iter()
                .any(|their| same(&mine.endpoint, &their.endpoint))
        });
        if let Some(shared) = shared {
            let name = &other.worker.name;
            let message = format!(
                "{} is also followed for {name}: one cache cannot be two workers'",
                shared.endpoint
            );
            let fix = if same(&subjects[at].worker.url, &other.worker.url) {
                format!(
                    "leave out workers[{}]: both are the engine at {}",
                    at.max(there),
                    other.worker.url
                )
            } else {
                let key = subjects[at].key("kv_events.endpoint");
                format!(
                    "set {key} to the publisher of {}, or leave one of the two out",
                    subjects[at].worker.url
                )
            };
            return Finding::fail(message, fix).found(&shared.endpoint);
        }
    }
    Finding::ok("no other worker is followed at the same place")
}

/// Compares endpoints; loopback has more than one name.
fn same(one: &str, other: &str) -> bool {
    one.replace("//localhost:", "//127.0.0.1:") == other.replace("//localhost:", "//127.0.0.1:")
}

fn role_pairing(subjects: &[CheckSubject<'_>], at: usize) -> Finding {
    let role = subjects[at].worker.role;
    let (name, counterpart, other) = match role {
        Role::Unified => return Finding::skip("the worker serves both phases"),
        Role::Prefill => ("prefill", Role::Decode, "decode"),
        Role::Decode => ("decode", Role::Prefill, "prefill"),
    };
    let Some(own) = probe(&subjects[at]) else {
        return Finding::skip("the worker's model is not known");
    };
    if peers(subjects, at, &own.base).any(|(peer, _)| peer.worker.role == counterpart) {
        return Finding::ok(format!("there is a {other} worker for {}", own.base)).found(name);
    }
    let unmet = subjects
        .iter()
        .find(|peer| peer.worker.role == counterpart && probe(peer).is_none());
    if let Some(unmet) = unmet {
        let name = &unmet.worker.name;
        return Finding::skip(format!(
            "{name}, a {other} worker, did not say which model it serves"
        ));
    }
    let fix = format!(
        "add a worker with role: {other}, or set {}: unified",
        subjects[at].key("role")
    );
    Finding::fail(
        format!("a {name} worker without a {other} worker for {}", own.base),
        fix,
    )
    .found(name)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::{
        super::fixture::{self, CheckFixture},
        *,
    };

    #[test]
    fn workers_of_different_models_and_block_sizes_are_compatible() {
        let (mut one, mut two) = (CheckFixture::healthy(), CheckFixture::healthy());
        one.probe().block_size = kv_blocks::BlockSize::new(32).ok();
        two.move_to("tcp://127.0.0.1:6000");
        two.rename("other");
        let reports = fixture::reports(vec![one, two]);
        assert!(reports.iter().all(|report| report.ok), "{reports:?}");
        assert_eq!(
            fixture::check(&reports[0], "model_agrees").status,
            CheckStatus::Skip
        );
    }

    #[test]
    #[contract("G28")]
    fn one_publisher_for_two_workers_is_reported_at_both() {
        let reports = fixture::reports(vec![CheckFixture::healthy(), CheckFixture::healthy()]);
        for report in &reports {
            assert_eq!(fixture::failed(report), ["identity_unique"]);
        }
    }

    #[test]
    fn a_worker_followed_at_anothers_publisher_is_a_single_failure() {
        let (one, mut two) = (CheckFixture::healthy(), CheckFixture::healthy());
        two.probe().announced = None;
        two.seen.probes.arrival = None;
        let reports = fixture::reports(vec![one, two]);
        for report in &reports {
            assert_eq!(fixture::failed(report), ["identity_unique"]);
        }
        assert_eq!(
            fixture::check(&reports[1], "events_arriving").status,
            CheckStatus::Skip
        );
    }

    #[test]
    fn a_role_with_an_unreachable_counterpart_is_not_reported_as_alone() {
        let workers = "{name: w0, url: \"http://127.0.0.1:8000\"}, {name: w1, url: \"http://127.0.0.1:8001\"}";
        let mut settings = fixture::settings(&format!("workers: [{workers}]"));
        (settings.workers[0].role, settings.workers[1].role) = (Role::Prefill, Role::Decode);
        let (one, mut two) = (CheckFixture::healthy(), CheckFixture::healthy());
        two.move_to("tcp://127.0.0.1:6000");
        let mut seen = [one.seen, two.seen];
        let reports = super::super::workers(&settings, &seen);
        assert!(reports.iter().all(|report| report.ok), "{reports:?}");
        (seen[1].unreachable, seen[1].probe) = (Some("connection refused".to_owned()), None);
        let reports = super::super::workers(&settings, &seen);
        assert_eq!(
            (fixture::failed(&reports[0]), fixture::failed(&reports[1])),
            (vec![], vec!["reachable".into()])
        );
        settings.workers[1].role = Role::Prefill;
        let reports = super::super::workers(&settings, &seen);
        assert_eq!(fixture::failed(&reports[0]), ["role_pairing"]);
    }

    #[test]
    fn a_worker_with_a_wrong_endpoint_does_not_fail_the_other_one() {
        let (mut wrong, right) = (CheckFixture::healthy(), CheckFixture::healthy());
        wrong.observation().link = crate::observe::LinkStatus::Unreachable("refused".to_owned());
        let reports = fixture::reports(vec![wrong, right]);
        assert_eq!(fixture::failed(&reports[0]), ["events_endpoint"]);
        assert!(reports[1].ok, "{reports:?}");
    }

    #[test]
    fn peers_with_different_maximum_prompt_lengths_are_a_warning() {
        let (one, mut two) = (CheckFixture::healthy(), CheckFixture::healthy());
        two.move_to("tcp://127.0.0.1:6000");
        two.probe().models[0].max_model_len = Some(100);
        let reports = fixture::reports(vec![one, two]);
        assert_eq!(
            fixture::check(&reports[0], "model_agrees").status,
            CheckStatus::Warn
        );
    }
}
