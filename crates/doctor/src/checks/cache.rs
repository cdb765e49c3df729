//! Checks block size, prefix caching and its counters in usage, salts and adapters.

use config::EngineKind;
use fleet::{SaltSupport, WorkerProbe};
use kv_blocks::BlockSize;

use super::{
    CheckSubject, Finding, Findings,
    flags::{EngineFlags, keeps_blocks},
};
use crate::observe::{ProbeOutcome, ProbeReply};

pub(super) fn check(subject: &CheckSubject<'_>, probe: &WorkerProbe, findings: &mut Findings) {
    findings.set("block_size", block_size(subject, probe));
    let caching = prefix_caching(subject, probe, findings.failed("dp_ranks"));
    let cached = matches!(caching, Caching::On(_));
    findings.set("prefix_caching", caching.finding(probe.engine));
    findings.set("usage_details", usage_details(subject, probe, cached));
    findings.set("salt_honoured", salt_honoured(subject, cached));
    findings.set("lora", lora(subject, probe, cached));
}

/// Returns the engine's tokens per block: from the events of our own request, which reflect the
/// index, before its metrics; other events may come from another engine.
fn engine_block_size(subject: &CheckSubject<'_>, probe: &WorkerProbe) -> Option<BlockSize> {
    let streams = &subject.seen.streams;
    let own = subject
        .seen
        .probes
        .arrival
        .as_ref()
        .and_then(|arrival| streams.get(arrival.stream)?.observation.block_size);
    let in_events = || {
        streams
            .iter()
            .filter(|stream| stream.followed)
            .find_map(|stream| stream.observation.block_size)
    };
    own.or(probe.block_size).or_else(in_events)
}

fn block_size(subject: &CheckSubject<'_>, probe: &WorkerProbe) -> Finding {
    let set = subject.key("block_size");
    let own = engine_block_size(subject, probe).map(BlockSize::tokens);
    let engine = |configured| EngineFlags::of(probe.engine).block_size(configured);
    match (subject.worker.block_size.map(BlockSize::tokens), own) {
        (Some(configured), Some(own)) if configured != own => {
            let message = format!(
                "the engine's blocks have {own} tokens, the router looks for blocks of {configured}: nothing will be found"
            );
            let fix = format!("{}, or set {set}: {own}", engine(configured));
            Finding::fail(message, fix).found(own).expected(configured)
        }
        (Some(configured), None) => match subject.seen.probes.second.cached_tokens {
            // Only whole blocks are found in a block cache.
            Some(cached)
                if keeps_blocks(probe.engine)
                    && cached > 0
                    && cached % u64::from(configured) != 0 =>
            {
                let message =
                    format!("{cached} cached tokens are no whole blocks of {configured} tokens");
                let fix = format!("{}, or correct {set}", engine(configured));
                Finding::fail(message, fix).expected(configured)
            }
            _ => Finding::skip("the engine does not tell its block size"),
        },
        (_, Some(own)) => Finding::ok(format!("blocks of {own} tokens")).found(own),
        (None, None) => Finding::warn(
            "nobody tells the block size: 16 is assumed",
            format!("set {set}"),
        )
        .expected(16),
    }
}

