//! What the fields of a body mean in each dialect.

use std::borrow::Cow;

use super::{
    Dialect, Fidelity, KvFields, MediaPlaceholder, MemberSpans, PromptPart, Rendering, RequestView,
    SessionFields, TransferFields, ViewError, key::Key, media, sampling::SamplingFields,
};
use crate::{
    BodyCounts, ChatMessages, MAX_NODES, Turn,
    json::{self, PassedOn, RawJson},
    prompts,
};

/// Inputs beside the tokens: the engine puts their content into the hashes of its blocks.
const MEDIA: [Key; 4] = [
    Key::Features,
    Key::ImageData,
    Key::VideoData,
    Key::AudioData,
];

/// The values of the routing keys in the body.
#[derive(Debug)]
pub(super) struct BodyFields<'a> {
    text: &'a str,
    values: [Option<RawJson<'a>>; Key::COUNT],
    /// The elements of `messages`, if there are not too many: at most [`ChatMessages::MOST`].
    turns: Vec<Turn<'a>>,
}

/// What a walk through a body has found so far.
struct FoundFields<'a> {
    values: [Option<RawJson<'a>>; Key::COUNT],
    /// The first key that occurs twice.
    twice: Option<Key>,
}

impl<'a> FoundFields<'a> {
    fn new() -> Self {
        Self {
            values: [None; Key::COUNT],
            twice: None,
        }
    }

    fn add(&mut self, name: &str, value: RawJson<'a>) {
        let Some(key) = Key::named(name) else {
            return;
        };
        if self.values[key as usize].replace(value).is_some() {
            self.twice = self.twice.or(Some(key));
        }
    }

    /// Returns the fields at the end of the walk: a body that is not JSON at all reports that error
    /// before a key that occurs twice.
    fn complete(self, text: &'a str, turns: KeptTurns<'a>) -> Result<BodyFields<'a>, ViewError> {
        match self.twice {
            Some(key) => Err(ViewError::DuplicateKey { key: key.name() }),
            None => Ok(BodyFields {
                text,
                values: self.values,
                turns: turns.all(),
            }),
        }
    }
}

/// The elements of `messages` so far.
#[derive(Default)]
struct KeptTurns<'a> {
    turns: Vec<Turn<'a>>,
    count: usize,
}

impl<'a> KeptTurns<'a> {
    fn add(&mut self, turn: Turn<'a>) {
        self.count += 1;
        if self.count <= ChatMessages::MOST {
            self.turns.push(turn);
        }
    }

    /// Returns them, if there are not too many.
    fn all(self) -> Vec<Turn<'a>> {
        if self.count > ChatMessages::MOST {
            Vec::new()
        } else {
            self.turns
        }
    }
}

