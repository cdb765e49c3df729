//! The ring's part of a decision.

use std::{hint::black_box, sync::Arc};

use kv_blocks::{BlockSize, DpRank, Moment, Namespace, PromptIdentity, Target, WorkerId};
use kv_index::{IndexSettings, KvIndex};
use routing::{
    Affinity, CacheSource, Candidate, Job, JobAffinity, JobPrompt, LmcacheFacts, Policy, Router,
    RoutingSettings, TargetPool, Tiers,
};

use crate::{figures::BoundedFigure, stopwatch::us_per_call};

const CALLS: u32 = 1_000;

/// The time that a decision by the ring takes longer than one that goes by the load alone, for
/// several sizes of a fleet.
pub(crate) fn figures() -> Vec<BoundedFigure> {
    [8, 64, 512]
        .into_iter()
        .map(|count| {
            let candidates: Vec<Candidate> = (0..count).map(candidate).collect();
            let [ring, load] = [Policy::PrefixHash, Policy::LeastLoaded]
                .map(|policy| decision(policy, &candidates));
            BoundedFigure {
                contract: "CK79",
                what: format!("ring lookup among {count} workers of 150 points"),
                measured: (ring - load).max(0.0),
                at_most: 5.0,
                unit: "us",
            }
        })
        .collect()
}

fn decision(policy: Policy, candidates: &[Candidate]) -> f64 {
    let index = Arc::new(KvIndex::new(IndexSettings::default()));
    let settings = RoutingSettings {
        policy,
        ..RoutingSettings::default()
    };
    let router = Router::new(settings, index);
    us_per_call(CALLS, |n| {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&n.wrapping_mul(0x9e37_79b9).to_be_bytes());
        let job = Job {
            targets: TargetPool {
                candidates,
                ..TargetPool::default()
            },
            prompt: JobPrompt {
                blocks: None,
                tokens: 64,
                ..JobPrompt::default()
            },
            affinity: JobAffinity {
                keys: Affinity {
                    prefix_key: Some(key),
                    ..Affinity::default()
                },
                ..JobAffinity::default()
            },
            random: u64::from(n),
            ..Job::default()
        };
        let decision = router.preview(Moment::START, black_box(&job));
        black_box(decision.is_ok());
    })
}

fn candidate(number: u32) -> Candidate {
    Candidate {
        target: Target {
            worker: WorkerId(number),
            rank: DpRank(0),
        },
        name: format!("w{number}").into(),
        namespace: Namespace {
            model: "m".into(),
            lora: None,
            salt: None,
            block_size: BlockSize::new(16).expect("a block size"),
            identity: PromptIdentity::Tokens,
        },
        weight: 1.0,
        cache: CacheSource::Events,
        total_blocks: None,
        tiers: Tiers::default(),
        stream_state: None,
        health: "ready",
        lmcache: LmcacheFacts::default(),
        usage: None,
        fetches: false,
    }
}
