//! Semantic clusters: prompts with similar meaning go to the same few workers.
//!
//! A cluster is defined by examples. Their embeddings are computed once, in the background; their
//! mean stands for the cluster. The embedding of a request's last question is computed beside its
//! tokenization; the request belongs to the nearest cluster if that is near enough. Any error costs
//! the request only its cluster.
//!
//! **Invariant**: a request waits for its cluster no longer than configured, and not at all for a
//! while after a failure that concerns the worker.

use std::{
    convert::Infallible,
    future::pending,
    sync::{Arc, OnceLock},
    time::Duration,
};

use dialect::RequestView;
use http::{HeaderMap, HeaderValue};
use resilience::{Backoff, OutcomeCounters};
use response_cache::UnitVector;
use routing::{SemanticCluster, SemanticClusters, receipt::ClusterNote};
use tokenization::WorkerClient;

use crate::embedder::{Embedder, EmbeddingError};

/// Names the cluster: in requests of clients that know it, and in requests to workers.
const CLUSTER_ID: &str = "x-semantic-cluster-id";
/// Characters of a question that are embedded: about as many tokens as small embedding models read.
const MAX_CHARS: usize = 2_000;
/// Examples per query, and its time limit: no request waits for them.
const EXAMPLES: usize = 32;
const LEARNING: Duration = Duration::from_secs(10);
/// Pauses between attempts to embed the examples.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A request's cluster.
#[derive(Clone, Debug)]
pub(crate) struct ClusterMembership {
    cluster: Arc<SemanticCluster>,
    /// `None`: the client named the cluster.
    similarity: Option<f64>,
}

impl ClusterMembership {
    pub(crate) fn name(&self) -> &str {
        &self.cluster.name
    }

    /// Returns whether this worker belongs to the cluster.
    pub(crate) fn has(&self, worker: &str) -> bool {
        self.cluster.workers.iter().any(|name| name == worker)
    }

    /// Adds the cluster's name to the request for the worker, as if the client had sent it.
    pub(crate) fn add_header(&self, headers: &mut HeaderMap) {
        if let Ok(name) = HeaderValue::from_bytes(self.cluster.name.as_bytes()) {
            headers.insert(CLUSTER_ID, name);
        }
    }

    pub(crate) fn note(&self) -> ClusterNote {
        ClusterNote {
            name: self.cluster.name.as_str().into(),
            similarity: self.similarity,
        }
    }
}

/// The shared state of semantic clusters.
#[derive(Debug)]
pub(crate) struct Clusters {
    clusters: Vec<Arc<SemanticCluster>>,
    threshold: f64,
    timeout: Duration,
    embedder: Embedder,
    /// The mean of each cluster's examples, once they are embedded.
    centroids: OnceLock<Vec<UnitVector>>,
    results: OutcomeCounters,
}

impl Clusters {
    pub(crate) fn new(
        section: SemanticClusters,
        workers: WorkerClient,
        results: OutcomeCounters,
    ) -> Self {
        Self {
            clusters: section.clusters.into_iter().map(Arc::new).collect(),
            threshold: section.threshold,
            timeout: section.timeout,
            embedder: Embedder::new(workers, section.embedding_model.into()),
            centroids: OnceLock::new(),
            results,
        }
    }

    /// Returns the cluster of a request with these headers. A name from the client decides; an
    /// unknown name means no cluster.
    pub(crate) async fn of(
        &self,
        headers: &HeaderMap,
        view: &RequestView<'_>,
    ) -> Option<ClusterMembership> {
        if let Some(named) = headers.get(CLUSTER_ID).filter(|named| !named.is_empty()) {
            let cluster = self
                .clusters
                .iter()
                .find(|cluster| cluster.name.as_bytes() == named.as_bytes())?;
            self.results.count("named");
            return Some(ClusterMembership {
                cluster: Arc::clone(cluster),
                similarity: None,
            });
        }
        let (result, membership) = match self.nearest(view).await {
            Ok((cluster, similarity)) if similarity >= self.threshold => (
                "matched",
                Some(ClusterMembership {
                    cluster,
                    similarity: Some(similarity),
                }),
            ),
            Ok(_) => ("below_threshold", None),
            Err(why) => (why, None),
        };
        self.results.count(result);
        membership
    }

