//! The stage: which source identifies a prompt, in which order, within which time.

use std::{num::NonZero, sync::Arc, time::Duration};

use bytes::Bytes;
use dialect::{Dialect, Fidelity, PromptPart, RequestView};
use fleet::{ModelArtefacts, TokenizerSource};
use kv_blocks::{HashScheme, Moment, PromptBlocks};
use net::Clock;
use prometheus_client::registry::Registry;
use prompt::ConversationMemory;
use resilience::OutcomeCounters;
use routing::receipt::PromptSource;

use crate::{
    background::BackgroundTokenizer,
    compute_pool::{self, ComputeError, ComputePool},
    conversation_gauges::ConversationGauges,
    engine::EngineTokenizer,
    given,
    local::{self, LocalTokenizer, LocalTokens, NoTokens},
    token_cache::PromptTokens,
    tokenized_prompt::{TokenizedPrompt, identify_by_text, prompt_bytes},
};

/// Result label of a computation that ended in time, with tokens or without.
const COMPUTED: &str = "computed";

/// The parts of the stage that outlive a request.
#[derive(Debug)]
pub struct TokenizationStage {
    scheme: HashScheme,
    budget: Duration,
    clock: Clock,
    /// For generations: one computation per core. More would only slow each other down, and
    /// tokenizers keep tables for every thread they run on.
    compute_pool: ComputePool,
    /// For dry runs and similar calls: separate, so that no generation waits behind them.
    low_priority_pool: ComputePool,
    engine: EngineTokenizer,
    /// Results of computations with the models' own tokenizers.
    results: OutcomeCounters,
    /// Chats whose next turn costs only what is new in it, of all models.
    conversations: Arc<ConversationMemory>,
    /// For prompts that are too long for their requests.
    background: BackgroundTokenizer,
    memory_use: ConversationGauges,
}

/// Longest wait of a request for its tokens by the model's own files, including the wait for a
/// permit, or [`BUDGETS`] budgets if that is more. A computation predicted within the budget takes
/// some milliseconds; the rest is for busy machines.
const LONGEST_WAIT: Duration = Duration::from_millis(500);
const BUDGETS: u32 = 4;

/// Cost per byte of a prompt that is identified by its text: it is copied and hashed.
const TEXT_COST_PER_BYTE: Duration = Duration::from_nanos(1);

