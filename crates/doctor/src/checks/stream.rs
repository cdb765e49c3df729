//! Checks the content of the events that arrived: numbers, hashes, media, groups, clock.

use kv_blocks::Tier;

use super::{CheckSubject, Finding, Findings, cache::unprobed};
use crate::observe::PublisherObservation;

/// Clock difference above which a check warns, in seconds.
const CLOCK_APART_S: f64 = 5.0;
/// Clock difference above which ages and lags are meaningless, in seconds.
const CLOCK_WRONG_S: f64 = 60.0;
/// Difference above which a timestamp is no wall-clock time, in seconds: some publishers count from
/// their own start.
const NO_TIME_S: f64 = 86_400.0;

const NEEDS_EVENTS: [&str; 5] = [
    "sequence",
    "hash_alias",
    "medium_known",
    "hybrid_groups",
    "clock",
];

pub(super) fn check(subject: &CheckSubject<'_>, findings: &mut Findings) {
    for ground in ["prefix_caching", "events_arriving"] {
        if findings.failed(ground) {
            findings.skip_rest(&NEEDS_EVENTS, "no events arrive");
        }
    }
    let observations: Vec<&PublisherObservation> = subject
        .seen
        .streams
        .iter()
        .filter(|one| one.followed)
        .map(|one| &one.observation)
        .collect();
    if observations
        .iter()
        .all(|observation| observation.batches == 0)
    {
        findings.skip_rest(&NEEDS_EVENTS, "no events were heard");
        return;
    }
    if findings.failed("tokenizer") {
        findings.skip_rest(&["hash_alias"], "the tokenizers differ");
    }
    findings.set("sequence", sequence(&observations));
    findings.set("hash_alias", hash_alias(subject));
    findings.set("medium_known", medium_known(subject, &observations));
    findings.set("hybrid_groups", hybrid_groups(subject, &observations));
    findings.set("clock", clock(subject, &observations));
}

fn sequence(observations: &[&PublisherObservation]) -> Finding {
    let missed: u64 = observations
        .iter()
        .map(|observation| observation.numbers.missed)
        .fold(0, u64::saturating_add);
    let unreadable: u64 = observations
        .iter()
        .map(|observation| observation.unreadable)
        .sum();
    let batches: u64 = observations
        .iter()
        .map(|observation| observation.batches)
        .sum();
    if missed > 0 {
        let fix = "set \"hwm\": 1000000 in the engine's --kv-events-config, and look for a slow network between";
        return Finding::fail(
            format!("{missed} batches were lost on the way while listening"),
            fix,
        )
        .found(missed)
        .expected(0);
    }
    if unreadable > 0 {
        let fix = "check that the endpoint is a KV event publisher of a known engine (vLLM 0.9 or later, SGLang)";
        return Finding::fail(
            format!("{unreadable} messages or events cannot be read"),
            fix,
        )
        .found(unreadable)
        .expected(0);
    }
    if observations
        .iter()
        .any(|observation| observation.numbers.unnumbered > 0)
    {
        let fix = "use a publisher that numbers its batches (three frames)";
        return Finding::warn("batches carry no number: a lost one is never noticed", fix);
    }
    Finding::ok(format!("{batches} batches, numbered without a gap")).found(batches)
}

/// Checks that engine hashes resolve to our blocks: the blocks of a continued prompt have
/// previously announced blocks as parents.
fn hash_alias(subject: &CheckSubject<'_>) -> Finding {
    let probes = &subject.seen.probes;
    let Some(arrival) = &probes.arrival else {
        return Finding::skip(unprobed(&probes.outcome));
    };
    if arrival.whole == 0 {
        return Finding::skip("the engine does not tell the token ids of a prompt");
    }
    let (blocks, whole) = (arrival.blocks, arrival.whole);
    if blocks < whole {
        let message =
            format!("of a prompt of {whole} blocks only {blocks} are found by what its events say");
        let fix = "look for `orphans` and `ignored` in /admin/streams: parents are missing, or blocks carry no tokens";
        return Finding::fail(message, fix).found(blocks).expected(whole);
    }
    Finding::ok(format!(
        "all {whole} blocks of a continued prompt are found by what its events say"
    ))
    .found(blocks)
}

fn medium_known(subject: &CheckSubject<'_>, observations: &[&PublisherObservation]) -> Finding {
    let unknown: Vec<&str> = observations
        .iter()
        .flat_map(|observation| &observation.unknown_media)
        .map(String::as_str)
        .collect();
    if unknown.is_empty() {
        return Finding::ok("all media are known");
    }
    let names = unknown.join(", ");
    if !subject.worker.allow_tiers.contains(&Tier::Disk) {
        let message = format!(
            "blocks lie on unknown media ({names}): they do not count, as {} says",
            subject.key("allow_tiers")
        );
        return Finding::warn(message, "report the medium's name").found(names);
    }
    let fix = format!(
        "set {}: [device, host] if it cannot be read back, and report its name",
        subject.key("allow_tiers")
    );
    let arrival = subject.seen.probes.arrival.as_ref();
    let finding = match arrival.filter(|arrival| arrival.blocks > 0 && arrival.device == 0) {
        Some(_) => Finding::fail(
            format!(
                "blocks of a request are announced on an unknown medium only ({names}): none counts as on the device"
            ),
            fix,
        ),
        None => Finding::warn(
            format!("blocks lie on unknown media ({names}): they count as disk"),
            fix,
        ),
    };
    finding.found(names)
}

