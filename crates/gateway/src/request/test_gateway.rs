//! A whole gateway of tests, with scripted workers in the place of connections.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use config::{ConfigSource, DisaggregationMode, Settings};
use dialect::Dialect;
use fleet::{Fleet, FleetConfig, FleetParts, HubCache, WorkerView};
use http::{Method, Response};
use http_body_util::BodyExt as _;
use kv_blocks::{HashScheme, WorkerId};
use kv_index::{IndexSettings, KvIndex};
use net::Clock;
use parity::ParityTracker;
use prometheus_client::registry::Registry;
use proxy::{FakeReply, FakeUpstream};
use response_cache::ResponseCache;
use routing::{
    DecisionsSection, Policy, Router, RoutingSettings,
    receipt::{
        DecisionId, OutcomeKind, PromptNote, PromptSource, Receipt, ReceiptRing, RequestOutcome,
    },
};
use tenants::{TenantSecrets, Tenants};
use tokenization::WorkerClient;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::{
    decide::{DecisionCounters, PlacementOutcome},
    delivery::DeliveryStage,
    queue_wait::WaitRecord,
    receipt::RequestFacts,
    record::RequestGuard,
    reply_body::ReplyBody,
    retry_state::RetryState,
    send::{PriorityField, RoutedRequest},
    test_support,
    translate::{ApiSupport, ReplyContext, RequestTranslator},
};
use crate::{
    Gateway, GatewayParts, ProcessLimits,
    lease::Lease,
    retry::RetryPermit,
    routes::{self, RouteMatch},
};

/// A gateway whose workers are scripts. Its fleet has only the workers of its configuration; the
/// stages behind the choice of the model get theirs from the request.
pub(crate) struct TestGateway {
    pub(crate) gateway: Gateway,
    pub(crate) upstream: Arc<FakeUpstream>,
    pub(crate) router: Arc<Router>,
    pub(crate) index: Arc<KvIndex>,
    pub(crate) ring: Arc<ReceiptRing>,
    registry: Registry,
}

/// A reply as its client got it.
#[derive(Debug)]
pub(crate) struct ClientReply {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    /// The pieces of the body, as they were sent.
    pub(crate) pieces: Vec<String>,
    pub(crate) ending: ReplyEnding,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyEnding {
    Clean,
    Broken,
}

impl ClientReply {
    /// Reads a reply to its end.
    pub(crate) async fn read(response: Response<ReplyBody>) -> Self {
        let (head, mut body) = response.into_parts();
        let mut pieces = Vec::new();
        let ending = loop {
            match body.frame().await {
                None => break ReplyEnding::Clean,
                Some(Err(_)) => break ReplyEnding::Broken,
                Some(Ok(frame)) => {
                    let data = frame.into_data().expect("replies have no trailers");
                    pieces.push(String::from_utf8_lossy(&data).into_owned());
                }
            }
        };
        Self {
            status: head.status.as_u16(),
            headers: head.headers,
            pieces,
            ending,
        }
    }

    pub(crate) fn text(&self) -> String {
        self.pieces.concat()
    }
}

impl TestGateway {
    pub(crate) fn new() -> Self {
        Self::configured("{}")
    }

    /// A gateway whose fleet and response cache are those of a configuration. Call inside a tokio
    /// runtime.
    pub(crate) fn configured(text: &str) -> Self {
        let (mut registry, clock) = (Registry::default(), Clock::system());
        let settings = settings(text);
        let index = Arc::new(KvIndex::new(IndexSettings::default()));
        let router = Arc::new(Router::new(RoutingSettings::default(), Arc::clone(&index)));
        let ring = Arc::new(ReceiptRing::new(DecisionsSection::default()));
        let cache = ResponseCache::start(&settings.response_cache, None, clock, &mut registry);
        let parity = ParityTracker::new(settings.parity);
        let parts = GatewayParts {
            fleet: Arc::new(fleet(settings.clone(), Arc::clone(&index), &mut registry)),
            router: Arc::clone(&router),
            ring: Arc::clone(&ring),
            parity: Arc::new(parking_lot::Mutex::new(parity)),
            counters: DecisionCounters {
                prefix: Arc::default(),
                kv: Arc::default(),
            },
            log: None,
            spans: None,
            cache: cache.expect("memory suffices"),
            lmcache: None,
            tokens: None,
            peers: replicas::NoteQueue::default(),
            clock,
            tenants: Arc::new(Tenants::new(&settings.tenants, TenantSecrets::default())),
            wrong_keys: Arc::default(),
            process: LIMITS,
        };
        let mut gateway = Gateway::new(parts, &plain(settings), &mut registry);
        let upstream = Arc::<FakeUpstream>::default();
        gateway.generation.delivery.send.dispatcher.upstream =
            Arc::<FakeUpstream>::clone(&upstream);
        Self {
            gateway,
            upstream,
            router,
            index,
            ring,
            registry,
        }
    }