impl TokenizationStage {
    /// Returns the stage, and registers its counters.
    pub fn new(
        scheme: HashScheme,
        budget: Duration,
        clock: Clock,
        engine: EngineTokenizer,
        registry: &mut Registry,
    ) -> Self {
        let help =
            "Prompts by what came of rendering and tokenizing them with their model's own files";
        let all = [
            COMPUTED,
            ComputeError::Late.as_str(),
            ComputeError::Paused.as_str(),
            ComputeError::Failed.as_str(),
        ];
        let results =
            OutcomeCounters::registered(registry, "warmroute_prompt_computations", help, &all);
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            scheme,
            budget,
            clock,
            compute_pool: ComputePool::new(cores),
            low_priority_pool: ComputePool::new(cores.div_ceil(2)),
            engine,
            results,
            conversations: Arc::default(),
            background: BackgroundTokenizer::new(registry),
            memory_use: ConversationGauges::registered(registry),
        }
    }

    /// Sets whether new answers of engines are cached, and new conversations remembered.
    pub fn set_accepts_new(&self, takes: bool) {
        self.engine.set_accepts_new(takes);
        self.conversations.set_accepts_new(takes);
        self.background.set_accepts_new(takes);
    }

    /// Drops answers of engines and conversations that were not used recently.
    pub fn shrink(&self) {
        self.engine.shrink();
        self.conversations.shrink();
        self.memory_use.show(&self.conversations);
    }

    /// Returns the pool for generations.
    pub fn compute_pool(&self) -> &ComputePool {
        &self.compute_pool
    }

    /// Returns the pool for calls that precede no generation here.
    pub fn low_priority_pool(&self) -> &ComputePool {
        &self.low_priority_pool
    }

    /// Identifies the prompt of a generation.
    pub async fn run(
        &self,
        artefacts: &Arc<ModelArtefacts>,
        input: PromptInput<'_>,
    ) -> TokenizedPrompt {
        self.find(artefacts, input.in_pool(&self.compute_pool))
            .await
    }

    /// Like [`Self::run`], in the low-priority pool, for calls such as `/v1/route`: no generation
    /// waits behind them.
    pub async fn run_low_priority(
        &self,
        artefacts: &Arc<ModelArtefacts>,
        input: PromptInput<'_>,
    ) -> TokenizedPrompt {
        self.find(artefacts, input.in_pool(&self.low_priority_pool))
            .await
    }

    async fn find(
        &self,
        artefacts: &Arc<ModelArtefacts>,
        input: TokenizationInput<'_>,
    ) -> TokenizedPrompt {
        let found = self.identify(artefacts, input).await;
        // The other prompts of a batch are load, and no prefix of this one.
        match input.view.counts.further_bytes {
            0 => found,
            bytes => found.with_further(prompt::estimate_tokens(bytes)),
        }
    }

    async fn identify(
        &self,
        artefacts: &Arc<ModelArtefacts>,
        input: TokenizationInput<'_>,
    ) -> TokenizedPrompt {
        if let Some(given) = given::identify(input.view, self.scheme) {
            return given;
        }
        let found = match (&artefacts.prompt, &artefacts.source) {
            // The tokens of a merely similar prompt would not help.
            _ if input.view.fidelity == Fidelity::Likeness => None,
            (Some(model), _) => self.by_own(model, input).await,
            (None, TokenizerSource::Remote) => self.by_engine(input).await,
            (None, _) => None,
        };
        if let Some(found) = found {
            return found;
        }
        match self.by_render(artefacts, input).await {
            Some(found) => found,
            None => Self::by_text(input).await,
        }
    }

    async fn by_own(
        &self,
        model: &Arc<prompt::PromptModel>,
        input: TokenizationInput<'_>,
    ) -> Option<TokenizedPrompt> {
        let tokenizer = LocalTokenizer {
            model: Arc::clone(model),
            conversations: Arc::clone(&self.conversations),
            scheme: self.scheme,
            budget: self.budget,
            clock: self.clock,
        };
        let found = if tokenizer.may_fit(input.view, prompt_bytes(input.view)) {
            self.computed(tokenizer.clone(), input).await
        } else {
            Err(NoTokens::OverBudget)
        };
        match found {
            Ok(LocalTokens {
                blocks,
                new_tokens,
                render_us,
                tokenize_us,
            }) => Some(TokenizedPrompt {
                new_tokens,
                render_us,
                tokenize_us,
                ..TokenizedPrompt::of(PromptSource::Tokens, blocks)
            }),
            Err(NoTokens::OverBudget) => {
                // Its next turn finds it known, if it is a chat that is remembered.
                let special = input.view.rendering.add_special_tokens == Some(true);
                if matches!(input.view.prompt, PromptPart::Messages(_)) && !special {
                    let (dialect, bytes) = (input.dialect, input.bytes.clone());
                    let spans = input.view.spans.clone();
                    self.background.submit(tokenizer, (dialect, spans), bytes);
                }
                None
            }
            Err(NoTokens::Unknown) => None,
        }
    }

    /// Computes tokens within the request's time.
    async fn computed(
        &self,
        tokenizer: LocalTokenizer,
        input: TokenizationInput<'_>,
    ) -> Result<LocalTokens, NoTokens> {
        let (clock, budget) = (self.clock, self.budget);
        let left = input.deadline.since(clock.now());
        let limit = LONGEST_WAIT.max(budget.saturating_mul(BUDGETS)).min(left);
        let (dialect, bytes) = (input.dialect, input.bytes.clone());
        let spans = input.view.spans.clone();
        let model = Arc::clone(&tokenizer.model);
        let work = move || {
            let view = spans.view(dialect, &bytes).map_err(|_| NoTokens::Unknown)?;
            tokenizer.tokenize(&view)
        };
        match input.compute_pool.compute(&model, limit, clock, work).await {
            Ok(tokenized) => {
                self.results.count(COMPUTED);
                self.memory_use.show(&self.conversations);
                tokenized
            }
            Err(why) => {
                self.results.count(why.as_str());
                tracing::debug!(
                    why = why.as_str(),
                    ?limit,
                    "no tokens of the prompt, going by its text"
                );
                Err(NoTokens::Unknown)
            }
        }
    }

    async fn by_engine(&self, input: TokenizationInput<'_>) -> Option<TokenizedPrompt> {
        let started = self.clock.now();
        let answer = self.engine.tokens(input).await?;
        let blocks = PromptBlocks::of_tokens(self.scheme, answer.prompt.ids);
        let found = TokenizedPrompt::of(PromptSource::EngineTokenize, blocks);
        Some(self.with_cost(found, answer.from_cache, started))
    }

    /// Identifies a chat with media, whatever the tokenizer: only an engine knows how many tokens
    /// an item has, and how it is hashed.
    async fn by_render(
        &self,
        artefacts: &ModelArtefacts,
        input: TokenizationInput<'_>,
    ) -> Option<TokenizedPrompt> {
        let has_tokenizer =
            artefacts.prompt.is_some() || artefacts.source == TokenizerSource::Remote;
        let is_exact = input.view.fidelity == Fidelity::Exact;
        if !has_tokenizer || !is_exact || input.dialect != Dialect::Chat {
            return None;
        }
        let started = self.clock.now();
        let answer = self.engine.rendered(input).await?;
        let PromptTokens { ids, media } = answer.prompt;
        let blocks = PromptBlocks::of_tokens_with_media(self.scheme, ids, media);
        let found = TokenizedPrompt::of(PromptSource::EngineRender, blocks);
        Some(self.with_cost(found, answer.from_cache, started))
    }

    /// Adds what an answer of an engine cost.
    fn with_cost(
        &self,
        found: TokenizedPrompt,
        from_cache: bool,
        started: Moment,
    ) -> TokenizedPrompt {
        TokenizedPrompt {
            new_tokens: if from_cache { 0 } else { found.tokens },
            tokenize_us: self.clock.now().ms_since(started) * 1e3,
            ..found
        }
    }

    async fn by_text(input: TokenizationInput<'_>) -> TokenizedPrompt {
        let cost = local::cost_of(prompt_bytes(input.view), TEXT_COST_PER_BYTE);
        let found = input.work(cost, identify_by_text).await;
        found.unwrap_or_else(|| {
            TokenizedPrompt::without_blocks(prompt::estimate_tokens(prompt_bytes(input.view)))
        })
    }
}

