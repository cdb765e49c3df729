//! A generation: the list of its stages.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use config::ServerSection;
use dialect::{ApiError, Dialect, ErrorCode, RequestView};
use fleet::ModelView;
use http::Response;
use routing::{Pin, ReplyMode};
use tenants::TokenAmounts;
use tokenization::{PromptInput, TokenizationStage, TokenizedPrompt};

use super::{
    accept::AcceptedRequest,
    affinity::{AffinityInput, AffinityKeys, AffinityStage, SearchedPrompt},
    clusters::ClusterMembership,
    decide::{self, RoutingFacts},
    delivery::DeliveryStage,
    fetch,
    lmcache::CandidateChoice,
    prefill::{self, Handover, RequestPolicies},
    queue_wait::WaitRecord,
    receipt::{RequestFacts, shared_name},
    record::RequestGuard,
    reply,
    reply_body::ReplyBody,
    send::{PriorityField, RoutedRequest},
    tokenize_api::model_asked_for,
    translate::{ReplyContext, RequestTranslator, TranslationStage},
};
use crate::{
    metrics::Metrics, parity_monitor::PrefixExpectation, response_affinity::ResponseAffinity,
};

/// The stages of a generation after its lookup in the reply cache.
#[derive(Clone, Debug)]
pub(crate) struct GenerationStages {
    /// Has the limits of counts in a request.
    pub(crate) server: Arc<ServerSection>,
    pub(crate) tokenization: Arc<TokenizationStage>,
    pub(crate) responses: Arc<ResponseAffinity>,
    pub(crate) delivery: DeliveryStage,
    pub(crate) metrics: Arc<Metrics>,
}

/// A generation in the dialect by which it is routed.
struct TranslatedCall {
    call: AcceptedRequest,
    /// The dialect of the client.
    client: Dialect,
    translator: RequestTranslator,
    dialect: Dialect,
    body: Bytes,
    wait: WaitRecord,
}

/// The model of a generation, and its worker where the request names one.
struct ModelChoice {
    model: Arc<ModelView>,
    pin: Option<Pin>,
    policies: RequestPolicies,
}

/// The prompt of a generation for its model, and the semantic cluster that it belongs to.
struct IdentifiedPrompt {
    choice: ModelChoice,
    prompt: TokenizedPrompt,
    cluster: Option<ClusterMembership>,
}

impl GenerationStages {
    /// Runs the stages of a generation.
    pub(super) async fn run(
        &self,
        call: AcceptedRequest,
        dialect: Dialect,
        mut guard: Box<RequestGuard>,
    ) -> Response<ReplyBody> {
        match self.prepare(call, dialect, &mut guard).await {
            Ok(request) => self.delivery.run(request, guard).await,
            Err(error) => reply::refused(guard, &error),
        }
    }

    /// Runs the stages up to the decision. An error is the client's reply.
    async fn prepare(
        &self,
        call: AcceptedRequest,
        dialect: Dialect,
        guard: &mut RequestGuard,
    ) -> Result<RoutedRequest, ApiError> {
        let mut translated = self.translate(call, dialect).await?;
        let (body, dialect) = (translated.body.clone(), translated.dialect);
        let mut view = translated.translator.request_view(dialect, &body)?;
        if view.model.is_empty() {
            let only = model_asked_for(&self.delivery.queue.fleet, None)?;
            view.model = only.to_string().into();
        }
        self.check(&translated, &view)?;
        if view.stream {
            guard.begin_stream()?;
        }
        // A tenant in debt costs no tokenization.
        guard.reserve_tokens(TokenAmounts::default())?;
        let choice = self.choose_model(&mut translated, &view).await?;
        let started = guard.stage_start();
        let needs_prompt = guard.logs_decisions()
            || guard.limits_tokens()
            || self.needs_prompt(&translated, &choice);
        let identified = if needs_prompt {
            self.identify(&translated, choice, &view).await
        } else {
            self.measure(&translated, choice, &view).await
        };
        guard.trace_stage("tokenize", started);
        self.describe(&translated, &identified, &view, guard);
        if guard.limits_tokens() {
            guard.reserve_tokens(self.expected_tokens(&identified.prompt, &translated, &view))?;
        }
        Ok(self.route(translated, identified, &view).await)
    }

