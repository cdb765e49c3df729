//! Gauges of router, index and fleet, read at each scrape: nothing is counted twice and nothing can
//! drift. Leases and requests in flight belong to the gateway.

use std::{fmt, sync::Arc};

use ::response_cache::ResponseCache;
use fleet::{Fleet, Snapshot};
use kv_blocks::Tier;
use kv_index::{IndexStats, KvIndex};
use parity::ParityTracker;
use parking_lot::Mutex;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use routing::Router;

use crate::{
    AdminParts, Control,
    family_encoder::{FamilyEncoder, clamp_to_i64},
};

/// Workers with their own label; the speeds of the rest cannot be summed and are left out.
const MOST_WORKERS: usize = 1024;

/// Collector that reads the parts at each scrape.
pub(crate) struct Gauges {
    fleet: Arc<Fleet>,
    router: Arc<Router>,
    index: Arc<KvIndex>,
    parity: Arc<Mutex<ParityTracker>>,
    cache: Arc<ResponseCache>,
    control: Arc<dyn Control>,
    features: &'static str,
}

impl Gauges {
    pub(crate) fn of(parts: &AdminParts) -> Self {
        Self {
            fleet: Arc::clone(&parts.fleet),
            router: Arc::clone(&parts.router),
            index: Arc::clone(&parts.kv_index.index),
            parity: Arc::clone(&parts.decisions.parity),
            cache: Arc::clone(&parts.cache),
            control: Arc::clone(&parts.control),
            features: parts.metrics.features,
        }
    }
}

impl fmt::Debug for Gauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gauges")
    }
}

impl Collector for Gauges {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let snapshot = self.fleet.snapshot();
        let stats = self.index.stats();
        let mut blocks = [0u64; Tier::ALL.len()];
        for target in snapshot.workers.iter().flat_map(|worker| worker.targets()) {
            for (sum, more) in blocks.iter_mut().zip(self.index.blocks_per_tier(target)) {
                *sum += more;
            }
        }
        let mut out = FamilyEncoder(encoder);
        self.speeds(&mut out, &snapshot)?;
        self.parity(&mut out, &snapshot)?;
        index(&mut out, &stats, blocks)?;
        out.gauges(
            "warmroute_degraded",
            "Parts that do not work as configured (1: degraded)",
            self.degraded(&snapshot)
                .into_iter()
                .map(|(part, is)| ([("part", part)], i64::from(is))),
        )?;
        let build = [
            ("version", env!("CARGO_PKG_VERSION")),
            ("features", self.features),
        ];
        out.gauges("warmroute_build_info", "The program", [(build, 1)])
    }
}

impl Gauges {
    fn speeds(&self, out: &mut FamilyEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
        let named = snapshot.workers.iter().take(MOST_WORKERS);
        let speeds = named.map(|worker| {
            let rate = self.router.rates(worker.id).prefill_tokens_per_s;
            ([("worker", &*worker.name)], rate)
        });
        out.gauges(
            "warmroute_prefill_tokens_per_second",
            "How fast a worker is believed to compute prompts",
            speeds,
        )
    }
}

impl Gauges {
    /// A worker without a compared request has no series: neither 0 nor 1 would be true.
    fn parity(&self, out: &mut FamilyEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
        let mut ratios = Vec::new();
        for worker in snapshot.workers.iter().take(MOST_WORKERS) {
            let tracker = self.parity.lock();
            let ranks = worker
                .targets()
                .map(|target| tracker.exact_and_joined(target));
            let (exact, joined) = ranks.fold((0, 0), |sum, rank| (sum.0 + rank.0, sum.1 + rank.1));
            if joined > 0 {
                #[allow(clippy::cast_precision_loss, reason = "counts of requests")]
                ratios.push(([("worker", &*worker.name)], exact as f64 / joined as f64));
            }
        }
        let help = "Share of the window's requests whose cached tokens were predicted to the token";
        out.gauges("warmroute_parity_exact_ratio", help, ratios)
    }
}

fn index(
    out: &mut FamilyEncoder<'_>,
    stats: &IndexStats,
    blocks: [u64; Tier::ALL.len()],
) -> fmt::Result {
    let tiers = Tier::ALL
        .iter()
        .zip(blocks)
        .map(|(tier, blocks)| ([("tier", tier.as_str())], clamp_to_i64(blocks)));
    out.gauges(
        "warmroute_index_blocks",
        "Blocks that workers hold, over all workers",
        tiers,
    )?;
    out.gauge(
        "warmroute_index_memberships",
        "Pairs of block and holder in the index",
        stats.memberships,
    )?;
    out.gauge(
        "warmroute_index_bytes",
        "Bytes that the index takes, estimated",
        stats.bytes,
    )?;
    out.gauge(
        "warmroute_index_budget_bytes",
        "Bytes that the index may take",
        stats.budget_bytes,
    )?;
    let reason = [("reason", "memory_budget")];
    out.counters(
        "warmroute_index_shed",
        "Blocks that the index refused",
        [(reason, stats.shed)],
    )
}

impl Gauges {
    /// Lists every part that can be degraded, so that an alert on one never lacks its series.
    fn degraded(&self, snapshot: &Snapshot) -> [(&'static str, bool); 6] {
        let absent = self.cache.absent();
        let cut_off = self
            .fleet
            .prefixes()
            .is_some_and(fleet::PrefixViewService::is_cut_off);
        [
            (
                "workers",
                snapshot.ready() < snapshot.workers.len() || snapshot.workers.is_empty(),
            ),
            (
                "tokenizer",
                snapshot
                    .models
                    .values()
                    .any(|model| model.artefacts.problem.is_some()),
            ),
            (
                "tls",
                snapshot
                    .workers
                    .iter()
                    .any(|worker| !worker.connection.verified),
            ),
            ("config", self.control.is_refused()),
            ("redis", cut_off || absent.contains(&"redis")),
            ("s3", absent.contains(&"s3")),
        ]
    }
}
