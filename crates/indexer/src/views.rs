//! Views of the registrations and of the index content.

use std::{collections::BTreeMap, sync::Arc};

use api::{CachedTokens, InstanceTokens, ModelInstances, ServiceReport, ServiceStream};
use kv_blocks::Tier;

use crate::{ResidentInstance, registration::DEFAULT_TENANT, registry::InstanceRank};

/// Returns the registrations of a rank as `/services` lists them.
pub(crate) fn services(instance_rank: &InstanceRank) -> impl Iterator<Item = ServiceReport> {
    instance_rank.registrations().map(|(registration, source)| {
        // Whoever registers an address must not learn of it what answers there.
        let report = source.reduced_report();
        ServiceReport {
            state: Some(report.state),
            stream: Some(ServiceStream {
                last_seq: report.last_seq,
                last_event_at: report.last_event_at,
                counts: report.counts,
                other_block_size: source.other_block_size(),
                last_error: report.last_error,
            }),
            ..registration.report()
        }
    })
}

/// Returns a router's worker as `/services` lists it. `/admin/streams` shows the source of its
/// events.
pub(crate) fn resident_service(resident: &ResidentInstance) -> ServiceReport {
    ServiceReport {
        endpoint: None,
        replay_endpoint: None,
        publisher_type: resident.engine.into(),
        modelname: resident.model.clone(),
        lora_name: "".into(),
        tenant_id: DEFAULT_TENANT.into(),
        instance_id: Arc::clone(&resident.instance),
        block_size: resident.block_size,
        dp_rank: resident.target.rank.0,
        additionalsalt: "".into(),
        source: "router".into(),
        state: resident.state.map(Into::into),
        stream: None,
    }
}

/// Content of the index, by model and block size.
#[derive(Debug, Default)]
pub(crate) struct IndexContent(BTreeMap<(Option<Arc<str>>, u32), Vec<InstanceTokens>>);

impl IndexContent {
    /// Adds a rank, and the number of its blocks in each tier.
    pub(crate) fn add(&mut self, service: ServiceReport, blocks: [u64; Tier::ALL.len()]) {
        let size = service.block_size;
        let [device, host, disk, remote] = blocks.map(|blocks| blocks * u64::from(size));
        let instance = InstanceTokens {
            instance_id: service.instance_id,
            tenant_id: service.tenant_id,
            dp_rank: service.dp_rank,
            tokens: CachedTokens {
                device,
                host,
                disk,
                remote: (remote > 0).then_some(remote),
            },
        };
        let of = (service.modelname, size);
        self.0.entry(of).or_default().push(instance);
    }

    pub(crate) fn into_models(self) -> Vec<ModelInstances> {
        let report = |((model, block_size), instances)| ModelInstances {
            model,
            block_size,
            instances,
        };
        self.0.into_iter().map(report).collect()
    }
}
