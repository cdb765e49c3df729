//! Health, liveness and readiness of the router itself.

use std::sync::atomic::Ordering;

use api::{HealthReply, ProbeReply, WorkerCounts};

use crate::{Gateway, memory::MemoryStage};

/// Returns the reply of a probe that succeeds.
pub(crate) fn healthy() -> ProbeReply {
    ProbeReply {
        status: "ok".into(),
        reasons: Vec::new(),
    }
}

/// Returns the reply of a probe that fails.
pub(crate) fn failing(status: &'static str, reason: &'static str) -> ProbeReply {
    ProbeReply {
        status: status.into(),
        reasons: vec![reason.into()],
    }
}

/// Returns the readiness while the process drains.
pub(crate) fn draining() -> ProbeReply {
    failing("draining", "no new requests are taken")
}

impl Gateway {
    /// Returns the health of this router; without names only the kinds of what is degraded.
    pub(crate) fn health(&self, with_names: bool) -> HealthReply {
        let snapshot = self.fleet().snapshot();
        let (ready, total) = (snapshot.ready(), snapshot.workers.len());
        let mut degraded: Vec<String> = snapshot
            .models
            .values()
            .filter(|model| model.artefacts.problem.is_some())
            .map(|model| format!("tokenizer:{}", model.id))
            .collect();
        // Without TLS verification any server that answers passes for the worker: that always
        // counts as degraded.
        degraded.extend(
            snapshot
                .workers
                .iter()
                .filter(|it| !it.connection.verified)
                .map(|it| format!("tls:{}", it.name)),
        );
        degraded.extend(
            self.reply_cache
                .store
                .absent()
                .into_iter()
                .map(str::to_owned),
        );
        if self
            .fleet()
            .prefixes()
            .is_some_and(fleet::PrefixViewService::is_cut_off)
        {
            degraded.push("redis".to_owned());
        }
        if self.lifecycle.config_refused.load(Ordering::Relaxed) {
            degraded.push("config".to_owned());
        }
        if self.edge.admission.memory.stage() > MemoryStage::Normal {
            degraded.push("memory".to_owned());
        }
        if !with_names {
            degraded.iter_mut().for_each(remove_name);
        }
        degraded.sort();
        degraded.dedup();
        let status = match (ready, degraded.is_empty()) {
            (0, _) => "unavailable",
            (ready, true) if ready == total => "ok",
            _ => "degraded",
        };
        HealthReply {
            status: status.into(),
            workers: WorkerCounts { ready, total },
            degraded,
        }
    }

    /// Returns the state in which both probes fail: clients cannot connect, and this process is
    /// about to end.
    pub(crate) fn failure(&self) -> Option<ProbeReply> {
        self.lifecycle
            .failed
            .borrow()
            .then(|| failing("failed", "the data listener cannot accept connections"))
    }

    pub(crate) fn live(&self) -> ProbeReply {
        self.failure().unwrap_or_else(healthy)
    }

    pub(crate) fn ready(&self) -> ProbeReply {
        if let Some(failure) = self.failure() {
            failure
        } else if self.lifecycle.leaving.load(Ordering::Relaxed) {
            draining()
        } else if self.fleet().snapshot().ready() > 0 {
            healthy()
        } else {
            failing("unavailable", "no usable worker")
        }
    }
}

/// Leaves of `tokenizer:qwen` the kind `tokenizer`.
fn remove_name(part: &mut String) {
    let kind = part.find(':').unwrap_or(part.len());
    part.truncate(kind);
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use crate::request::test_gateway::TestGateway;

    use super::*;

    #[tokio::test]
    async fn without_a_usable_worker_the_router_lives_and_is_not_ready() {
        let test = TestGateway::new();
        assert_eq!(test.gateway.live().status, "ok");
        let ready = test.gateway.ready();
        assert_eq!((&*ready.status, ready.reasons.len()), ("unavailable", 1));
        let health = test.gateway.health(true);
        assert_eq!((&*health.status, health.workers.total), ("unavailable", 0));
        assert!(health.degraded.is_empty());
    }

    #[tokio::test]
    async fn a_drain_ends_readiness_and_a_failure_both_probes() {
        let test = TestGateway::new();
        test.gateway
            .lifecycle
            .leaving
            .store(true, Ordering::Relaxed);
        assert_eq!(test.gateway.ready().status, "draining");
        assert_eq!(test.gateway.live().status, "ok");
        test.gateway.fail();
        assert_eq!(test.gateway.ready().status, "failed");
        assert_eq!(test.gateway.live().status, "failed");
    }

    #[tokio::test]
    async fn health_lists_what_is_degraded_by_name_and_in_order() {
        let test = TestGateway::new();
        test.gateway.set_config_refused(true);
        test.gateway
            .edge
            .admission
            .memory
            .observe(Some(85), Some(100));
        assert_eq!(test.gateway.health(true).degraded, ["config", "memory"]);
        test.gateway.set_config_refused(false);
        assert_eq!(test.gateway.health(true).degraded, ["memory"]);
    }

    #[test]
    #[contract("S1")]
    fn the_kind_of_a_part_is_what_stands_before_its_name() {
        for (part, kind) in [
            ("tokenizer:org/m:8b", "tokenizer"),
            ("tls:w1", "tls"),
            ("redis", "redis"),
        ] {
            let mut shown = part.to_owned();
            remove_name(&mut shown);
            assert_eq!(shown, kind, "{part}");
        }
    }
}