    /// Determines the dialects of the request.
    async fn translate(
        &self,
        mut call: AcceptedRequest,
        client: Dialect,
    ) -> Result<TranslatedCall, ApiError> {
        let translator = RequestTranslator::of(self.translation(), client, &mut call).await?;
        let (dialect, body) = translator.routing_body(&call);
        let deadline = call.received + self.request_timeout();
        Ok(TranslatedCall {
            wait: WaitRecord::new(call.body.bytes().len(), deadline)
                .of_tenant(call.tenant.as_ref()),
            call,
            client,
            translator,
            dialect,
            body,
        })
    }

    /// Checks the fields that the router limits.
    fn check(&self, translated: &TranslatedCall, view: &RequestView<'_>) -> Result<(), ApiError> {
        prefill::check_transfer_fields(view, translated.call.tenant.as_deref())?;
        check_counts(&self.server, translated.client, view)
    }

    /// Finds the model, and the worker that the request names or continues at.
    async fn choose_model(
        &self,
        translated: &mut TranslatedCall,
        view: &RequestView<'_>,
    ) -> Result<ModelChoice, ApiError> {
        let TranslatedCall {
            call,
            translator,
            wait,
            ..
        } = translated;
        let queue = &self.delivery.queue;
        let model = queue.model(&view.model, wait).await?;
        translator.check_supported(&model)?;
        let snapshot = queue.fleet.snapshot();
        let named = call.overrides.worker.as_deref();
        let pin = decide::pin(&snapshot, named, "x-warmroute-worker")?;
        let home = translator.response_worker(&self.responses, &snapshot, call)?;
        Ok(ModelChoice {
            pin: pin.or(home),
            policies: queue.decider.policies(&call.overrides, &model),
            model,
        })
    }

    /// Returns whether the tokens or the blocks of the prompt are used: by a decision, by the
    /// priority at the engine, or by the reply, which repeats their number.
    fn needs_prompt(&self, translated: &TranslatedCall, choice: &ModelChoice) -> bool {
        let queue = &self.delivery.queue;
        translated.translator.repeats_token_count()
            || queue.limits.engine_priority
            || queue.decider.reads_prompt(choice.policies, &choice.model)
    }

    /// Estimates the length of a prompt that nothing else is needed of, and finds its semantic
    /// cluster.
    async fn measure(
        &self,
        translated: &TranslatedCall,
        choice: ModelChoice,
        view: &RequestView<'_>,
    ) -> IdentifiedPrompt {
        let headers = &translated.call.headers;
        IdentifiedPrompt {
            choice,
            prompt: TokenizedPrompt::of_length(view),
            cluster: self.affinity().cluster(headers, view).await,
        }
    }

    /// Tokenizes the prompt, and finds its semantic cluster meanwhile.
    async fn identify(
        &self,
        translated: &TranslatedCall,
        choice: ModelChoice,
        view: &RequestView<'_>,
    ) -> IdentifiedPrompt {
        let input = PromptInput {
            dialect: translated.dialect,
            bytes: &translated.body,
            view,
            deadline: translated.wait.deadline(),
        };
        let (prompt, cluster) = tokio::join!(
            self.tokenization.run(&choice.model.artefacts, input),
            self.affinity().cluster(&translated.call.headers, view),
        );
        IdentifiedPrompt {
            choice,
            prompt,
            cluster,
        }
    }

    /// Returns the tokens that the request is expected to use: of its prompt, and of all replies to
    /// it, each of the usual length.
    fn expected_tokens(
        &self,
        prompt: &TokenizedPrompt,
        translated: &TranslatedCall,
        view: &RequestView<'_>,
    ) -> TokenAmounts {
        let output = if translated.client.has_output() {
            let router = &self.delivery.queue.decider.router;
            let each = u64::from(router.expected_reply_length(view.max_tokens));
            u32::try_from(reply_count(view).saturating_mul(each)).unwrap_or(u32::MAX)
        } else {
            0
        };
        TokenAmounts {
            prompt: prompt.tokens,
            output,
        }
    }