impl<'a> BodyFields<'a> {
    /// Reads a body; calls `each` for every member, with its name.
    pub(super) fn read(
        text: &'a str,
        mut each: impl FnMut(&str, RawJson<'a>),
    ) -> Result<Self, ViewError> {
        let (mut found, mut turns) = (FoundFields::new(), KeptTurns::default());
        let mut keep = |turn: Turn<'a>| turns.add(turn);
        for member in json::body_members(text, Some(&mut keep)) {
            let member = member?;
            let name = json::decode(member.key);
            each(&name, member.value);
            found.add(&name, member.value);
        }
        found.complete(text, turns)
    }

    /// Reads a translated body, of which only the members are walked that the translation wrote.
    pub(super) fn read_translated(text: &'a str, passed_on: &PassedOn) -> Result<Self, ViewError> {
        let (Some(begin), Some(members)) = (passed_on.begin(), passed_on.members(text)) else {
            return Self::read(text, |_, _| {});
        };
        let (mut found, mut turns) = (FoundFields::new(), KeptTurns::default());
        // With the body itself.
        let mut nodes = passed_on.nodes().saturating_add(1);
        let mut is_at_begin = false;
        let mut keep = |turn: Turn<'a>| turns.add(turn);
        for member in json::body_members(text, Some(&mut keep)) {
            let member = member?;
            nodes = nodes.saturating_add(member.nodes);
            found.add(&json::decode(member.key), member.value);
            is_at_begin = member.value.place_in(text).end == begin;
            if is_at_begin {
                break;
            }
        }
        // Too many values of both kinds are one error, and its place is found by a walk.
        if !is_at_begin || nodes > MAX_NODES {
            return Self::read(text, |_, _| {});
        }
        for (name, value) in members {
            found.add(&json::decode(name), value);
        }
        found.complete(text, turns)
    }

    /// Reads a body in which an earlier walk has found its members.
    pub(super) fn at(
        text: &'a str,
        spans: impl Iterator<Item = (Key, Option<RawJson<'a>>)>,
    ) -> Option<Self> {
        let mut values = [None; Key::COUNT];
        for (key, value) in spans {
            values[key as usize] = Some(value?);
        }
        Some(Self {
            text,
            values,
            turns: Vec::new(),
        })
    }

    /// Returns the places of the members in the body.
    fn spans(&self) -> MemberSpans {
        let found = Key::ALL.into_iter().filter_map(|key| {
            let value = self.values[key as usize]?;
            Some((key, value.place_in(self.text)))
        });
        MemberSpans::new(self.text, found.collect())
    }

    /// Returns the value of a key; `null` counts as absent.
    fn get(&self, key: Key) -> Option<RawJson<'a>> {
        self.values[key as usize].filter(|value| !value.is_null())
    }

    /// Returns the view in a dialect. Only the first one has the messages with their parts, which
    /// another one walks.
    pub(super) fn view(&mut self, dialect: Dialect) -> Result<RequestView<'a>, ViewError> {
        let sampling = self.sampling(dialect);
        let turns = std::mem::take(&mut self.turns);
        let media = self.media(dialect);
        let has_places = media.is_some();
        let include_usage = self
            .get(Key::StreamOptions)
            .and_then(|it| it.member("include_usage"))
            .and_then(RawJson::flag);
        Ok(RequestView {
            model: self.model(dialect)?,
            stream: self.flag(Key::Stream).unwrap_or(false),
            include_usage: include_usage.unwrap_or(false),
            prompt: self.prompt(dialect, turns, media.unwrap_or_default()),
            max_tokens: sampling.max_tokens,
            counts: BodyCounts {
                n: sampling.n.and_then(whole),
                further_bytes: self.further_bytes(dialect),
                ..BodyCounts::of(sampling.n, sampling.stop, self.lists(dialect))
            },
            priority: self.integer(Key::Priority),
            cache_salt: self.salt(dialect),
            session: self.session(),
            rendering: self.rendering(dialect, &sampling),
            kv: self.kv(dialect, &sampling),
            fidelity: self.fidelity(dialect, has_places),
            spans: self.spans(),
        })
    }

