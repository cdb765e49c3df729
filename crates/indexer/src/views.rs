//! Views of the registrations and of the index content.

use std::{collections::BTreeMap, sync::Arc};

use kv_blocks::Tier;
use serde_json::{Value, json};

use crate::{
    ResidentInstance,
    query_reply::medium,
    registration::{DEFAULT_TENANT, Registration},
    registry::InstanceRank,
};

/// Returns the registrations of a rank as `/services` lists them.
pub(crate) fn services(seat: &InstanceRank) -> impl Iterator<Item = Value> {
    seat.registrations().map(|(registration, source)| {
        let report = source.report();
        let mut service = registration.json();
        service["source"] = json!("registered");
        service["state"] = json!(report.state);
        service["last_seq"] = json!(report.last_seq);
        service["last_event_at"] = json!(report.last_event_at);
        service["counts"] = json!(report.counts);
        // Blocks of a size that no query uses are counted and not stored.
        service["other_block_size"] = json!(source.other_block_size());
        service["last_error"] = json!(report.last_error);
        service
    })
}

/// Returns a router's worker as `/services` lists it. `/admin/streams` shows the source of its
/// events.
pub(crate) fn resident_service(resident: &ResidentInstance) -> Value {
    json!({
        "endpoint": null,
        "replay_endpoint": null,
        "type": resident.engine,
        "modelname": resident.model,
        "lora_name": "",
        "tenant_id": DEFAULT_TENANT,
        "instance_id": resident.instance,
        "block_size": resident.block_size,
        "dp_rank": resident.target.rank.0,
        "additionalsalt": "",
        "source": "router",
        "state": resident.state,
    })
}

/// Content of the index, by model and block size.
#[derive(Debug, Default)]
pub(crate) struct GlobalView(BTreeMap<(Option<Arc<str>>, u32), Vec<Value>>);

impl GlobalView {
    pub(crate) fn add(&mut self, registration: &Registration, blocks: [u64; Tier::ALL.len()]) {
        let key = &registration.key;
        let size = registration.block_size.tokens();
        self.push(
            Some(&registration.model),
            size,
            json!({
                "instance_id": key.instance,
                "tenant_id": key.tenant,
                "dp_rank": key.rank,
                "tokens": tokens(blocks, size),
            }),
        );
    }

    pub(crate) fn add_resident(
        &mut self,
        resident: &ResidentInstance,
        blocks: [u64; Tier::ALL.len()],
    ) {
        let size = resident.block_size;
        self.push(
            resident.model.as_ref(),
            size,
            json!({
                "instance_id": resident.instance,
                "tenant_id": DEFAULT_TENANT,
                "dp_rank": resident.target.rank.0,
                "tokens": tokens(blocks, size),
            }),
        );
    }

    fn push(&mut self, model: Option<&Arc<str>>, block_size: u32, instance: Value) {
        self.0
            .entry((model.cloned(), block_size))
            .or_default()
            .push(instance);
    }

    pub(crate) fn json(self) -> Value {
        let models = self.0.into_iter().map(|((model, block_size), instances)| {
            json!({"model": model, "block_size": block_size, "instances": instances})
        });
        json!({"models": models.collect::<Vec<_>>()})
    }
}

/// Returns the tokens in each tier, keyed by the tier names of replies in lower case.
fn tokens(blocks: [u64; Tier::ALL.len()], block_size: u32) -> Value {
    let held = Tier::ALL.into_iter().zip(blocks);
    // The first three tiers are always present, the others only if they hold blocks.
    let shown = held.filter(|(tier, blocks)| *tier != Tier::Remote || *blocks > 0);
    shown
        .map(|(tier, blocks)| {
            (
                medium(tier).to_lowercase(),
                Value::from(blocks * u64::from(block_size)),
            )
        })
        .collect()
}