    /// Records what the receipt says about the request.
    fn describe(
        &self,
        translated: &TranslatedCall,
        identified: &IdentifiedPrompt,
        view: &RequestView<'_>,
        guard: &mut RequestGuard,
    ) {
        let IdentifiedPrompt {
            choice,
            prompt,
            cluster,
        } = identified;
        guard.timing().render = prompt.render_us;
        guard.timing().tokenize = prompt.tokenize_us;
        let priority = translated.call.overrides.priority;
        guard.set_request_facts(RequestFacts {
            cluster: cluster.as_ref().map(ClusterMembership::note),
            ..RequestFacts::of(view, &choice.model, priority, prompt)
        });
        guard.set_prefix_expectation(PrefixExpectation::of(translated.dialect, view, prompt));
        guard.set_reply_count(reply_count(view));
        if translated.translator.keeps_state {
            guard.mark_response_stored();
        }
        guard.prompt(prompt.blocks.as_ref());
        guard.text(view);
        self.metrics.record_prompt_source(prompt.source.as_str());
    }

    /// Gathers the facts of the decision.
    async fn route(
        &self,
        translated: TranslatedCall,
        identified: IdentifiedPrompt,
        view: &RequestView<'_>,
    ) -> RoutedRequest {
        let affinity = self
            .affinity_keys(&translated.call, &identified, view)
            .await;
        let TranslatedCall {
            mut call,
            client,
            translator,
            wait,
            ..
        } = translated;
        let IdentifiedPrompt {
            choice,
            prompt,
            cluster,
        } = identified;
        if let Some(cluster) = cluster {
            cluster.add_header(&mut call.headers);
        }
        let handover = if translator.can_split() {
            Handover::of(view)
        } else {
            Handover::without_split()
        };
        let exact_tokens = prompt.source.is_exact().then_some(prompt.tokens);
        RoutedRequest {
            facts: RoutingFacts {
                affinity,
                prompt,
                salt: view.cache_salt.as_deref().map(Arc::from),
                expected_output_tokens: view.max_tokens,
                answer: if view.stream {
                    ReplyMode::Streamed
                } else {
                    ReplyMode::Whole
                },
                pin: choice.pin,
                may_fetch: fetch::may_fetch(client, &call, view, &handover),
                handover,
                api_support: translator.api_support,
            },
            call,
            wait,
            priority: if view.priority.is_some() {
                PriorityField::Taken
            } else {
                PriorityField::Free
            },
            reply_context: ReplyContext {
                model: shared_name(&view.model, &choice.model.id),
                prompt_tokens: exact_tokens.unwrap_or(0),
                include_usage: view.include_usage,
            },
            model: choice.model,
            translator,
        }
    }

    /// Computes the keys that tie the request to earlier ones.
    async fn affinity_keys(
        &self,
        call: &AcceptedRequest,
        identified: &IdentifiedPrompt,
        view: &RequestView<'_>,
    ) -> AffinityKeys {
        let ModelChoice {
            model,
            pin,
            policies,
        } = &identified.choice;
        let input = AffinityInput {
            policies: *policies,
            headers: &call.headers,
            body: call.body.bytes(),
            view,
        };
        let (sources, cluster) = (self.affinity(), identified.cluster.clone());
        let mut keys = sources.keys(input, cluster).await;
        let searched = SearchedPrompt {
            model,
            blocks: identified.prompt.blocks.as_deref(),
            salted: view.cache_salt.is_some(),
        };
        sources.add_block_holders(&mut keys, searched).await;
        keys.lmcache = sources
            .lmcache(
                *policies,
                model,
                &identified.prompt,
                CandidateChoice::of(*pin, view),
            )
            .await;
        keys
    }

    /// Returns the translation, which also the attempts use.
    pub(super) fn translation(&self) -> &TranslationStage {
        &self.delivery.send.translation
    }

    /// Returns the sources of affinity keys.
    pub(crate) fn affinity(&self) -> &AffinityStage {
        &self.delivery.affinity
    }

    /// Returns the time limit of a request.
    pub(super) fn request_timeout(&self) -> Duration {
        self.delivery.send.dispatcher.limits.timeout
    }
}

/// Returns the number of replies that a request asks for: all choices of each of its prompts.
fn reply_count(view: &RequestView<'_>) -> u64 {
    (view.counts.choices.max(1)).saturating_mul(view.counts.prompts.max(1))
}