fn hybrid_groups(subject: &CheckSubject<'_>, observations: &[&PublisherObservation]) -> Finding {
    let partial: Vec<&str> = observations
        .iter()
        .flat_map(|observation| &observation.partial_groups)
        .map(String::as_str)
        .collect();
    if partial.is_empty() {
        return Finding::ok("every announced block stands for all of its tokens");
    }
    if observations
        .iter()
        .all(|observation| observation.usable_stores == 0)
    {
        let message = format!(
            "all announced blocks are of groups that do not hold every token: {}",
            partial.join(", ")
        );
        let fix = format!(
            "set {}: none: what it has cached is guessed then, until a release also announces its groups of full attention",
            subject.key("kv_events.source")
        );
        return Finding::fail(message, fix)
            .found(partial.join(", "))
            .expected("full_attention");
    }
    let message = format!(
        "a hybrid model: only groups of full attention are credited, not {}; a hit may be shorter than predicted",
        partial.join(", ")
    );
    Finding::warn(message, "watch /admin/parity for this worker").found(partial.join(", "))
}

fn clock(subject: &CheckSubject<'_>, observations: &[&PublisherObservation]) -> Finding {
    let ages = observations
        .iter()
        .filter_map(|observation| observation.age_s)
        .filter(|age| age.abs() < NO_TIME_S);
    let Some(age) = ages.reduce(|one, other| if one.abs() > other.abs() { one } else { other })
    else {
        return Finding::skip("batches carry no time of this day");
    };
    // Late events are old although no clock is wrong.
    let late = subject
        .seen
        .probes
        .arrival
        .as_ref()
        .map_or(0.0, |arrival| arrival.after.as_secs_f64());
    let apart = if (0.0..=late + CLOCK_APART_S).contains(&age) {
        age.min(CLOCK_APART_S)
    } else {
        age
    };
    if apart.abs() <= CLOCK_APART_S {
        return Finding::ok("the clocks agree").found(format!("{age:.3} s"));
    }
    let side = if age > 0.0 { "behind" } else { "ahead of" };
    let message = format!(
        "the engine's clock is {:.1} s {side} ours, or its events are late",
        age.abs()
    );
    let fix = "synchronise the clocks of both machines by NTP: timedatectl set-ntp true";
    let finding = if apart.abs() > CLOCK_WRONG_S {
        Finding::fail(message, fix)
    } else {
        Finding::warn(message, fix)
    };
    finding.found(format!("{age:.1} s")).expected("0 s")
}

#[cfg(test)]
mod tests {
    use super::super::fixture::CheckFixture;
    use api::CheckStatus;

    #[test]
    fn lost_and_undecodable_batches_fail_the_sequence_check() {
        let mut fixture = CheckFixture::healthy();
        fixture.observation().numbers.missed = 2;
        assert_eq!(fixture.failed(), ["sequence"]);
        let mut fixture = CheckFixture::healthy();
        fixture.observation().unreadable = 1;
        assert_eq!(fixture.failed(), ["sequence"]);
        let mut fixture = CheckFixture::healthy();
        fixture.observation().numbers.unnumbered = 1;
        assert_eq!(fixture.check("sequence").status, CheckStatus::Warn);
    }

    #[test]
    fn a_broken_parent_chain_is_a_failure() {
        let mut fixture = CheckFixture::healthy();
        fixture
            .seen
            .probes
            .arrival
            .as_mut()
            .expect("a healthy scene has one")
            .blocks = 2;
        assert_eq!(fixture.failed(), ["hash_alias"]);
    }

    #[test]
    fn clocks_far_apart_are_a_failure_and_an_implausible_time_is_skipped() {
        for (age, status) in [
            (4.0, CheckStatus::Ok),
            (-7.5, CheckStatus::Warn),
            (61.0, CheckStatus::Fail),
            (-3_600.0, CheckStatus::Fail),
            (100_000.0, CheckStatus::Skip),
            (1.7e9, CheckStatus::Skip),
        ] {
            let mut fixture = CheckFixture::healthy();
            fixture.observation().age_s = Some(age);
            assert_eq!(fixture.check("clock").status, status, "{age}");
            assert_eq!(
                fixture.failed(),
                if status == CheckStatus::Fail {
                    &["clock"][..]
                } else {
                    &[]
                },
                "{age}"
            );
        }
    }

    #[test]
    fn blocks_that_can_never_be_credited_are_a_failure() {
        let mut fixture = CheckFixture::healthy();
        fixture
            .observation()
            .unknown_media
            .insert("TAPE".to_owned());
        fixture
            .seen
            .probes
            .arrival
            .as_mut()
            .expect("a healthy scene has one")
            .device = 0;
        assert_eq!(fixture.failed(), ["medium_known"]);
        let mut fixture = CheckFixture::healthy();
        fixture
            .observation()
            .partial_groups
            .insert("mamba".to_owned());
        (
            fixture.observation().usable_stores,
            fixture.seen.probes.arrival,
        ) = (0, None);
        assert_eq!(fixture.failed(), ["hybrid_groups"]);
        assert_eq!(fixture.check("events_arriving").status, CheckStatus::Ok);
    }

    #[test]
    fn a_fault_that_only_weakens_predictions_is_a_warning() {
        let mut fixture = CheckFixture::healthy();
        fixture
            .observation()
            .unknown_media
            .insert("TAPE".to_owned());
        fixture
            .observation()
            .partial_groups
            .insert("mamba".to_owned());
        fixture.observation().age_s = Some(-7.5);
        for id in ["medium_known", "hybrid_groups", "clock"] {
            assert_eq!(fixture.check(id).status, CheckStatus::Warn, "{id}");
        }
        assert!(
            fixture
                .check("clock")
                .message
                .contains("7.5 s ahead of ours")
        );
        assert_eq!(fixture.failed(), [""; 0]);
    }
}
