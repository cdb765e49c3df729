//! `GET /admin/kv-index/digest` and `/dump`.

use std::{collections::HashMap, sync::Arc};

use axum::{extract::State, response::Response};
use kv_blocks::WorkerId;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{AdminParts, answer};

pub(crate) async fn digest(State(parts): State<Arc<AdminParts>>) -> Response {
    let names = names(&parts);
    let targets: Vec<Value> = parts
        .index
        .digest()
        .into_iter()
        .map(|row| {
            json!({
                "worker": names.get(&row.target.worker),
                "dp_rank": row.target.rank.0,
                "tier": row.tier.as_str(),
                "blocks": row.blocks,
                "digest": format!("{:016x}", row.digest),
            })
        })
        .collect();
    answer::json(&json!({"targets": targets}))
}

pub(crate) async fn dump(State(parts): State<Arc<AdminParts>>) -> Response {
    let names = names(&parts);
    let mut lines = Vec::new();
    parts.index.dump(&mut |row| {
        let line = json!({
            "model": row.namespace.model,
            "lora": row.namespace.lora,
            "salt": row.namespace.salt.as_deref().map(salt_digest),
            "block_size": row.namespace.block_size.tokens(),
            "worker": names.get(&row.target.worker),
            "dp_rank": row.target.rank.0,
            "tier": row.tier.as_str(),
            "depth": row.depth,
            "hash": row.hash.to_string(),
            "parent": row.parent.map(|parent| parent.to_string()),
        });
        lines.extend_from_slice(line.to_string().as_bytes());
        lines.push(b'\n');
    });
    answer::raw("application/x-ndjson", lines)
}

/// A salt is a secret between its tenants and the engine: only its digest is shown.
fn salt_digest(salt: &str) -> String {
    Sha256::digest(salt.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn names(parts: &AdminParts) -> HashMap<WorkerId, Arc<str>> {
    parts.fleet.snapshot().workers.iter().map(|worker| (worker.id, Arc::clone(&worker.name))).collect()
}