/// Checks the numbers of completions of a prompt, of prompts and of stop sequences: each multiplies
/// the engine's work for one short body. `dialect`: that of the client's body.
fn check_counts(
    limits: &ServerSection,
    dialect: Dialect,
    view: &RequestView<'_>,
) -> Result<(), ApiError> {
    let stop = if dialect == Dialect::Messages {
        "stop_sequences"
    } else {
        "stop"
    };
    let prompts = view.counts.prompts_field.unwrap_or("prompt");
    let (choices, stop) = if dialect.model_is_optional() {
        ("sampling_params.n", "sampling_params.stop")
    } else {
        ("n", stop)
    };
    for (field, requested, most, key) in [
        (
            choices,
            view.counts.choices,
            limits.max_choices,
            "server.max_choices",
        ),
        (
            prompts,
            view.counts.prompts,
            limits.max_prompts,
            "server.max_prompts",
        ),
        (stop, view.counts.stops, limits.max_stop, "server.max_stop"),
    ] {
        if most > 0 && requested > most {
            let what = if field == choices {
                "is"
            } else {
                "has this many entries:"
            };
            let message = format!(
                "{field} {what} {requested}, at most {most} are accepted ({key}): ask for less"
            );
            return Err(ApiError::new(ErrorCode::InvalidRequest, message).param(field));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(each: u64) -> ServerSection {
        ServerSection {
            max_choices: each,
            max_prompts: each,
            max_stop: each,
            ..ServerSection::default()
        }
    }

    /// The field that is refused with limits of 2 each.
    fn refused(dialect: Dialect, body: &str) -> Option<String> {
        let limits = limits(2);
        let view = dialect::view(dialect, body.as_bytes()).expect("a good body");
        let error = check_counts(&limits, dialect, &view).err()?;
        assert_eq!(error.code, ErrorCode::InvalidRequest);
        let message = error.message;
        Some(message.split(' ').next().unwrap_or_default().to_owned())
    }

    #[test]
    fn a_count_above_its_limit_is_refused_by_the_name_of_its_field() {
        for (dialect, fields, field) in [
            (Dialect::Chat, r#""messages":[],"n":3"#, "n"),
            (
                Dialect::Chat,
                r#""messages":[],"stop":["a","b","c"]"#,
                "stop",
            ),
            (Dialect::Completions, r#""prompt":["a","b","c"]"#, "prompt"),
            (Dialect::Embeddings, r#""input":["a","b","c"]"#, "input"),
            (
                Dialect::Completions,
                r#""prompt":"a","n":3,"stop":["a","b","c"]"#,
                "n",
            ),
            (
                Dialect::ChatBatch,
                r#""messages":[[{}],[{}],[{}]]"#,
                "messages",
            ),
            (
                Dialect::TokenIds,
                r#""token_ids":[1,2,3],"sampling_params":{"n":3}"#,
                "sampling_params.n",
            ),
            (Dialect::SglangGenerate, r#""text":["a","b","c"]"#, "text"),
            (
                Dialect::SglangGenerate,
                r#""text":"a","sampling_params":{"stop":["a","b","c"]}"#,
                "sampling_params.stop",
            ),
        ] {
            let body = format!(r#"{{"model":"m",{fields}}}"#);
            assert_eq!(refused(dialect, &body).as_deref(), Some(field), "{body}");
        }
    }

    #[test]
    fn a_count_at_its_limit_is_accepted() {
        for (dialect, fields) in [
            (Dialect::Chat, r#""messages":[],"n":2,"stop":["a","b"]"#),
            (Dialect::Chat, r#""messages":[],"stop":"abc""#),
            (Dialect::Completions, r#""prompt":["a","b"]"#),
            (Dialect::Completions, r#""prompt":[1,2,3,4]"#),
        ] {
            let body = format!(r#"{{"model":"m",{fields}}}"#);
            assert_eq!(refused(dialect, &body), None, "{body}");
        }
    }

    #[test]
    fn a_message_names_its_stop_sequences_otherwise() {
        let body = br#"{"model":"m","messages":[],"stop":["a","b","c"]}"#;
        let view = dialect::view(Dialect::Chat, body).expect("a good body");
        let error = check_counts(&limits(1), Dialect::Messages, &view).expect_err("too many");
        assert!(
            error.message.starts_with("stop_sequences "),
            "{}",
            error.message
        );
    }

    #[test]
    fn zero_is_no_limit() {
        let body = br#"{"model":"m","messages":[],"n":1000000,"stop":["a","b","c"]}"#;
        let view = dialect::view(Dialect::Chat, body).expect("a good body");
        assert!(check_counts(&limits(0), Dialect::Chat, &view).is_ok());
    }
}