/// The request whose prompt is identified.
#[derive(Clone, Copy, Debug)]
pub struct PromptInput<'a> {
    /// The dialect of the body.
    pub dialect: Dialect,
    /// The body from which the view was read.
    pub bytes: &'a Bytes,
    /// Its fields.
    pub view: &'a RequestView<'a>,
    /// The end of the request's time limit.
    pub deadline: Moment,
}

impl<'a> PromptInput<'a> {
    fn in_pool(self, compute_pool: &'a ComputePool) -> TokenizationInput<'a> {
        let Self {
            dialect,
            bytes,
            view,
            deadline,
        } = self;
        TokenizationInput {
            dialect,
            bytes,
            view,
            compute_pool,
            deadline,
        }
    }
}

/// A request's body, its view, and the pool for work on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenizationInput<'a> {
    pub(crate) dialect: Dialect,
    pub(crate) bytes: &'a Bytes,
    pub(crate) view: &'a RequestView<'a>,
    pub(crate) compute_pool: &'a ComputePool,
    pub(crate) deadline: Moment,
}

impl TokenizationInput<'_> {
    /// Runs work on the view on the thread that its predicted `cost` calls for. `None` if it
    /// panicked.
    pub(crate) async fn work<T: Send + 'static>(
        self,
        cost: Duration,
        work: impl FnOnce(&RequestView<'_>) -> T + Send + 'static,
    ) -> Option<T> {
        if cost <= compute_pool::ON_RUNTIME {
            return Some(work(self.view));
        }
        let (dialect, bytes) = (self.dialect, self.bytes.clone());
        let spans = self.view.spans.clone();
        self.compute_pool
            .run(cost, move || {
                spans.view(dialect, &bytes).ok().map(|view| work(&view))
            })
            .await
            .flatten()
    }
}

#[cfg(test)]
pub(crate) mod tests;
