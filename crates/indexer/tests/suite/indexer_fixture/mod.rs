//! An indexer called without a socket, and publishers of real events for it.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Request, Response, header},
};
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use indexer::{Indexer, IndexerParts, ResidentInstances, stand_alone};
use kv_blocks::HashScheme;
use kv_events::{
    frames,
    standard::{self, StandardChange, StandardEvent, StreamKey},
    vllm::{self, EventEncoding, WireEvent, WireRemoved, WireStored},
};
use kv_index::{IndexSettings, KvIndex};
use net::{Clock, Destinations};
use serde_json::{Value, json};
use zmtp::{Endpoint, Pub, PubSettings};

/// Time limit of a wait; only a failing test reaches it.
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) struct IndexerFixture {
    pub(crate) index: Arc<KvIndex>,
    routes: TowerToHyperService<Router>,
}

pub(crate) struct CallReply {
    pub(crate) status: u16,
    pub(crate) kind: String,
    pub(crate) bytes: Vec<u8>,
}

impl CallReply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes)
            .unwrap_or_else(|_| panic!("not JSON: {:?}", String::from_utf8_lossy(&self.bytes)))
    }

    /// Returns the status and the named field of one of our errors.
    pub(crate) fn error(&self) -> (u16, Value) {
        let body = self.json();
        let fields: Vec<_> = body
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(fields, ["error", "field"]);
        assert!(!body["error"].as_str().unwrap().is_empty());
        (self.status, body["field"].clone())
    }
}

impl IndexerFixture {
    pub(crate) fn open() -> Self {
        Self::with(
            ResidentInstances::none(),
            Arc::new(KvIndex::new(IndexSettings::default())),
        )
    }

