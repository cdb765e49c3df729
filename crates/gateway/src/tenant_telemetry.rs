//! The counts of tenants, read at each scrape: under our names, and under those of vLLM Router.

use std::{collections::BTreeMap, fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};
use tenants::{TenantCounts, Tenants};

use crate::name_labels::NameLabels;

/// Reads the counts of the tenants in force.
#[derive(Debug)]
pub(crate) struct TenantCollector {
    pub(crate) tenants: Arc<Tenants>,
    pub(crate) labels: Arc<NameLabels>,
}

/// A counter without another label: its name, its help text and its value.
type PlainCounter = (&'static str, &'static str, fn(&TenantCounts) -> u64);
/// A counter with another label: its name, its help text, the label, and its values.
type LabelledCounter = (&'static str, &'static str, &'static str, Values);
type Values = fn(&TenantCounts) -> Vec<(&'static str, u64)>;

const PLAIN: [PlainCounter; 5] = [
    (
        "warmroute_tenant_requests",
        "Requests by tenant, also refused ones",
        |counts| counts.requests,
    ),
    (
        "warmroute_tenant_errors",
        "Requests that ended in an error other than a limit, by tenant",
        |counts| counts.errors,
    ),
    (
        "vllm_router_tenant_requests",
        "Requests by tenant, also refused ones",
        |counts| counts.requests,
    ),
    (
        "vllm_router_tenant_errors",
        "Requests that ended in an error other than a limit, by tenant",
        |counts| counts.errors,
    ),
    (
        "vllm_router_tenant_rate_limited",
        "Requests above a limit of their tenant",
        TenantCounts::limited,
    ),
];

const LABELLED: [LabelledCounter; 3] = [
    (
        "warmroute_tenant_limited",
        "Requests above a limit of their tenant",
        "limit",
        |counts| {
            vec![
                ("rate", counts.rate_limited),
                ("concurrency", counts.concurrency_limited),
                ("streams", counts.stream_limited),
                ("tokens", counts.token_limited),
            ]
        },
    ),
    (
        "warmroute_tenant_tokens",
        "Tokens that workers reported, by tenant; cached ones are a part of the prompt's",
        "kind",
        |counts| {
            let mut tokens = token_counts(counts);
            tokens.push(("cached", counts.cached_tokens));
            tokens
        },
    ),
    (
        "vllm_router_tenant_tokens",
        "Tokens that workers reported, by tenant",
        "kind",
        token_counts,
    ),
];

fn token_counts(counts: &TenantCounts) -> Vec<(&'static str, u64)> {
    vec![
        ("prompt", counts.prompt_tokens),
        ("completion", counts.completion_tokens),
    ]
}

impl TenantCollector {
    /// Returns the counts by label; tenants without a label of their own are one sum.
    fn counts(&self) -> BTreeMap<Arc<str>, TenantCounts> {
        let mut counts = BTreeMap::<Arc<str>, TenantCounts>::new();
        for tenant in self.tenants.table().tenants() {
            let sum = counts.entry(self.labels.label(tenant.name())).or_default();
            *sum = [*sum, tenant.counts()].into_iter().sum();
        }
        counts
    }
}

impl Collector for TenantCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let all = self.counts();
        for (name, help, value) in PLAIN {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (tenant, counts) in &all {
                let labels = [("tenant", &**tenant)];
                let series = family.encode_family(&labels)?;
                ConstCounter::new(value(counts)).encode(series)?;
            }
        }
        for (name, help, label, values) in LABELLED {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (tenant, counts) in &all {
                for (kind, value) in values(counts) {
                    let labels = [("tenant", &**tenant), (label, kind)];
                    let series = family.encode_family(&labels)?;
                    ConstCounter::new(value).encode(series)?;
                }
            }
        }
        let (name, help) = ("warmroute_tenant_in_flight", "Running requests by tenant");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (tenant, counts) in &all {
            let labels = [("tenant", &**tenant)];
            let series = family.encode_family(&labels)?;
            let in_flight = i64::try_from(counts.in_flight).unwrap_or(i64::MAX);
            ConstGauge::new(in_flight).encode(series)?;
        }
        let (name, help) = (
            "warmroute_tenant_limit_routers",
            "Routers that share the limits of tenants, as this one counts them",
        );
        let series = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::from(self.tenants.routers().get())).encode(series)
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use kv_blocks::Moment;
    use prometheus_client::{encoding::text::encode, registry::Registry};
    use tenants::{KeyVerdict, ReportedTokens, Scope, TenantSecrets, TenantsSection};

    use super::*;

    fn page(tenants: &Arc<Tenants>) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(TenantCollector {
            tenants: Arc::clone(tenants),
            labels: Arc::default(),
        }));
        let mut page = String::new();
        encode(&mut page, &registry).expect("a page");
        page
    }

    #[test]
    #[contract("V32")]
    fn the_counts_of_a_tenant_stand_under_both_names() {
        let tenants = Arc::new(Tenants::new(
            &TenantsSection::default(),
            TenantSecrets::of_key("k"),
        ));
        let table = tenants.table();
        let KeyVerdict::Tenant(tenant) = table.verdict(Some(b"k"), 0) else {
            panic!("the key is accepted");
        };
        let permit = tenant.admit(Scope::Chat, Moment::START).expect("no limits");
        permit.count_error();
        permit.count_tokens(ReportedTokens {
            prompt: 7,
            cached: 5,
            completion: 3,
        });
        let page = page(&tenants);
        for line in [
            "warmroute_tenant_requests_total{tenant=\"default\"} 1",
            "warmroute_tenant_errors_total{tenant=\"default\"} 1",
            "warmroute_tenant_limited_total{tenant=\"default\",limit=\"rate\"} 0",
            "warmroute_tenant_limited_total{tenant=\"default\",limit=\"streams\"} 0",
            "warmroute_tenant_limited_total{tenant=\"default\",limit=\"tokens\"} 0",
            "warmroute_tenant_limit_routers 1",
            "warmroute_tenant_tokens_total{tenant=\"default\",kind=\"prompt\"} 7",
            "warmroute_tenant_tokens_total{tenant=\"default\",kind=\"cached\"} 5",
            "warmroute_tenant_in_flight{tenant=\"default\"} 1",
            "vllm_router_tenant_requests_total{tenant=\"default\"} 1",
            "vllm_router_tenant_errors_total{tenant=\"default\"} 1",
            "vllm_router_tenant_rate_limited_total{tenant=\"default\"} 0",
            "vllm_router_tenant_tokens_total{tenant=\"default\",kind=\"completion\"} 3",
        ] {
            assert!(page.lines().any(|there| there == line), "{line}\n{page}");
        }
    }
}
