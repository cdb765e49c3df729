//! Checks block size, prefix caching and its counters in usage, salts and adapters.

use config::EngineKind;
use fleet::WorkerProbe;
use kv_blocks::BlockSize;

use super::{
    CheckSubject, Finding, Findings,
    flags::{EngineFlags, keeps_blocks},
};
use crate::observe::{ProbeOutcome, ProbeReply};

pub(super) fn check(subject: &CheckSubject<'_>, meeting: &WorkerProbe, findings: &mut Findings) {
    findings.set("block_size", block_size(subject, meeting));
    let caching = prefix_caching(subject, meeting, findings.failed("dp_ranks"));
    let cached = matches!(caching, Caching::On(_));
    findings.set("prefix_caching", caching.finding(meeting.engine));
    findings.set("usage_details", usage_details(subject, meeting, cached));
    findings.set("salt_honoured", salt_honoured(subject, cached));
    findings.set("lora", lora(subject, meeting, cached));
}

/// Returns the engine's tokens per block: from the events of our own request, which reflect the
/// index, before its metrics; other events may come from another engine.
fn engine_block_size(subject: &CheckSubject<'_>, meeting: &WorkerProbe) -> Option<BlockSize> {
    let streams = &subject.seen.streams;
    let own = subject
        .seen
        .probes
        .arrival
        .as_ref()
        .and_then(|arrival| streams.get(arrival.stream)?.heard.block_size);
    let heard = || {
        streams
            .iter()
            .filter(|stream| stream.followed)
            .find_map(|stream| stream.heard.block_size)
    };
    own.or(meeting.block_size).or_else(heard)
}