    pub(crate) fn with(residents: ResidentInstances, index: Arc<KvIndex>) -> Self {
        let indexer = Indexer::start(IndexerParts {
            index: Arc::clone(&index),
            scheme: HashScheme::default(),
            clock: Clock::system(),
            destinations: Destinations::Engines,
            residents,
        });
        Self {
            index,
            routes: TowerToHyperService::new(stand_alone(indexer)),
        }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> CallReply {
        let response: Response<Body> = self.routes.call(request).await.unwrap();
        let kind = response.headers()[header::CONTENT_TYPE]
            .to_str()
            .unwrap()
            .to_owned();
        let status = response.status().as_u16();
        let bytes = response
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes()
            .to_vec();
        CallReply {
            status,
            kind,
            bytes,
        }
    }

    pub(crate) async fn post_bytes(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> CallReply {
        let mut request = Request::post(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Body::from(body)).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> CallReply {
        self.post_bytes(
            path,
            &[("content-type", "application/json")],
            body.to_string().into_bytes(),
        )
        .await
    }

    /// Returns the reply body of a call that must succeed.
    pub(crate) async fn post_ok(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body).await;
        assert_eq!(answer.status, 200, "{path} {body}: {}", answer.json());
        answer.json()
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let answer = self
            .send(Request::get(path).body(Body::empty()).unwrap())
            .await;
        assert_eq!(answer.status, 200);
        answer.json()
    }

    /// Repeats the call until the reply is the expected one.
    pub(crate) async fn until(&self, path: &str, body: &Value, expected: &Value) {
        let mut last = Value::Null;
        let polling = async {
            while last != *expected {
                tokio::time::sleep(Duration::from_millis(5)).await;
                last = self.post_ok(path, body).await;
            }
        };
        let in_time = tokio::time::timeout(TIMEOUT, polling).await.is_ok();
        assert!(
            in_time,
            "{path} {body}\nexpected {expected}\nlast     {last}"
        );
    }

    /// Polls the services until one of them satisfies the condition.
    pub(crate) async fn until_service(&self, what: &str, check: impl Fn(&Value) -> bool) -> Value {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            let all = self.get("/services").await;
            if let Some(found) = all["services"]
                .as_array()
                .unwrap()
                .iter()
                .find(|service| check(service))
            {
                return found.clone();
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{what} never came: {all}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A publisher as in an engine.
pub(crate) struct TestPublisher {
    socket: Pub,
    pub(crate) endpoint: String,
    next: std::cell::Cell<u64>,
}

impl TestPublisher {
    pub(crate) async fn bind() -> Self {
        let any: Endpoint = "tcp://127.0.0.1:0".parse().unwrap();
        let (socket, endpoint) = Pub::bind(&any, PubSettings::default()).await.unwrap();
        Self {
            socket,
            endpoint: endpoint.to_string(),
            next: std::cell::Cell::new(0),
        }
    }

    /// Waits until it has this many subscribers.
    pub(crate) async fn until_followed_by(&self, count: usize) {
        let mut followers = self.socket.watch_subscribers();
        let reached = followers.wait_for(|now| *now == count);
        tokio::time::timeout(TIMEOUT, reached)
            .await
            .expect("subscribers connect in time")
            .unwrap();
    }

    pub(crate) fn publish(&self, event: WireEvent) {
        let seq = self.next.replace(self.next.get() + 1);
        let payload = vllm::encode(1.0, Some(0), &[event], EventEncoding::CURRENT);
        self.socket.send(&frames::encode_live(b"", seq, &payload));
    }

    /// Publishes a payload under the next number.
    pub(crate) fn send(&self, payload: &[u8]) {
        let seq = self.next.replace(self.next.get() + 1);
        self.socket.send(&frames::encode_live(b"", seq, payload));
    }

    /// Numbers its batches from the beginning, as after a restart.
    pub(crate) fn begin_again(&self) {
        self.next.set(0);
    }

    /// Publishes envelopes in one batch.
    pub(crate) fn send_envelopes(&self, events: &[StandardEvent]) {
        self.send(&standard::encode_msgpack(events));
    }

    /// Publishes a batch as a store's master does: blocks by hash, added to a medium or removed
    /// from it.
    pub(crate) fn store_event(&self, names: &[u64], medium: &str, change: StoreChange) {
        let seq_hashes = names.to_vec();
        let change = match change {
            StoreChange::In => StandardChange::Stored {
                seq_hashes,
                base_block_idx: Some(0),
                parent_hash: None,
                token_ids: None,
            },
            StoreChange::Out => StandardChange::Removed {
                seq_hashes,
                base_block_idx: None,
            },
        };
        self.master_event(Some(medium), change);
    }

    /// Publishes that a store has emptied a medium, or all of them.
    pub(crate) fn clear_event(&self, medium: Option<&str>) {
        self.master_event(medium, StandardChange::Cleared);
    }

    fn master_event(&self, medium: Option<&str>, change: StandardChange) {
        let event_id = self.next.replace(self.next.get() + 1);
        let stream = StreamKey {
            backend_id: Some("pool-0".into()),
            medium: medium.map(Into::into),
            ..StreamKey::default()
        };
        let event = StandardEvent {
            event_id,
            timestamp_ms: Some(1),
            stream,
            change,
            object_key: None,
        };
        self.socket.send(&frames::encode_live(
            b"mooncake",
            event_id,
            &standard::encode_msgpack(&[event]),
        ));
    }

    /// Publishes a sequence from its beginning; the hashes of its blocks count up from `names`.
    pub(crate) fn store(&self, sequence: &StoredSequence<'_>) {
        let size = sequence.block_size;
        let blocks = sequence.tokens.len() / size as usize;
        self.publish(WireEvent::Stored(WireStored {
            hashes: (0..blocks as u64)
                .map(|at| (sequence.names + at).into())
                .collect(),
            tokens: sequence.tokens.to_vec(),
            block_size: size,
            medium: Some(sequence.medium.to_owned()),
            lora_name: sequence.lora.map(str::to_owned),
            extra_keys: sequence.salt.map(|salt| {
                let mut keys = vec![None; blocks];
                keys[0] = Some(
                    sequence
                        .lora
                        .into_iter()
                        .chain([salt])
                        .map(|key| key.to_owned().into())
                        .collect(),
                );
                keys
            }),
            ..WireStored::default()
        }));
    }

    pub(crate) fn remove(&self, name: u64, medium: &str) {
        self.publish(WireEvent::Removed(WireRemoved {
            hashes: vec![name.into()],
            medium: Some(medium.to_owned()),
        }));
    }
}

/// Whether blocks were added to a store or removed.
#[derive(Clone, Copy)]
pub(crate) enum StoreChange {
    In,
    Out,
}

/// A sequence that a publisher stores.
pub(crate) struct StoredSequence<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) block_size: u32,
    /// The engine hash of the first block; the others follow.
    pub(crate) names: u64,
    pub(crate) medium: &'a str,
    pub(crate) lora: Option<&'a str>,
    pub(crate) salt: Option<&'a str>,
}

impl Default for StoredSequence<'_> {
    fn default() -> Self {
        Self {
            tokens: &[],
            block_size: 4,
            names: 1000,
            medium: "GPU",
            lora: None,
            salt: None,
        }
    }
}

/// Returns a registration of an engine with blocks of four tokens, with some fields changed.
pub(crate) fn engine(endpoint: &str, instance: &str, changes: &Value) -> Value {
    let mut body = json!({
        "endpoint": endpoint, "type": "vLLM", "modelname": "m", "instance_id": instance, "block_size": 4, "dp_rank": 0,
    });
    change(&mut body, changes);
    body
}

/// Returns a query of model `m` with blocks of four tokens, with some fields changed.
pub(crate) fn query(tokens: &[u32], changes: &Value) -> Value {
    let mut body = json!({"model": "m", "token_ids": tokens, "block_size": 4});
    change(&mut body, changes);
    body
}

fn change(body: &mut Value, changes: &Value) {
    for (field, value) in changes.as_object().into_iter().flatten() {
        body[field] = value.clone();
    }
}

/// Returns a row with this many tokens on the GPU of rank 0 and no others.
pub(crate) fn on_gpu(tokens: u32) -> Value {
    json!({"longest_matched": tokens, "GPU": tokens, "DP": {"0": tokens}, "CPU": 0, "DISK": 0})
}
