//! The blocks that a target holds, looked up in the index by their tokens.

use std::{sync::Arc, time::Duration};

use event_sources::{SourceHandle, StreamReport};
use kv_blocks::{BlockSize, HashScheme, Moment, Namespace, PromptIdentity, SequenceHash, Target};
use kv_index::KvIndex;

pub(crate) const BLOCK: u32 = 4;
/// Time limit of a wait; only a failing test reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn namespace(model: &str) -> Namespace {
    let block_size = BlockSize::new(BLOCK.into()).unwrap();
    Namespace {
        model: model.into(),
        lora: None,
        salt: None,
        block_size,
        identity: PromptIdentity::Tokens,
    }
}

/// Returns the plain rolling hash of a root block of tokens `n, n, n, n`.
pub(crate) fn plain(n: u32) -> SequenceHash {
    HashScheme::default().chain(
        None,
        &[n; BLOCK as usize],
        BlockSize::new(BLOCK.into()).unwrap(),
    )[0]
}

/// Returns the root blocks of tokens `n, n, n, n`, `n` in `0..10`, that the target holds, each with
/// its best tier.
pub(crate) fn resident(index: &KvIndex, target: Target) -> Vec<(u32, &'static str)> {
    resident_of(index, target, &namespace("m"))
}

pub(crate) fn resident_of(
    index: &KvIndex,
    target: Target,
    namespace: &Namespace,
) -> Vec<(u32, &'static str)> {
    let tier = |n: u32| {
        let found = index.lookup(namespace, &[plain(n)], Moment::START);
        let blocks = found
            .iter()
            .find(|overlap| overlap.target == target)?
            .blocks;
        let tiers = [
            (blocks.device, "device"),
            (blocks.host, "host"),
            (blocks.disk, "disk"),
            (blocks.remote, "remote"),
        ];
        tiers
            .iter()
            .find(|(count, _)| *count == 1)
            .map(|(_, name)| (n, *name))
    };
    (0..10).filter_map(tier).collect()
}

/// Waits until the source's report satisfies a condition.
pub(crate) async fn until(
    source: &SourceHandle,
    what: &str,
    matches_report: impl Fn(&StreamReport) -> bool,
) -> StreamReport {
    let mut changes = source.changes();
    let wait = async {
        loop {
            let report = source.report();
            if matches_report(&report) {
                return report;
            }
            changes.changed().await.unwrap();
        }
    };
    match tokio::time::timeout(PATIENCE, wait).await {
        Ok(report) => report,
        Err(_) => panic!("{what} never came: {:?}", source.report()),
    }
}

/// Waits until the target holds exactly these blocks.
pub(crate) async fn until_resident(
    source: &SourceHandle,
    index: &Arc<KvIndex>,
    target: Target,
    blocks: &[(u32, &'static str)],
) -> StreamReport {
    until(source, &format!("{target:?} holding {blocks:?}"), |_| {
        resident(index, target) == blocks
    })
    .await
}