fn block_size(subject: &CheckSubject<'_>, meeting: &WorkerProbe) -> Finding {
    let set = subject.key("block_size");
    let own = engine_block_size(subject, meeting).map(BlockSize::tokens);
    let engine = |configured| EngineFlags::of(meeting.engine).block_size(configured);
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
                if keeps_blocks(meeting.engine)
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

fn prefix_caching(subject: &CheckSubject<'_>, meeting: &WorkerProbe, miscounted: bool) -> Caching {
    let probes = &subject.seen.probes;
    let answered = probes.outcome == ProbeOutcome::Answered;
    let cached = probes.second.cached_tokens.filter(|_| answered);
    match (meeting.prefix_caching, cached, probes.counted) {
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
        (_, Some(0), _) if keeps_blocks(meeting.engine) => {
            Caching::Off("of a repeated prompt nothing was found in the cache")
        }
        (_, Some(0), _) => Caching::Doubtful("of a repeated prompt nothing was found in the cache"),
        (_, None, Some((_, 0))) if answered => {
            Caching::Off("by the engine's counters nothing was found in the cache")
        }
        _ => Caching::Unknown(unprobed(&probes.outcome)),
    }
}

fn usage_details(subject: &CheckSubject<'_>, meeting: &WorkerProbe, cached: bool) -> Finding {
    let probes = &subject.seen.probes;
    if probes.outcome != ProbeOutcome::Answered {
        return Finding::skip(unprobed(&probes.outcome));
    }
    let fix = EngineFlags::of(meeting.engine).usage_details();
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
    let told = cached && probes.second.cached_tokens.is_some_and(|cached| cached > 0);
    match reply {
        Err(reason) => Finding::warn(
            format!("takes no cache_salt: {reason}"),
            "do not share this engine between tenants that must not see each other's cache",
        ),
        Ok(_) if !told => Finding::skip("usage does not tell what is found in the cache"),
        Ok(ProbeReply {
            cached_tokens: Some(cached),
            ..
        }) if *cached > 0 => {
            let message =
                format!("found {cached} tokens of another salt's blocks: cache_salt is ignored");
            let fix = "use an engine that honours cache_salt (vLLM 0.9 or later), or do not share it between tenants";
            Finding::warn(message, fix).found(cached).expected(0)
        }
        Ok(_) => Finding::ok("a salted prompt finds nothing of the unsalted one"),
    }
}

fn lora(subject: &CheckSubject<'_>, meeting: &WorkerProbe, cached: bool) -> Finding {
    let probes = &subject.seen.probes;
    if meeting.loras.is_empty() {
        return Finding::skip("the worker lists no adapters");
    }
    let Some(adapter) = &probes.adapter else {
        return Finding::skip(unprobed(&probes.outcome));
    };
    let name = &adapter.name;
    match &adapter.reply {
        Err(reason) => Finding::fail(
            format!("adapter {name} is listed and does not answer: {reason}"),
            format!("{}, or take it off the engine", EngineFlags::of(meeting.engine).adapter(name)),
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
        let mut scene = CheckFixture::configured("block_size: 16");
        scene.heard().block_size = BlockSize::new(32).ok();
        assert_eq!(scene.failed(), ["block_size"]);
        let check = scene.check("block_size");
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
            let mut scene = CheckFixture::configured("block_size: 16");
            scene.seen.streams.clear();
            scene.meeting().block_size = None;
            scene.seen.probes.second.cached_tokens = Some(cached);
            assert_eq!(scene.check("block_size").status, status, "{cached}");
        }
    }

    #[test]
    fn disabled_prefix_caching_is_one_failure_whatever_the_evidence() {
        // Metrics, cached tokens of the repeated prompt.
        for (metrics, cached) in [(Some(false), Some(0)), (Some(false), None), (None, Some(0))] {
            let mut scene = CheckFixture::healthy();
            scene.meeting().prefix_caching = metrics;
            scene.seen.probes.second.cached_tokens = cached;
            scene.seen.probes.arrival = None;
            assert_eq!(scene.failed(), ["prefix_caching"], "{metrics:?} {cached:?}");
        }
    }

    #[test]
    fn usage_without_cached_tokens_does_not_contradict_announced_blocks() {
        let mut scene = CheckFixture::healthy();
        scene.seen.probes.second.cached_tokens = Some(0);
        assert_eq!(scene.failed(), [""; 0]);
        scene.meeting().prefix_caching = None;
        assert_eq!(scene.failed(), [""; 0]);
        scene.seen.probes.counted = Some((66, 32));
        assert_eq!(
            (scene.failed(), scene.check("usage_details").status),
            (vec![], CheckStatus::Warn)
        );
    }

    #[test]
    fn counters_reveal_caching_without_usage_details_and_metrics_labels() {
        let mut scene = CheckFixture::healthy();
        scene.meeting().prefix_caching = None;
        scene.seen.probes.second.cached_tokens = None;
        scene.seen.probes.arrival = None;
        for counted in [(0, 0), (66, 0)] {
            scene.seen.probes.counted = Some(counted);
            assert_eq!(scene.failed(), ["prefix_caching"], "{counted:?}");
        }
        // No source reports it: the finding is that no events arrive, with possible reasons.
        scene.seen.probes.counted = None;
        scene.hears_nothing();
        assert_eq!(scene.failed(), ["events_arriving"]);
        assert!(
            scene
                .check("events_arriving")
                .fix
                .is_some_and(|fix| fix.contains("--enable-prefix-caching"))
        );
    }

    #[test]
    fn engines_that_may_not_count_in_blocks_only_get_a_warning() {
        let mut scene = CheckFixture::configured("block_size: 16");
        scene.meeting().engine = EngineKind::Llamacpp;
        (
            scene.meeting().block_size,
            scene.meeting().prefix_caching,
            scene.meeting().announced,
        ) = (None, None, None);
        scene.silence();
        scene.seen.probes.second.cached_tokens = Some(41);
        assert_eq!(scene.failed(), [""; 0]);
        scene.seen.probes.second.cached_tokens = Some(0);
        assert_eq!(
            (scene.failed(), scene.check("prefix_caching").status),
            (vec![], CheckStatus::Warn)
        );
    }

    #[test]
    fn the_block_size_comes_from_the_events_of_our_own_request() {
        let mut scene = CheckFixture::configured("block_size: 16");
        let mut other = scene.seen.streams[0].heard.clone();
        other.block_size = BlockSize::new(64).ok();
        let own = crate::observe::StreamObservation {
            endpoint: scene.seen.streams[0].endpoint.clone(),
            followed: true,
            heard: std::mem::replace(scene.heard(), other),
        };
        scene.seen.streams.push(own);
        scene
            .seen
            .probes
            .arrival
            .as_mut()
            .expect("a healthy scene has one")
            .stream = 1;
        assert_eq!(scene.failed(), [""; 0]);
    }

    #[test]
    fn usage_without_details_is_one_failure_when_something_was_cached() {
        let mut scene = CheckFixture::healthy();
        scene.seen.probes.second.cached_tokens = None;
        assert_eq!(scene.failed(), ["usage_details"]);
        assert_eq!(scene.check("salt_honoured").status, CheckStatus::Skip);
        let fix = scene.check("usage_details").fix;
        assert!(fix.is_some_and(|fix| fix.contains("--enable-prompt-tokens-details")));
    }

    #[test]
    #[contract("S59")]
    fn an_ignored_salt_is_a_warning() {
        let mut scene = CheckFixture::healthy();
        scene.seen.probes.salted = Some(Ok(ProbeReply {
            cached_tokens: Some(32),
            ..ProbeReply::default()
        }));
        assert_eq!(
            (scene.failed(), scene.check("salt_honoured").status),
            (vec![], CheckStatus::Warn)
        );
        scene.seen.probes.salted = Some(Err("answered with 400".to_owned()));
        assert_eq!(scene.check("salt_honoured").status, CheckStatus::Warn);
    }
}