    async fn nearest(
        &self,
        view: &RequestView<'_>,
    ) -> Result<(Arc<SemanticCluster>, f64), &'static str> {
        let centroids = self.centroids.get().ok_or("not_learnt")?;
        let text = dialect::last_said(view, MAX_CHARS).ok_or("no_text")?;
        let direction = self
            .embedder
            .embed(&text, self.timeout)
            .await
            .map_err(|why| {
                tracing::debug!(?why, "a request goes without a cluster");
                "failed"
            })?;
        let (at, similarity) = direction.nearest(centroids).ok_or("failed")?;
        let cluster = self.clusters.get(at).ok_or("failed")?;
        Ok((Arc::clone(cluster), similarity))
    }

    /// Embeds the clusters' examples, and retries until that succeeds.
    pub(crate) async fn embed_examples(&self) -> Infallible {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            match self.learn().await {
                Ok(centroids) => {
                    tracing::info!(clusters = centroids.len(), model = %self.embedder.model(), "semantic clusters learnt");
                    // Only this task sets it.
                    let _ = self.centroids.set(centroids);
                    return pending().await;
                }
                // Expected while workers start.
                Err(EmbeddingError::NoWorker) => {
                    tracing::debug!("no worker for the examples of semantic clusters yet")
                }
                Err(
                    EmbeddingError::NoAnswer | EmbeddingError::Refused | EmbeddingError::Paused,
                ) => {
                    tracing::warn!(model = %self.embedder.model(), "no vectors for the examples of semantic clusters: trying again");
                }
            }
            tokio::time::sleep(backoff.pause()).await;
        }
    }

    async fn learn(&self) -> Result<Vec<UnitVector>, EmbeddingError> {
        let mut centroids = Vec::with_capacity(self.clusters.len());
        for cluster in &self.clusters {
            let texts: Vec<&str> = cluster.examples.iter().map(String::as_str).collect();
            let mut directions = Vec::with_capacity(texts.len());
            for part in texts.chunks(EXAMPLES) {
                directions.extend(self.embedder.embed_all(part, LEARNING).await?);
            }
            centroids.push(UnitVector::middle(&directions));
        }
        Ok(centroids)
    }
}

#[cfg(test)]
mod tests {
    use dialect::Dialect;
    use prometheus_client::registry::Registry;
    use proxy::FakeReply;

    use super::*;
    use crate::request::test_gateway::TestGateway;

    fn clusters(test: &TestGateway) -> Clusters {
        let cluster = |name: &str, worker: &str| SemanticCluster {
            name: name.into(),
            examples: vec!["an example".to_owned()],
            workers: vec![worker.into()],
        };
        let section = SemanticClusters {
            enabled: true,
            embedding_model: "m".into(),
            threshold: 0.5,
            timeout: Duration::from_secs(1),
            clusters: vec![cluster("code", "w1"), cluster("prose", "w2")],
        };
        let mut registry = Registry::default();
        let results = OutcomeCounters::registered(&mut registry, "clusters", "", &[]);
        Clusters::new(section, test.worker_client(), results)
    }

    async fn of(clusters: &Clusters, named: Option<&'static str>) -> Option<ClusterMembership> {
        let body = br#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#;
        let view = dialect::view(Dialect::Chat, body).expect("a good body");
        let mut headers = HeaderMap::new();
        if let Some(name) = named {
            headers.insert(CLUSTER_ID, HeaderValue::from_static(name));
        }
        clusters.of(&headers, &view).await
    }

    #[tokio::test]
    async fn a_client_that_names_a_cluster_gets_it_without_an_embedding() {
        let test = TestGateway::new();
        let found = of(&clusters(&test), Some("prose"))
            .await
            .expect("it exists");
        assert_eq!(found.name(), "prose");
        assert!(found.has("w2") && !found.has("w1"));
        assert_eq!(found.note().similarity, None);
        let mut headers = HeaderMap::new();
        found.add_header(&mut headers);
        assert_eq!(headers[CLUSTER_ID], "prose");
    }

    #[tokio::test]
    async fn an_unknown_name_is_no_cluster_and_an_empty_one_is_no_name() {
        let test = TestGateway::new();
        let clusters = clusters(&test);
        assert!(of(&clusters, Some("other")).await.is_none());
        assert!(of(&clusters, Some("Prose")).await.is_none());
        assert!(of(&clusters, Some("")).await.is_none());
        assert!(
            of(&clusters, None).await.is_none(),
            "the examples are not embedded yet"
        );
    }

    #[tokio::test]
    async fn without_a_worker_for_embeddings_a_request_goes_without_its_cluster() {
        let test = TestGateway::new();
        let clusters = clusters(&test);
        assert!(matches!(
            clusters.learn().await,
            Err(EmbeddingError::NoWorker)
        ));
        let middle = UnitVector::middle(&[]);
        assert!(clusters.centroids.set(vec![middle.clone(), middle]).is_ok());
        assert!(of(&clusters, None).await.is_none());
        assert!(test.upstream.take_requests().is_empty());
    }
    fn vector(numbers: &str) -> FakeReply {
        let body = format!(r#"{{"data":[{{"index":0,"embedding":[{numbers}]}}]}}"#);
        FakeReply::json(200, body)
    }

    #[tokio::test]
    async fn a_question_belongs_to_the_nearest_cluster_that_is_near_enough() {
        let (test, worker) = TestGateway::with_worker().await;
        let clusters = clusters(&test);
        for example in ["1,0,0", "0,1,0"] {
            test.upstream.script(worker, vector(example));
        }
        let centroids = clusters.learn().await.expect("both are embedded");
        assert!(clusters.centroids.set(centroids).is_ok());
        for (text, cluster) in [
            ("3,1,0", Some("code")),
            ("1,3,0", Some("prose")),
            // Its cosine is about 0.45.
            ("1,0,2", None),
        ] {
            test.upstream.script(worker, vector(text));
            let found = of(&clusters, None).await;
            assert_eq!(
                found.as_ref().map(ClusterMembership::name),
                cluster,
                "{text}"
            );
            assert_eq!(
                found.is_some_and(|it| it.note().similarity.is_some()),
                cluster.is_some()
            );
        }
    }
}