    /// A gateway with one ready worker, `w1`, which serves the model `m` by scripts.
    pub(crate) async fn with_worker() -> (Self, WorkerId) {
        let port = listing_engine().await;
        let test = Self::configured(&format!(
            "workers: [{{name: w1, url: 'http://127.0.0.1:{port}', type: generic, messages: translate}}]"
        ));
        let ready = async {
            loop {
                let snapshot = test.gateway.fleet().snapshot();
                if snapshot
                    .model("m")
                    .is_some_and(|model| !model.candidates.is_empty())
                {
                    return snapshot.workers[0].id;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let worker = tokio::time::timeout(Duration::from_secs(20), ready).await;
        let worker = worker.expect("the worker is found ready");
        (test, worker)
    }

    /// The router's own client of the scripted workers.
    pub(crate) fn worker_client(&self) -> WorkerClient {
        WorkerClient {
            fleet: Arc::clone(self.gateway.fleet()),
            upstream: Arc::<FakeUpstream>::clone(&self.upstream),
            clock: self.gateway.clock(),
            connect_timeout: test_support::limits().connect_timeout,
        }
    }

    pub(crate) fn delivery(&self) -> &DeliveryStage {
        &self.gateway.generation.delivery
    }

    pub(crate) fn delivery_mut(&mut self) -> &mut DeliveryStage {
        &mut self.gateway.generation.delivery
    }

    /// Adds the next reply of worker `number`.
    pub(crate) fn script(&self, number: u32, reply: FakeReply) {
        self.upstream.script(WorkerId(number), reply);
    }

    /// The guard of a chat whose receipt will be published.
    pub(crate) fn guard(&self) -> Box<RequestGuard> {
        self.guard_of("/v1/chat/completions")
    }

    pub(crate) fn guard_of(&self, path: &str) -> Box<RequestGuard> {
        let RouteMatch::Route(route) = routes::find(&Method::POST, path) else {
            panic!("{path} is no route");
        };
        let received = self.gateway.clock().now();
        let mut guard = RequestGuard::open(&self.gateway.recorder, route, "r1".into(), received);
        guard.set_request_facts(RequestFacts {
            model: "m".into(),
            served_model: None,
            lora: None,
            stream: false,
            body_streamed: false,
            priority: 0,
            cluster: None,
            prompt: PromptNote {
                source: PromptSource::None,
                tokens: 0,
                new_tokens: 0,
            },
        });
        guard
    }

    /// A chat for workers with these numbers, which it tries in their order.
    pub(in crate::request) fn chat(&self, workers: &[u32]) -> RoutedRequest {
        let workers = workers.iter().map(|number| test_support::worker(*number));
        self.chat_for(workers.collect())
    }

    pub(in crate::request) fn chat_for(&self, workers: Vec<WorkerView>) -> RoutedRequest {
        let mut call = test_support::call(r#"{"model":"m","messages":[]}"#);
        call.received = self.gateway.clock().now();
        call.overrides.policy = Some(Policy::RoundRobin);
        let deadline = call.received + self.gateway.generation.request_timeout();
        RoutedRequest {
            facts: test_support::facts(),
            model: Arc::new(test_support::model(workers)),
            wait: WaitRecord::new(call.body.bytes().len(), deadline),
            translator: RequestTranslator::untranslated(Dialect::Chat, ApiSupport::All),
            reply_context: ReplyContext {
                model: "m".into(),
                prompt_tokens: 0,
                include_usage: false,
            },
            priority: PriorityField::Free,
            call,
        }
    }

    /// Delivers a request, and reads its reply to its end.
    pub(in crate::request) async fn deliver(
        &self,
        request: RoutedRequest,
    ) -> (ClientReply, Arc<Receipt>) {
        let guard = self.guard();
        let id = guard.id();
        let response = self.delivery().run(request, guard).await;
        let reply = ClientReply::read(response).await;
        (reply, self.receipt(id))
    }

    /// Places a chat for these workers, and returns its load.
    pub(crate) fn place(&self, workers: &[u32]) -> Lease {
        let (request, retry_state) = (self.chat(workers), RetryState::default());
        let decider = &self.delivery().queue.decider;
        match decider.place(&request.model, &request.placement(&retry_state), None) {
            PlacementOutcome::Placed(placed) => placed.lease,
            other => panic!("it is not placed: {other:?}"),
        }
    }

    /// Delivers a chat of worker 1 whose guard is `guard`, and reads its reply to its end.
    pub(crate) async fn deliver_chat(&self, guard: Box<RequestGuard>) -> ClientReply {
        ClientReply::read(self.delivery().run(self.chat(&[1]), guard).await).await
    }

    pub(crate) fn receipt(&self, id: DecisionId) -> Arc<Receipt> {
        self.ring.get(id).expect("the receipt is published")
    }

    /// The numbers of the workers that got a request, in this order.
    pub(crate) fn contacted(&self) -> Vec<u32> {
        let number = |request: http::Request<Bytes>| {
            let host = request.headers()[http::header::HOST].to_str();
            let (_, port) = host.expect("ASCII").rsplit_once(':').expect("a port");
            port.parse::<u32>().expect("a number") - 9000
        };
        self.upstream
            .take_requests()
            .into_iter()
            .map(number)
            .collect()
    }

    /// Takes all permits of the retry budget.
    pub(crate) fn use_up_retry_budget(&self) -> Vec<RetryPermit> {
        std::iter::from_fn(|| self.delivery().retries.permit()).collect()
    }

    /// Returns whether the metrics page has this line.
    pub(crate) fn has_metric(&self, line: &str) -> bool {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &self.registry).expect("a page");
        page.lines().any(|there| there == line)
    }
}

/// The outcome in a finished request's receipt.
pub(crate) fn outcome(receipt: &Receipt) -> &RequestOutcome {
    receipt.outcome.as_ref().expect("the request has ended")
}

pub(crate) fn outcome_kind(receipt: &Receipt) -> OutcomeKind {
    outcome(receipt).kind
}

/// The attempts of a receipt: worker, class and result.
pub(crate) fn attempts(receipt: &Receipt) -> Vec<(&str, &'static str, &'static str)> {
    let attempt = |it: &'_ routing::receipt::Attempt| {
        (
            it.class.map_or("", |class| class.as_str()),
            it.result.as_str(),
        )
    };
    receipt
        .attempts
        .iter()
        .map(|it| {
            let (class, result) = attempt(it);
            (&*it.name, class, result)
        })
        .collect()
}

/// A server that answers every request of a check with a list of one model.
async fn listing_engine() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 4096]).await;
                let list = r#"{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"vllm","root":"m","max_model_len":4096}]}"#;
                let length = list.len();
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
                let reply = format!("{head}\r\ncontent-length: {length}\r\n\r\n{list}");
                let _ = stream.write_all(reply.as_bytes()).await;
            });
        }
    });
    port
}

