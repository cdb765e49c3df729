//! Observation of a healthy worker, which tests then break.

use api::{CheckResult, CheckStatus, WorkerChecks};
use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use config::{ConfigSource, EngineKind, Settings};
use fleet::{EventEndpoint, ModelArtefacts, ServedModel, TokenizerSource, WorkerProbe};
use kv_blocks::BlockSize;
use prompt::{Artefacts, PromptModel};

use crate::observe::{
    AnnouncedBlocks, BatchNumbers, EngineTokenization, LinkStatus, OwnPrompt, ProbeOutcome,
    ProbeReply, ProbeResults, PublisherBinding, PublisherObservation, ReplayAnswer,
    ReplayObservation, StreamObservation, TokenCase, TokenComparison, WorkerObservation,
};

pub(crate) struct CheckFixture {
    worker: String,
    sections: String,
    pub(crate) seen: WorkerObservation,
}

static PROMPT: LazyLock<Arc<PromptModel>> = LazyLock::new(|| {
    let artefacts = Artefacts {
        tokenizer_json: include_bytes!("../../../engine-sim/assets/tokenizer.json"),
        tokenizer_config: Some(include_bytes!(
            "../../../engine-sim/assets/tokenizer_config.json"
        )),
        chat_template: None,
    };
    Arc::new(PromptModel::load(artefacts).expect("the built-in tokenizer loads"))
});

/// Loads settings from YAML.
pub(crate) fn settings(yaml: &str) -> Settings {
    let source = ConfigSource {
        name: "test",
        text: Some(yaml),
        env: &[],
        own_env: &[],
        overrides: &[],
        left_out: &[],
        more_workers: &[],
        check_url: |url| {
            url.parse::<net::WorkerUrl>()
                .map(|url| url.worker_name())
                .map_err(|error| error.to_string())
        },
    };
    config::load(source).unwrap_or_else(|problems| panic!("{yaml}: {problems:?}"))
}

/// Checks fixtures together, as one fleet of workers `w0`, `w1`, ...
pub(crate) fn reports(fixtures: Vec<CheckFixture>) -> Vec<WorkerChecks> {
    let mut yaml = "workers:\n".to_owned();
    let mut seen = Vec::new();
    for (at, fixture) in fixtures.into_iter().enumerate() {
        yaml += &format!(
            "  - {{name: w{at}, url: \"http://127.0.0.1:{}\"{}}}\n",
            8000 + at,
            fixture.worker
        );
        if at == 0 {
            yaml = format!("{}\n{yaml}", fixture.sections);
        }
        seen.push(fixture.seen);
    }
    super::workers(&settings(&yaml), &seen)
}

pub(crate) fn check(report: &WorkerChecks, id: &str) -> CheckResult {
    report
        .checks
        .iter()
        .find(|check| check.id == id)
        .expect("every check is there")
        .clone()
}

pub(crate) fn failed(report: &WorkerChecks) -> Vec<api::Name> {
    report
        .checks
        .iter()
        .filter(|check| check.status == CheckStatus::Fail)
        .map(|check| check.id.clone())
        .collect()
}

impl CheckFixture {
    /// Returns vLLM 0.32 with blocks of 16 tokens, one rank, events and replay.
    pub(crate) fn healthy() -> Self {
        Self::configured("")
    }

    /// Returns a healthy worker with these keys in its configuration entry.
    pub(crate) fn configured(worker: &str) -> Self {
        let worker = if worker.is_empty() {
            String::new()
        } else {
            format!(", {worker}")
        };
        Self {
            worker,
            sections: String::new(),
            seen: healthy(),
        }
    }

    /// Returns a healthy worker with these sections in the configuration.
    pub(crate) fn with_sections(sections: &str) -> Self {
        Self {
            sections: sections.to_owned(),
            ..Self::healthy()
        }
    }

    pub(crate) fn report(self) -> WorkerChecks {
        reports(vec![self]).remove(0)
    }

    pub(crate) fn again(&self) -> WorkerChecks {
        let yaml = format!(
            "{}\nworkers: [{{name: w0, url: \"http://127.0.0.1:8000\"{}}}]\n",
            self.sections, self.worker
        );
        super::workers(&settings(&yaml), std::slice::from_ref(&self.seen)).remove(0)
    }

    pub(crate) fn check(&self, id: &str) -> CheckResult {
        check(&self.again(), id)
    }

    pub(crate) fn failed(&self) -> Vec<api::Name> {
        failed(&self.again())
    }

    pub(crate) fn probe(&mut self) -> &mut WorkerProbe {
        self.seen
            .probe
            .as_mut()
            .and_then(|probe| probe.as_mut().ok())
            .expect("a healthy fixture has a probe")
    }

    pub(crate) fn observation(&mut self) -> &mut PublisherObservation {
        &mut self.seen.streams[0].observation
    }

    /// Makes the engine announce this many ranks.
    pub(crate) fn announce(&mut self, ranks: u32) {
        let endpoints = (0..ranks)
            .map(|rank| EventEndpoint { rank, ..endpoint() })
            .collect();
        let probe = self.probe();
        (probe.announced, probe.metrics_ranks) = (Some(endpoints), ranks);
    }

    /// Removes all event streams.
    pub(crate) fn silence(&mut self) {
        self.probe().streams.clear();
        self.seen.streams.clear();
        self.seen.replays.clear();
        self.seen.probes.arrival = None;
    }

    /// Makes its publisher send nothing.
    pub(crate) fn clear_observation(&mut self) {
        self.seen.probes.arrival = None;
        *self.observation() = PublisherObservation {
            link: LinkStatus::Connected,
            ..PublisherObservation::default()
        };
        self.seen.replays[0].answer = ReplayAnswer::Answered {
            requested: None,
            found: false,
        };
    }