    /// Returns the sampling parameters, which two dialects put into an object of their own.
    fn sampling(&self, dialect: Dialect) -> SamplingFields<'a> {
        let longest = match dialect {
            Dialect::TokenIds => "max_tokens",
            Dialect::SglangGenerate => "max_new_tokens",
            _ => {
                let count = |key| self.get(key).and_then(whole);
                return SamplingFields {
                    n: self.get(Key::N),
                    stop: self.get(Key::Stop),
                    max_tokens: count(Key::MaxCompletionTokens).or_else(|| count(Key::MaxTokens)),
                    ..SamplingFields::default()
                };
            }
        };
        let sets = self.get(Key::SamplingParams);
        sets.map_or_else(SamplingFields::default, |sets| {
            SamplingFields::read(sets, longest)
        })
    }

    /// Returns the model, or the adapter: SGLang names one in a field of its own.
    fn model(&self, dialect: Dialect) -> Result<Cow<'a, str>, ViewError> {
        if dialect == Dialect::SglangGenerate
            && let Some(adapter) = self.get(Key::LoraPath).and_then(RawJson::string)
            && !adapter.is_empty()
        {
            return Ok(adapter);
        }
        match self.get(Key::Model) {
            None if dialect.model_is_optional() => Ok(Cow::Borrowed("")),
            value => model(value),
        }
    }

    /// Returns the salt. SGLang separates blocks by two fields, the second behind the first.
    fn salt(&self, dialect: Dialect) -> Option<Cow<'a, str>> {
        let text = |key| self.get(key).and_then(RawJson::string);
        let salt = text(Key::CacheSalt);
        let extra = (dialect == Dialect::SglangGenerate)
            .then(|| text(Key::Extra))
            .flatten();
        match (salt, extra) {
            (Some(salt), Some(extra)) => Some(Cow::Owned(format!("{salt}{extra}"))),
            (salt, extra) => salt.or(extra),
        }
    }

    fn fidelity(&self, dialect: Dialect, has_places: bool) -> Fidelity {
        let unknown = |key| self.get(key).is_some() && !(has_places && key == Key::Features);
        if dialect.model_is_optional() && MEDIA.into_iter().any(unknown) {
            Fidelity::Likeness
        } else {
            Fidelity::Exact
        }
    }

    /// Returns the items of vLLM's `features`; `None` without them, or if their form is unknown.
    fn media(&self, dialect: Dialect) -> Option<Vec<MediaPlaceholder<'a>>> {
        let features = self
            .get(Key::Features)
            .filter(|_| dialect == Dialect::TokenIds)?;
        media::placeholders(features)
    }

    fn kv(&self, dialect: Dialect, sampling: &SamplingFields<'a>) -> KvFields {
        // An echoed prompt comes with the logprobs of its own tokens.
        let echoes = dialect == Dialect::Completions && self.flag(Key::Echo) == Some(true);
        // SGLang computes the prompt anew from the first token whose logprobs are wanted.
        let starts_in_prompt = dialect == Dialect::SglangGenerate
            && self.flag(Key::ReturnLogprob) != Some(false)
            && self
                .get(Key::LogprobStartLen)
                .is_some_and(|start| start.integer() != Some(-1));
        let wants_prompt_logprobs = self.get(Key::PromptLogprobs).is_some()
            || (echoes && self.get(Key::Logprobs).is_some())
            || starts_in_prompt
            || sampling.prompt_logprobs;
        KvFields {
            transfer_fields: TransferFields::in_body(|key| self.get(key).is_some())
                .union(sampling.transfer_fields)
                .union(self.transfer_arguments()),
            skips_prefix_cache: wants_prompt_logprobs || self.get(Key::KvTransferParams).is_some(),
        }
    }

    /// Returns the members of `vllm_xargs` that control KV transfer.
    fn transfer_arguments(&self) -> TransferFields {
        let arguments = self.get(Key::VllmXargs).and_then(RawJson::members);
        let Some(members) = arguments.map(Iterator::collect::<Vec<_>>) else {
            return TransferFields::default();
        };
        let has = |name: &str| members.iter().any(|(key, it)| key == name && !it.is_null());
        TransferFields::in_arguments(has)
    }

    fn flag(&self, key: Key) -> Option<bool> {
        self.get(key).and_then(RawJson::flag)
    }

    fn integer(&self, key: Key) -> Option<i64> {
        self.get(key).and_then(RawJson::integer)
    }

    fn prompt(
        &self,
        dialect: Dialect,
        turns: Vec<Turn<'a>>,
        media: Vec<MediaPlaceholder<'a>>,
    ) -> PromptPart<'a> {
        match dialect {
            Dialect::Chat => self
                .get(Key::Messages)
                .map_or(PromptPart::None, |messages| {
                    PromptPart::Messages(ChatMessages::new(messages, turns))
                }),
            Dialect::Completions => self
                .get(Key::Prompt)
                .map_or(PromptPart::None, prompts::of_completion),
            Dialect::Embeddings => self.computed([Key::Input, Key::Messages, Key::Prompt]),
            Dialect::Rerank => self.computed([Key::Query, Key::Documents]),
            Dialect::Score => self.computed([
                Key::Text1,
                Key::Text2,
                Key::Queries,
                Key::Documents,
                Key::Query,
                Key::Items,
            ]),
            Dialect::ChatBatch => self
                .conversations()
                .and_then(|mut all| all.next())
                .map_or(PromptPart::None, |first| PromptPart::Messages(first.into())),
            Dialect::TokenIds => {
                let ids = self
                    .get(Key::TokenIds)
                    .map_or(PromptPart::None, prompts::token_ids);
                match ids {
                    PromptPart::TokenIds(ids) if !media.is_empty() => {
                        PromptPart::TokenIdsWithMedia { ids, media }
                    }
                    ids => ids,
                }
            }
            // The engine takes the ids if it gets both, and embeddings only without either.
            Dialect::SglangGenerate => self
                .get(Key::InputIds)
                .or_else(|| self.get(Key::Text))
                .filter(|_| self.get(Key::InputEmbeds).is_none())
                .map_or(PromptPart::None, prompts::of_completion),
            // These fields come from the chat that represents the request.
            Dialect::Responses | Dialect::Messages => PromptPart::None,
        }
    }

    fn session(&self) -> SessionFields<'a> {
        SessionFields {
            params_session_id: self
                .get(Key::SessionParams)
                .and_then(|it| it.member("session_id"))
                .and_then(name),
            user: self.get(Key::User).and_then(name),
            session_id: self.get(Key::SessionId).and_then(name),
            user_id: self.get(Key::UserId).and_then(name),
            prompt_cache_key: self.get(Key::PromptCache).and_then(name),
            metadata_user_id: self
                .get(Key::Metadata)
                .and_then(|it| it.member("user_id"))
                .and_then(name),
        }
    }

    /// Returns the conversations of a batch, each a list of messages.
    fn conversations(&self) -> Option<impl Iterator<Item = RawJson<'a>>> {
        self.get(Key::Messages).and_then(RawJson::elements)
    }

    /// Returns the bytes of the conversations after the first one.
    fn further_bytes(&self, dialect: Dialect) -> usize {
        if dialect != Dialect::ChatBatch {
            return 0;
        }
        let all = self.conversations().into_iter().flatten();
        all.skip(1).map(|one| one.as_str().len()).sum()
    }

    fn rendering(&self, dialect: Dialect, sampling: &SamplingFields<'a>) -> Rendering<'a> {
        // These engines read no fields of a template here, and ignore those that stand in the body.
        if dialect.model_is_optional() {
            return Rendering {
                truncate_prompt_tokens: sampling.truncate_prompt_tokens,
                ..Rendering::default()
            };
        }
        Rendering {
            add_generation_prompt: self.flag(Key::AddGenerationPrompt),
            continue_final_message: self.flag(Key::ContinueFinalMessage),
            add_special_tokens: self.flag(Key::AddSpecialTokens),
            truncate_prompt_tokens: self.integer(Key::TruncatePromptTokens),
            chat_template_kwargs: self.get(Key::ChatTemplateKwargs),
            chat_template: self.get(Key::ChatTemplate),
            tools: self.get(Key::Tools),
            tool_choice: self.get(Key::ToolChoice),
            documents: self.get(Key::Documents),
            reasoning_effort: self.get(Key::ReasoningEffort),
        }
    }

    /// Returns the fields that may contain several prompts.
    fn lists(&self, dialect: Dialect) -> impl Iterator<Item = (&'static str, RawJson<'a>)> {
        let keys: &[Key] = match dialect {
            Dialect::Chat | Dialect::Responses | Dialect::Messages | Dialect::TokenIds => &[],
            Dialect::ChatBatch => &[Key::Messages],
            Dialect::SglangGenerate => &[Key::Text, Key::InputIds],
            Dialect::Completions => &[Key::Prompt],
            Dialect::Embeddings => &[Key::Input],
            Dialect::Rerank => &[Key::Documents],
            Dialect::Score => &[
                Key::Text1,
                Key::Text2,
                Key::Queries,
                Key::Documents,
                Key::Items,
            ],
        };
        keys.iter()
            .filter_map(|key| self.get(*key).map(|value| (key.name(), value)))
    }

    /// Returns the texts of a request without generation: they are load, and no prefix of anything.
    fn computed<const N: usize>(&self, keys: [Key; N]) -> PromptPart<'a> {
        prompts::computed(keys.into_iter().filter_map(|key| self.get(key)))
    }
}

fn model(value: Option<RawJson<'_>>) -> Result<Cow<'_, str>, ViewError> {
    let found = match value {
        None => "missing or null",
        Some(value) => match value.string() {
            Some(name) if !name.is_empty() => return Ok(name),
            Some(_) => "an empty string",
            None => "not a string",
        },
    };
    Err(ViewError::Model { found })
}

/// A whole number that can be a count.
fn whole(value: RawJson<'_>) -> Option<u32> {
    value
        .integer()
        .and_then(|number| u32::try_from(number).ok())
}

/// A string, or a number as written.
fn name(value: RawJson<'_>) -> Option<Cow<'_, str>> {
    let text = value.as_str();
    let is_number = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    if is_number {
        Some(Cow::Borrowed(text))
    } else {
        value.string().filter(|text| !text.is_empty())
    }
}
