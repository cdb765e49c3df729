//! Workers, models and requests of tests.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use config::{RequestSection, Secret};
use fleet::{EngineKind, ModelArtefacts, ModelCandidate, ModelView, WorkerState, WorkerView};
use http::{HeaderMap, Method, uri::PathAndQuery};
use kv_blocks::{DpRank, HashScheme, Moment, PromptBlocks, Target, WorkerId};
use net::{Clock, server::PeerAddress};
use prometheus_client::metrics::gauge::Gauge;
use proxy::{AbortSwitch, FakeUpstream};
use routing::{ReplyMode, SloTargets};
use tenants::{Isolation, KeyVerdict, Tenant, TenantEntry, TenantSecrets, Tenants, TenantsSection};
use tokenization::TokenizedPrompt;

use super::{
    accept::{AcceptedRequest, RequestSender},
    affinity::AffinityKeys,
    body_budget::{BodyBudget, BodyLimits, BodySender, BufferedBody},
    decide::RoutingFacts,
    dispatch::{AttemptTarget, Dispatcher},
    overrides::HeaderOverrides,
    prefill::Handover,
    translate::ApiSupport,
};

/// A ready vLLM worker with this number, named `wN`.
pub(crate) fn worker(number: u32) -> WorkerView {
    let url = format!("http://127.0.0.1:{}", 9000 + number);
    let mut worker = WorkerView::unknown(
        WorkerId(number),
        format!("w{number}").into(),
        url.parse().expect("a URL"),
        time::OffsetDateTime::UNIX_EPOCH,
    );
    worker.engine.kind = EngineKind::Vllm;
    worker.health.state = WorkerState::Ready;
    worker.cache.block_size_known = true;
    worker
}

pub(crate) fn target(worker: &WorkerView) -> Target {
    Target {
        worker: worker.id,
        rank: DpRank(0),
    }
}

/// A model that these workers serve.
pub(crate) fn model(workers: Vec<WorkerView>) -> ModelView {
    let candidate = |worker: WorkerView| ModelCandidate {
        target: target(&worker),
        worker: Arc::new(worker),
        namespace_model: "m".into(),
        lora: None,
        max_model_len: None,
    };
    ModelView {
        id: "m".into(),
        candidates: workers.into_iter().map(candidate).collect(),
        unusable: Vec::new(),
        others: Vec::new(),
        panic: false,
        split: false,
        artefacts: Arc::new(ModelArtefacts::default()),
        max_model_len: None,
    }
}

/// An accepted chat with this body, which has room for its reply.
pub(crate) fn call(body: &'static str) -> AcceptedRequest {
    let limits = BodyLimits {
        max_buffered: 16 * 1024 * 1024,
        max_body: 1024 * 1024,
    };
    call_within(limits, Gauge::default(), body)
}

/// An accepted chat with this body and a body budget of its own, whose bytes `held` shows.
pub(crate) fn call_within(limits: BodyLimits, held: Gauge, body: &'static str) -> AcceptedRequest {
    let budget = BodyBudget::new(held);
    let sender = BodySender {
        peer: PeerAddress::Local,
        tenant: None,
    };
    AcceptedRequest {
        tenant: None,
        salted: false,
        upgrade: None,
        request_id: "r1".into(),
        received: Moment::START,
        method: Method::POST,
        target: PathAndQuery::from_static("/v1/chat/completions"),
        headers: HeaderMap::new(),
        body: BufferedBody::new(
            Bytes::from_static(body.as_bytes()),
            budget.empty(sender, limits),
        ),
        rest: None,
        overrides: HeaderOverrides::default(),
        slo: SloTargets::default(),
        sender: RequestSender {
            share: PeerAddress::Local,
            address: None,
        },
    }
}

/// A tenant beside another one.
pub(crate) fn tenant_beside_another(isolation: Isolation) -> Arc<Tenant> {
    let entry = |name: &str| TenantEntry {
        key: Some(Secret::new(name)),
        ..TenantEntry::named(name)
    };
    let section = TenantsSection {
        isolation,
        api_keys: vec![entry("a"), entry("b")],
        ..TenantsSection::default()
    };
    let tenants = Tenants::new(&section, TenantSecrets::default());
    match tenants.table().verdict(Some(b"a"), 0) {
        KeyVerdict::Tenant(tenant) => Arc::clone(tenant),
        other => panic!("{other:?}"),
    }
}

/// The facts of a request without a known prompt.
pub(crate) fn facts() -> RoutingFacts {
    RoutingFacts {
        prompt: TokenizedPrompt::without_blocks(0),
        affinity: AffinityKeys::default(),
        salt: None,
        expected_output_tokens: None,
        answer: ReplyMode::Whole,
        pin: None,
        handover: Handover::Possible,
        api_support: ApiSupport::All,
        may_fetch: false,
    }
}

/// The facts of a request whose prompt is known to have this many tokens.
pub(crate) fn facts_of_tokens(tokens: u32) -> RoutingFacts {
    let blocks = PromptBlocks::of_tokens(HashScheme::Xxh3 { seed: 1 }, (0..tokens).collect());
    RoutingFacts {
        prompt: TokenizedPrompt {
            blocks: Some(Arc::new(blocks)),
            tokens,
            ..TokenizedPrompt::without_blocks(0)
        },
        ..facts()
    }
}

/// Short time limits.
pub(crate) fn limits() -> RequestSection {
    RequestSection {
        timeout: Duration::from_secs(10),
        max_retries: 2,
        retry_delay: Duration::ZERO,
        stream_idle_timeout: Duration::from_secs(5),
        stream_max_duration: Duration::from_secs(60),
        ..RequestSection::default()
    }
}

/// A dispatcher to scripted workers.
pub(crate) fn dispatcher(upstream: &Arc<FakeUpstream>) -> Dispatcher {
    Dispatcher {
        upstream: Arc::<FakeUpstream>::clone(upstream),
        abort: Arc::<AbortSwitch>::default(),
        clock: Clock::system(),
        limits: limits(),
    }
}

pub(crate) fn attempt_target(number: u32) -> AttemptTarget {
    let worker = worker(number);
    AttemptTarget {
        target: target(&worker),
        worker: Arc::new(worker),
        span: None,
        kv_source: None,
    }
}
