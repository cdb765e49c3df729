//! Checks data-parallel ranks: their number, and whether each one's events come from its own
//! socket.

use fleet::WorkerProbe;

use super::{CheckSubject, Finding, Findings, cache::unprobed, flags::EngineFlags};

/// Checks the number of ranks, before any check of a single rank.
pub(super) fn count(subject: &CheckSubject<'_>, probe: &WorkerProbe, findings: &mut Findings) {
    findings.set(
        "dp_ranks",
        dp_ranks(subject, probe, engine_ranks(subject, probe)),
    );
}

/// Checks the endpoint of each rank.
pub(super) fn endpoints(subject: &CheckSubject<'_>, probe: &WorkerProbe, findings: &mut Findings) {
    let ranks = engine_ranks(subject, probe);
    findings.set(
        "dp_offset",
        dp_offset(subject, ranks, findings.failed("dp_ranks")),
    );
}

/// Returns the engine's number of ranks: from its announcement, else from its metrics, else from
/// the ranks in batches.
pub(super) fn engine_ranks(subject: &CheckSubject<'_>, probe: &WorkerProbe) -> Option<u32> {
    let announced = probe
        .announced
        .iter()
        .flatten()
        .map(|endpoint| endpoint.rank + 1)
        .max();
    let observed = subject
        .seen
        .streams
        .iter()
        .flat_map(|stream| &stream.observation.ranks)
        .max()
        .map(|rank| rank + 1);
    announced
        .into_iter()
        .chain((probe.metrics_ranks > 0).then_some(probe.metrics_ranks))
        .max()
        .or(observed)
}

/// Returns the number of ranks known to both sides: only their streams can be checked.
pub(super) fn shared_ranks(subject: &CheckSubject<'_>, probe: &WorkerProbe) -> u32 {
    let configured = subject.worker.dp_ranks.map(std::num::NonZeroU32::get);
    let own = engine_ranks(subject, probe);
    configured.into_iter().chain(own).min().unwrap_or(1)
}

fn dp_ranks(subject: &CheckSubject<'_>, probe: &WorkerProbe, own: Option<u32>) -> Finding {
    let configured = subject.worker.dp_ranks.map(std::num::NonZeroU32::get);
    let Some(own) = own else {
        return Finding::skip("the engine does not tell how many ranks it has");
    };
    match configured {
        Some(configured) if configured != own => {
            let fix = format!(
                "set {key}: {own}, or leave it at auto, or {engine}",
                key = subject.key("dp_ranks"),
                engine = EngineFlags::of(probe.engine).ranks(configured)
            );
            let message = format!(
                "data-parallel ranks: the engine has {own}, the router counts {configured}"
            );
            Finding::fail(message, fix).found(own).expected(configured)
        }
        _ => Finding::ok(if own == 1 {
            "one rank".to_owned()
        } else {
            format!("{own} ranks")
        })
        .found(own),
    }
}

fn dp_offset(subject: &CheckSubject<'_>, own: Option<u32>, miscounted: bool) -> Finding {
    let probes = &subject.seen.probes;
    if own.unwrap_or(1) < 2 {
        return Finding::skip("there is one rank only");
    }
    if miscounted {
        return Finding::skip("the ranks are miscounted");
    }
    if probes.ranks.is_empty() {
        return Finding::skip(unprobed(&probes.outcome));
    }
    if probes.arrival.is_none() {
        return Finding::skip("no events arrive");
    }
    let key = subject.key("kv_events.endpoint");
    for (rank, observed) in &probes.ranks {
        let fix = format!(
            "let each rank publish on the port of rank 0 plus its number, and name rank 0's in {key}, or leave that at auto"
        );
        match observed {
            Some(observed) if observed == rank => {}
            Some(observed) if names_itself(subject, *observed) && names_itself(subject, *rank) => {
                return Finding::skip(format!(
                    "a request for rank {rank} ran on rank {observed}: the engine does not let requests choose"
                ));
            }
            Some(observed) => {
                let message =
                    format!("blocks of rank {rank} are announced on the socket of rank {observed}");
                return Finding::fail(message, fix).found(observed).expected(rank);
            }
            None => {
                let message =
                    format!("blocks of rank {rank} are announced on no socket that is listened to");
                return Finding::fail(message, fix).found("none").expected(rank);
            }
        }
    }
    Finding::ok("each rank's blocks are announced on its own socket")
}

/// Returns whether the batches on a rank's socket name this rank and no other.
fn names_itself(subject: &CheckSubject<'_>, rank: u32) -> bool {
    let own = subject
        .seen
        .streams
        .iter()
        .filter(|stream| stream.endpoint.rank == rank);
    own.flat_map(|stream| &stream.observation.ranks)
        .all(|named| *named == rank)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::CheckFixture;
    use api::CheckStatus;

    #[test]
    fn miscounted_ranks_are_one_failure_either_way() {
        for (configured, own) in [(2, 1), (1, 2)] {
            let mut fixture = CheckFixture::configured(&format!("dp_ranks: {configured}"));
            fixture.announce(own);
            assert_eq!(fixture.failed(), ["dp_ranks"], "{configured} {own}");
            let fix = fixture.check("dp_ranks").fix;
            assert!(
                fix.is_some_and(|fix| fix.starts_with(&format!("set workers[0].dp_ranks: {own}")))
            );
        }
    }

    #[test]
    fn a_rank_that_publishes_on_anothers_socket_is_reported() {
        let mut fixture = CheckFixture::healthy();
        fixture.announce(2);
        fixture.seen.probes.ranks = vec![(1, Some(1))];
        assert_eq!(fixture.check("dp_offset").status, CheckStatus::Ok);
        for observed in [Some(0), None] {
            fixture.seen.probes.ranks = vec![(1, observed)];
            fixture.observation().ranks = [0, 1].into();
            assert_eq!(fixture.failed(), ["dp_offset"]);
        }
        // Its own batches name rank 0 only: rank 1 did not run the request.
        fixture.seen.probes.ranks = vec![(1, Some(0))];
        fixture.observation().ranks = [0].into();
        assert_eq!(fixture.check("dp_offset").status, CheckStatus::Skip);
        assert_eq!(fixture.failed(), [""; 0]);
    }
}