/// Whether the engine caches blocks, with the evidence for it.
enum Caching {
    On(&'static str),
    Off(&'static str),
    /// As above, but this engine may count in another way.
    Doubtful(&'static str),
    Unknown(String),
}

impl Caching {
    fn finding(self, engine: EngineKind) -> Finding {
        let fix = EngineFlags::of(engine).prefix_caching();
        match self {
            Self::On(how) => Finding::ok(how).found("on"),
            Self::Off(how) => Finding::fail(format!("{how}: every prompt is computed anew"), fix)
                .found("off")
                .expected("on"),
            Self::Doubtful(how) => Finding::warn(
                how,
                "look whether this engine keeps prompts for later requests",
            ),
            Self::Unknown(reason) => Finding::skip(reason),
        }
    }
}

fn prefix_caching(subject: &CheckSubject<'_>, probe: &WorkerProbe, miscounted: bool) -> Caching {
    let probes = &subject.seen.probes;
    let answered = probes.outcome == ProbeOutcome::Answered;
    let cached = probes.second.cached_tokens.filter(|_| answered);
    match (probe.prefix_caching, cached, probes.counted) {
        (_, Some(1..), _) => Caching::On("a repeated prompt was found in the cache"),
        (Some(false), ..) => Caching::Off("the engine's metrics say that prefix caching is off"),
        // Usage and counters may leave out cached tokens; announced blocks are certain.
        _ if probes.arrival.is_some() => {
            Caching::On("blocks of a prompt were announced as reusable")
        }
        (_, _, Some((_, 1..))) if answered => {
            Caching::On("the engine's counters say that prompts are found in the cache")
        }
        (Some(true), ..) => Caching::On("the engine's metrics say that prefix caching is on"),
        _ if miscounted => Caching::Unknown(
            "requests may have run on different ranks, which are miscounted".to_owned(),
        ),
        (_, Some(0), _) if keeps_blocks(probe.engine) => {
            Caching::Off("of a repeated prompt nothing was found in the cache")
        }
        (_, Some(0), _) => Caching::Doubtful("of a repeated prompt nothing was found in the cache"),
        (_, None, Some((_, 0))) if answered => {
            Caching::Off("by the engine's counters nothing was found in the cache")
        }
        _ => Caching::Unknown(unprobed(&probes.outcome)),
    }
}

fn usage_details(subject: &CheckSubject<'_>, probe: &WorkerProbe, cached: bool) -> Finding {
    let probes = &subject.seen.probes;
    if probes.outcome != ProbeOutcome::Answered {
        return Finding::skip(unprobed(&probes.outcome));
    }
    let fix = EngineFlags::of(probe.engine).usage_details();
    match (probes.second.cached_tokens, probes.counted) {
        (Some(0), Some((_, counted @ 1..))) => Finding::warn(
            format!("usage says that nothing of a repeated prompt was cached, the engine's counters {counted} tokens"),
            fix,
        )
        .found(0),
        (Some(_), _) => Finding::ok("usage tells how much of a prompt was cached").found("prompt_tokens_details"),
        // Engines may leave out the details if there is nothing to report.
        (None, _) if !cached => Finding::skip("nothing was cached that usage could tell"),
        (None, Some((_, 0))) => Finding::skip("by the engine's counters nothing was found that usage could tell"),
        (None, _) => {
            let message = "usage has no prompt_tokens_details: predictions cannot be compared request by request";
            Finding::fail(message, fix).found("none").expected("prompt_tokens_details.cached_tokens")
        }
    }
}

/// Checks salts. Never a failure: no part of the configuration depends on salts; only requests
/// carry them.
fn salt_honoured(subject: &CheckSubject<'_>, cached: bool) -> Finding {
    let probes = &subject.seen.probes;
    let Some(reply) = &probes.salted else {
        return Finding::skip(unprobed(&probes.outcome));
    };
    let reply = match reply {
        Ok(reply) => reply,
        Err(reason) => {
            return Finding::warn(
                format!("takes no cache_salt: {reason}"),
                "do not share this engine between tenants that must not see each other's cache",
            );
        }
    };
    let control = probes.second.cached_tokens.filter(|_| cached);
    match SaltSupport::observed(control, reply.cached_tokens) {
        SaltSupport::Unknown => Finding::skip("usage does not tell what is found in the cache"),
        SaltSupport::Ignored => {
            let cached = reply.cached_tokens.unwrap_or_default();
            let message =
                format!("found {cached} tokens of another salt's blocks: cache_salt is ignored");
            let fix = "use an engine that honours cache_salt (vLLM 0.9 or later), or do not share it between tenants";
            Finding::warn(message, fix).found(cached).expected(0)
        }
        SaltSupport::Honoured => Finding::ok("a salted prompt finds nothing of the unsalted one"),
    }
}

fn lora(subject: &CheckSubject<'_>, probe: &WorkerProbe, cached: bool) -> Finding {
    let probes = &subject.seen.probes;
    if probe.loras.is_empty() {
        return Finding::skip("the worker lists no adapters");
    }
    let Some(adapter) = &probes.adapter else {
        return Finding::skip(unprobed(&probes.outcome));
    };
    let name = &adapter.name;
    match &adapter.reply {
        Err(reason) => Finding::fail(
            format!("adapter {name} is listed and does not answer: {reason}"),
            format!("{}, or take it off the engine", EngineFlags::of(probe.engine).adapter(name)),
        )
        .found(name),
        Ok(ProbeReply { cached_tokens: Some(found), .. }) if *found > 0 => Finding::fail(
            format!("adapter {name} found {found} tokens of the base model's blocks"),
            "update the engine: it mixes the caches of adapters",
        )
        .found(name),
        Ok(_) if cached && probes.arrival.is_some() && adapter.announced == Some(false) => Finding::warn(
            format!(
                "blocks of adapter {name} are not announced under its name: they cannot be told from the base model's"
            ),
            "use vLLM 0.14 or later, which names adapters in its events",
        )
        .found(name),
        Ok(_) => Finding::ok(format!("adapter {name} has a cache of its own")).found(name),
    }
}

/// Returns why requests gave no result.
pub(super) fn unprobed(outcome: &ProbeOutcome) -> String {
    match outcome {
        ProbeOutcome::NotSent => "no request was sent".to_owned(),
        ProbeOutcome::Unfit(reason) => reason.clone(),
        ProbeOutcome::Failed(_) => "the request got no answer".to_owned(),
        ProbeOutcome::Answered => {
            "the requests do not tell, or no time was left for them (--timeout)".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::{super::fixture::CheckFixture, *};
    use api::CheckStatus;

    #[test]
    fn a_wrong_block_size_is_reported_with_both_fixes() {
        let mut fixture = CheckFixture::configured("block_size: 16");
        fixture.observation().block_size = BlockSize::new(32).ok();
        assert_eq!(fixture.failed(), ["block_size"]);
        let check = fixture.check("block_size");
        assert_eq!(
            (check.found.as_deref(), check.expected.as_deref()),
            (Some("32"), Some("16"))
        );
        assert_eq!(
            check.fix.as_deref(),
            Some("start the engine with --block-size 16, or set workers[0].block_size: 32")
        );
    }

    #[test]
    fn without_events_and_metrics_cached_tokens_reveal_a_wrong_block_size() {
        for (cached, status) in [
            (48, CheckStatus::Skip),
            (40, CheckStatus::Fail),
            (0, CheckStatus::Skip),
        ] {
            let mut fixture = CheckFixture::configured("block_size: 16");
            fixture.seen.streams.clear();
            fixture.probe().block_size = None;
            fixture.seen.probes.second.cached_tokens = Some(cached);
            assert_eq!(fixture.check("block_size").status, status, "{cached}");
        }
    }

    #[test]
    fn disabled_prefix_caching_is_one_failure_whatever_the_evidence() {
        // Metrics, cached tokens of the repeated prompt.
        for (metrics, cached) in [(Some(false), Some(0)), (Some(false), None), (None, Some(0))] {
            let mut fixture = CheckFixture::healthy();
            fixture.probe().prefix_caching = metrics;
            fixture.seen.probes.second.cached_tokens = cached;
            fixture.seen.probes.arrival = None;
            assert_eq!(
                fixture.failed(),
                ["prefix_caching"],
                "{metrics:?} {cached:?}"
            );
        }
    }

    #[test]
    fn usage_without_cached_tokens_does_not_contradict_announced_blocks() {
        let mut fixture = CheckFixture::healthy();
        fixture.seen.probes.second.cached_tokens = Some(0);
        assert_eq!(fixture.failed(), [""; 0]);
        fixture.probe().prefix_caching = None;
        assert_eq!(fixture.failed(), [""; 0]);
        fixture.seen.probes.counted = Some((66, 32));
        assert_eq!(
            (fixture.failed(), fixture.check("usage_details").status),
            (vec![], CheckStatus::Warn)
        );
    }

    #[test]
    fn counters_reveal_caching_without_usage_details_and_metrics_labels() {
        let mut fixture = CheckFixture::healthy();
        fixture.probe().prefix_caching = None;
        fixture.seen.probes.second.cached_tokens = None;
        fixture.seen.probes.arrival = None;
        for counted in [(0, 0), (66, 0)] {
            fixture.seen.probes.counted = Some(counted);
            assert_eq!(fixture.failed(), ["prefix_caching"], "{counted:?}");
        }
        // No source reports it: the finding is that no events arrive, with possible reasons.
        fixture.seen.probes.counted = None;
        fixture.clear_observation();
        assert_eq!(fixture.failed(), ["events_arriving"]);
        assert!(
            fixture
                .check("events_arriving")
                .fix
                .is_some_and(|fix| fix.contains("--enable-prefix-caching"))
        );
    }

    #[test]
    fn engines_that_may_not_count_in_blocks_only_get_a_warning() {
        let mut fixture = CheckFixture::configured("block_size: 16");
        fixture.probe().engine = EngineKind::Llamacpp;
        (
            fixture.probe().block_size,
            fixture.probe().prefix_caching,
            fixture.probe().announced,
        ) = (None, None, None);
        fixture.silence();
        fixture.seen.probes.second.cached_tokens = Some(41);
        assert_eq!(fixture.failed(), [""; 0]);
        fixture.seen.probes.second.cached_tokens = Some(0);
        assert_eq!(
            (fixture.failed(), fixture.check("prefix_caching").status),
            (vec![], CheckStatus::Warn)
        );
    }

    #[test]
    fn the_block_size_comes_from_the_events_of_our_own_request() {
        let mut fixture = CheckFixture::configured("block_size: 16");
        let mut other = fixture.seen.streams[0].observation.clone();
        other.block_size = BlockSize::new(64).ok();
        let own = crate::observe::StreamObservation {
            endpoint: fixture.seen.streams[0].endpoint.clone(),
            followed: true,
            observation: std::mem::replace(fixture.observation(), other),
        };
        fixture.seen.streams.push(own);
        fixture
            .seen
            .probes
            .arrival
            .as_mut()
            .expect("a healthy scene has one")
            .stream = 1;
        assert_eq!(fixture.failed(), [""; 0]);
    }

    #[test]
    fn usage_without_details_is_one_failure_when_something_was_cached() {
        let mut fixture = CheckFixture::healthy();
        fixture.seen.probes.second.cached_tokens = None;
        assert_eq!(fixture.failed(), ["usage_details"]);
        assert_eq!(fixture.check("salt_honoured").status, CheckStatus::Skip);
        let fix = fixture.check("usage_details").fix;
        assert!(fix.is_some_and(|fix| fix.contains("--enable-prompt-tokens-details")));
    }

    #[test]
    #[contract("S59")]
    fn an_ignored_salt_is_a_warning() {
        let mut fixture = CheckFixture::healthy();
        fixture.seen.probes.salted = Some(Ok(ProbeReply {
            cached_tokens: Some(32),
            ..ProbeReply::default()
        }));
        assert_eq!(
            (fixture.failed(), fixture.check("salt_honoured").status),
            (vec![], CheckStatus::Warn)
        );
        fixture.seen.probes.salted = Some(Err("answered with 400".to_owned()));
        assert_eq!(fixture.check("salt_honoured").status, CheckStatus::Warn);
    }
}
