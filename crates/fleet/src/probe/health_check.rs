//! One health check: its paths and the evaluation of their statuses (contract CH6, CH7, CH8).

use bytes::Bytes;
use config::CheckMethod;
use http::StatusCode;

use super::client::{ProbeClient, ProbeError, probe_error, unexpected};
use crate::{
    ProblemKind,
    engine::{EngineKind, health_method, health_paths, healthy_statuses},
};

/// Reply limit in bytes. A health reply's body is ignored; a model list may serve as one.
const LARGEST_REPLY: usize = 4 << 20;

/// The health check of one worker.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HealthCheckPlan {
    /// The worker's own entry.
    pub(crate) own: config::HealthCheck,
    /// `health_checks.endpoint`: replaces the primary path of the engine kind.
    pub(crate) global_endpoint: Option<String>,
}

impl HealthCheckPlan {
    /// Returns the paths in request order. The worker's own entry beats the global path, which
    /// beats the engine kind's (decision B1).
    fn paths(&self, engine: EngineKind) -> Vec<String> {
        let own = health_paths(engine);
        let first = self.own.endpoint.as_ref().or(self.global_endpoint.as_ref());
        let first = first.cloned().unwrap_or_else(|| own[0].to_owned());
        let rest = match &self.own.fallback_endpoints {
            Some(rest) => rest.clone(),
            None => own.iter().skip(1).map(|path| (*path).to_owned()).collect(),
        };
        std::iter::once(first).chain(rest).collect()
    }

    /// Returns the method and body of the requests. The engine kind's body is only sent with its
    /// own method.
    fn method(&self, engine: EngineKind) -> (CheckMethod, Option<Bytes>) {
        let (usual, body) = health_method(engine);
        let own = self
            .own
            .body
            .as_ref()
            .map(|body| Bytes::from(body.to_string()));
        let method = self.own.method.unwrap_or(usual);
        (
            method,
            own.or_else(|| body.filter(|_| method == usual).map(Bytes::from)),
        )
    }

    fn accepts(&self, engine: EngineKind, status: StatusCode) -> bool {
        self.own
            .accept_status
            .as_deref()
            .unwrap_or(healthy_statuses(engine))
            .contains(&status.as_u16())
    }

    /// Runs the check and judges the first answer that is not 404.
    pub(crate) async fn run(
        &self,
        client: &ProbeClient,
        engine: EngineKind,
    ) -> Result<(), ProbeError> {
        let client = self
            .own
            .timeout
            .map_or_else(|| client.clone(), |timeout| client.limited_to(timeout));
        let paths = self.paths(engine);
        let mut last = None;
        for path in &paths {
            let reply = match self.method(engine) {
                (CheckMethod::Get, _) => client.get(path, LARGEST_REPLY).await,
                (CheckMethod::Head, _) => client.head(path).await,
                (CheckMethod::Post, body) => client.post(path, body, LARGEST_REPLY).await,
            };
            let status = reply.map_err(|error| probe_error(&error))?.status;
            if self.accepts(engine, status) {
                return Ok(());
            }
            if self.own.warmup_status.contains(&status.as_u16()) {
                return Err(ProbeError::loading(path, status));
            }
            if status != StatusCode::NOT_FOUND {
                return Err(unexpected(path, status));
            }
            last = Some(unexpected(path, status));
        }
        Err(last.unwrap_or_else(|| {
            ProbeError::failed(ProblemKind::NotAsked, "has no health endpoint to ask")
        }))
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn check(
        endpoint: Option<&str>,
        fallbacks: Option<&[&str]>,
        global: Option<&str>,
    ) -> HealthCheckPlan {
        HealthCheckPlan {
            own: config::HealthCheck {
                endpoint: endpoint.map(str::to_owned),
                fallback_endpoints: fallbacks
                    .map(|paths| paths.iter().map(|path| (*path).to_owned()).collect()),
                method: None,
                body: None,
                accept_status: None,
                warmup_status: vec![503],
                timeout: None,
            },
            global_endpoint: global.map(str::to_owned),
        }
    }

    #[test]
    #[contract("CH6")]
    fn each_type_has_its_own_paths() {
        let plain = check(None, None, None);
        assert_eq!(plain.paths(EngineKind::Openai), ["/v1/models"]);
        assert_eq!(plain.paths(EngineKind::Ollama), ["/api/tags", "/"]);
        assert_eq!(
            plain.paths(EngineKind::Lmstudio),
            ["/v1/models", "/api/v1/models"]
        );
        for engine in [
            EngineKind::Vllm,
            EngineKind::Sglang,
            EngineKind::Trtllm,
            EngineKind::Llamacpp,
            EngineKind::Mlxcel,
            EngineKind::Continuum,
            EngineKind::Azure,
            EngineKind::Generic,
        ] {
            assert_eq!(plain.paths(engine), ["/health", "/v1/models"], "{engine:?}");
        }
        assert_eq!(
            plain.paths(EngineKind::Gemini),
            ["/models", "/v1beta/models"]
        );
        assert_eq!(plain.paths(EngineKind::Anthropic), ["/v1/messages"]);
        for engine in EngineKind::ALL {
            let healthy: Vec<u16> = (100..600)
                .filter(|status| plain.accepts(engine, StatusCode::from_u16(*status).unwrap()))
                .collect();
            if engine == EngineKind::Anthropic {
                assert_eq!(
                    plain.method(engine),
                    (CheckMethod::Post, Some(Bytes::from("{}")))
                );
                assert_eq!(healthy, [200, 400, 401, 429]);
            } else {
                assert_eq!(plain.method(engine), (CheckMethod::Get, None), "{engine:?}");
                assert_eq!(healthy, [200], "{engine:?}");
            }
        }
    }

    #[test]
    #[contract("CH8")]
    fn the_workers_own_method_overrides_that_of_its_type() {
        let mut own = check(None, None, None);
        own.own.method = Some(CheckMethod::Post);
        assert_eq!(own.method(EngineKind::Vllm), (CheckMethod::Post, None));
        own.own.body = Some(serde_json::json!({"check": true}));
        assert_eq!(
            own.method(EngineKind::Anthropic),
            (CheckMethod::Post, Some(Bytes::from(r#"{"check":true}"#)))
        );
        own.own.accept_status = Some(vec![204]);
        assert!(own.accepts(EngineKind::Anthropic, StatusCode::NO_CONTENT));
        assert!(!own.accepts(EngineKind::Anthropic, StatusCode::OK));
        own.own.method = Some(CheckMethod::Get);
        own.own.body = None;
        assert_eq!(own.method(EngineKind::Anthropic), (CheckMethod::Get, None));
    }

    #[test]
    #[contract("B1")]
    fn the_workers_own_path_overrides_the_global_one_and_that_of_its_type() {
        assert_eq!(
            check(None, None, Some("/up")).paths(EngineKind::Vllm),
            ["/up", "/v1/models"]
        );
        assert_eq!(
            check(Some("/own"), None, Some("/up")).paths(EngineKind::Vllm),
            ["/own", "/v1/models"]
        );
        assert_eq!(
            check(Some("/own"), Some(&["/b"]), Some("/up")).paths(EngineKind::Vllm),
            ["/own", "/b"]
        );
        assert_eq!(
            check(Some("/own"), Some(&[]), None).paths(EngineKind::Vllm),
            ["/own"]
        );
    }
}