    /// Moves its publisher to another endpoint.
    pub(crate) fn move_to(&mut self, endpoint: &str) {
        self.seen.streams[0].endpoint.endpoint = endpoint.to_owned();
        let stream = self.seen.streams[0].endpoint.clone();
        let probe = self.probe();
        (probe.announced, probe.streams) = (Some(vec![stream.clone()]), vec![stream]);
    }

    /// Makes it serve its model under another name.
    pub(crate) fn rename(&mut self, model: &str) {
        let probe = self.probe();
        probe.base = model.into();
        probe.models[0].id = model.into();
    }
}

fn endpoint() -> EventEndpoint {
    EventEndpoint {
        rank: 0,
        endpoint: "tcp://127.0.0.1:5557".to_owned(),
        replay_endpoint: Some("tcp://127.0.0.1:5558".to_owned()),
        topic: String::new(),
    }
}

fn healthy() -> WorkerObservation {
    let block_size = BlockSize::new(16).ok();
    let model = ServedModel {
        id: "sim".into(),
        root: None,
        max_model_len: Some(4096),
        created: 0,
        owned_by: "vllm".into(),
    };
    let probe = WorkerProbe {
        engine: EngineKind::Vllm,
        version: Some("0.32.0".into()),
        models: vec![model],
        loras: Vec::new(),
        base: "sim".into(),
        artefacts: Arc::new(ModelArtefacts {
            prompt: Some(Arc::clone(&PROMPT)),
            source: TokenizerSource::Engine,
            problem: None,
        }),
        block_size,
        prefix_caching: Some(true),
        prefix_cache: Some((0, 0)),
        metrics_ranks: 1,
        announced: Some(vec![endpoint()]),
        streams: vec![endpoint()],
    };
    let case = |name| TokenCase {
        name,
        plain: true,
        engine: EngineTokenization::Ids(vec![1, 2]),
        own: Ok(vec![1, 2]),
        pieces: None,
    };
    let ids: Vec<u32> = (0..66).collect();
    let observation = PublisherObservation {
        link: LinkStatus::Connected,
        batches: 3,
        stores: 3,
        usable_stores: 3,
        topics: vec![String::new()],
        numbers: BatchNumbers {
            last: Some(2),
            ..BatchNumbers::default()
        },
        ranks: [0].into(),
        block_size,
        age_s: Some(0.01),
        ..PublisherObservation::default()
    };
    WorkerObservation {
        unreachable: None,
        health: Some(Ok(())),
        probe: Some(Ok(probe)),
        instead: None,
        bound: vec![PublisherBinding {
            rank: 0,
            endpoint: endpoint().endpoint,
        }],
        tokens: TokenComparison {
            has_route: Some(true),
            texts: vec![case("plain words")],
            special: vec![case("plain words")],
            chats: vec![case("a user message")],
        },
        streams: vec![StreamObservation {
            endpoint: endpoint(),
            followed: true,
            observation,
        }],
        probes: ProbeResults {
            outcome: ProbeOutcome::Answered,
            first: ProbeReply {
                prompt_tokens: Some(41),
                cached_tokens: Some(0),
                ids: Some(ids[..41].to_vec()),
            },
            second: ProbeReply {
                prompt_tokens: Some(66),
                cached_tokens: Some(32),
                ids: Some(ids.clone()),
            },
            own: Some(OwnPrompt {
                ids: Some(ids.clone()),
                text: ids,
                longer_by: 25,
            }),
            arrival: Some(AnnouncedBlocks {
                stream: 0,
                topic: String::new(),
                subscribed: true,
                blocks: 4,
                device: 4,
                whole: 4,
                foreign: false,
                after: Duration::from_millis(3),
            }),
            salted: Some(Ok(ProbeReply {
                cached_tokens: Some(0),
                ..ProbeReply::default()
            })),
            ..ProbeResults::default()
        },
        replays: vec![ReplayObservation {
            rank: 0,
            endpoint: "tcp://127.0.0.1:5558".to_owned(),
            answer: ReplayAnswer::Answered {
                requested: Some(2),
                found: true,
            },
        }],
    }
}

#[test]
fn a_healthy_worker_has_every_check_in_order_and_none_that_is_not_ok() {
    let report = CheckFixture::healthy().report();
    let ids: Vec<_> = report.checks.iter().map(|check| &*check.id).collect();
    assert_eq!(ids, crate::report::WORKER_CHECKS);
    for check in &report.checks {
        let skipped = ["model_agrees", "dp_offset", "lora", "role_pairing"].contains(&&*check.id);
        assert_eq!(
            check.status,
            if skipped {
                CheckStatus::Skip
            } else {
                CheckStatus::Ok
            },
            "{check:?}"
        );
        assert!(
            !check.message.is_empty() && check.fix.is_none(),
            "{check:?}"
        );
    }
    assert!(report.ok);
}

#[test]
fn without_requests_nothing_that_needs_them_is_called_ok() {
    let mut fixture = CheckFixture::healthy();
    fixture.seen.probes = ProbeResults::default();
    *fixture.observation() = PublisherObservation {
        link: LinkStatus::Connected,
        ..PublisherObservation::default()
    };
    fixture.seen.replays[0].answer = ReplayAnswer::Answered {
        requested: None,
        found: false,
    };
    let report = fixture.report();
    for id in [
        "usage_details",
        "events_arriving",
        "events_age",
        "sequence",
        "hash_alias",
        "salt_honoured",
        "clock",
    ] {
        assert_eq!(check(&report, id).status, CheckStatus::Skip, "{id}");
    }
    assert!(report.ok);
}