fn settings(text: &str) -> Settings {
    let source = ConfigSource::of_text("test", text);
    config::load(source).expect("a valid configuration")
}

fn fleet(settings: Settings, index: Arc<KvIndex>, registry: &mut Registry) -> Fleet {
    let parts = FleetParts {
        config: FleetConfig::of(&settings),
        models: settings.models,
        kv_cache_index: settings.kv_cache_index,
        redis: None,
        max_prefix_length: 1024,
        hub_cache: HubCache::from_env(|_| None),
        index,
        scheme: SCHEME,
        earlier: Vec::new(),
        clock: Clock::system(),
        on_verdict: Arc::new(|_| {}),
    };
    Fleet::start(parts, registry).expect("it has no worker")
}

const SCHEME: HashScheme = HashScheme::Xxh3 { seed: 1337 };

const LIMITS: ProcessLimits = ProcessLimits {
    memory_budget: None,
    max_connections: 10,
};

/// These settings without queue, split and coalescing, with short pauses, and without the headers
/// that name sessions.
fn plain(mut settings: Settings) -> Settings {
    settings.server.max_head_bytes = 64 * 1024;
    settings.server.max_body_bytes = 1024 * 1024;
    settings.server.max_held_bytes = 16 * 1024 * 1024;
    settings.request = test_support::limits();
    settings.retry.base_delay = Duration::from_millis(1);
    settings.retry.max_delay = Duration::from_millis(1);
    settings.retry.exponential_backoff = false;
    settings.retry.jitter = false;
    settings.queue.enabled = false;
    settings.disaggregation.mode = DisaggregationMode::Off;
    settings.cache.enable_deduplication = false;
    settings.model_aggregation.background.enabled = false;
    settings.routing.session.headers.clear();
    settings
}
