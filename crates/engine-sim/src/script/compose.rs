//! Composes the script of a reply before its generation.

use std::sync::Arc;

use engine_model::{Finish, ReplyStream};
use prompt::PromptModel;
use serde_json::Value;

use super::{
    Channel, ReplyForm, ReplyOptions, ReplyScript, ScriptWriter, ToolCall, python_json, sample,
    word_source::WordSource,
};

/// Separates the seeds of reasoning, arguments and further choices from the reply of seed and
/// prompt alone.
const THOUGHTS: u64 = 0x74_68_6f_75;
const FILLING: u64 = 0x66_69_6c_6c;
const CHOICE: u64 = 0x9e37_79b9_7f4a_7c15;
/// Words of the reasoning: this minimum, and a random number more.
const MIN_THINKING_TOKENS: u32 = 6;
const EXTRA_THINKING_TOKENS: u32 = 12;
/// The model's inputs for words.
#[derive(Clone, Debug)]
pub(crate) struct Vocabulary<'a> {
    pub(crate) model: &'a PromptModel,
    pub(crate) alphabet: &'a Arc<[u32]>,
    pub(crate) seed: u64,
}

/// The length of a reply without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenEnd {
    /// The length that seed and prompt determine.
    Natural,
    /// The maximum length of the model.
    Longest,
    /// The length that seed and prompt determine, cut by a limit: for APIs that always require a
    /// limit.
    NaturalWithin,
}

/// The limits of a reply's length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LengthLimit {
    /// `None`: no limit by the client.
    pub(crate) max_tokens: Option<u32>,
    pub(crate) open_end: OpenEnd,
    /// Tokens that the model's length leaves.
    pub(crate) available_tokens: u32,
}

impl LengthLimit {
    /// Returns the tokens of a reply of words, and its finish reason.
    pub(crate) fn words(self, natural: impl FnOnce() -> u32) -> (u32, Finish) {
        match (self.max_tokens, self.open_end) {
            (Some(requested), OpenEnd::NaturalWithin) => {
                let natural = natural();
                if natural <= requested {
                    (natural, Finish::Stop)
                } else {
                    (requested, Finish::Length)
                }
            }
            (Some(requested), _) => (requested, Finish::Length),
            (None, OpenEnd::Longest) => (self.available_tokens, Finish::Length),
            (None, OpenEnd::Natural | OpenEnd::NaturalWithin) => {
                let natural = natural();
                if natural <= self.available_tokens {
                    (natural, Finish::Stop)
                } else {
                    (self.available_tokens, Finish::Length)
                }
            }
        }
    }
}

/// One choice of the reply to a prompt.
#[derive(Clone, Debug)]
pub(crate) struct ReplyChoice {
    pub(crate) prompt: Arc<[u32]>,
    /// Choice 0 has the model's own words, the others differ.
    pub(crate) number: u32,
    pub(crate) limit: LengthLimit,
}

/// Returns the script of a choice.
pub(crate) fn compose(
    options: &ReplyOptions,
    vocabulary: &Vocabulary<'_>,
    choice: &ReplyChoice,
) -> ReplyScript {
    let seed = vocabulary
        .seed
        .wrapping_add(u64::from(choice.number).wrapping_mul(CHOICE));
    let stream = |purpose: u64| {
        ReplyStream::new(
            seed ^ purpose,
            &choice.prompt,
            Arc::clone(vocabulary.alphabet),
        )
    };
    let filling = || WordSource::new(vocabulary.model, &stream(FILLING));
    let mut writer = ScriptWriter::new(vocabulary.model);
    if options.thinking {
        think(&mut writer, &stream(THOUGHTS));
    }
    let (mut finish, mut calls) = (Finish::Stop, Vec::new());
    match &options.form {
        _ if !options.calls.is_empty() => calls = call(&mut writer, &options.calls, &mut filling()),
        Some(form) => writer.text(Channel::Content, &filled(form, &mut filling())),
        None => finish = write_content(&mut writer, &stream(0), choice.limit),
    }
    let mut script = ReplyScript {
        tokens: Arc::default(),
        texts: writer.texts,
        calls,
        finish,
        stopped_by: None,
    };
    let length = stop(&mut script, options).min(writer.tokens.len());
    writer.tokens.truncate(length);
    script.texts.truncate(length);
    script.tokens = writer.tokens.into();
    script
}

/// Writes the calls, with arguments that fit their schemas.
fn call(
    writer: &mut ScriptWriter<'_>,
    requested: &[(String, Value)],
    words: &mut WordSource,
) -> Vec<ToolCall> {
    let mut calls = Vec::with_capacity(requested.len());
    for (index, (name, schema)) in requested.iter().enumerate() {
        let arguments = python_json::serialize(&sample(schema, words));
        writer.text(
            Channel::Hidden,
            &format!(
                "\n<call>{{\"name\": {}, \"arguments\": ",
                Value::from(&**name)
            ),
        );
        writer.text(Channel::Call(index), &arguments);
        writer.text(Channel::Hidden, "}</call>");
        calls.push(ToolCall {
            id: words.id(),
            name: name.clone(),
        });
    }
    calls
}

fn filled(form: &ReplyForm, words: &mut WordSource) -> String {
    match form {
        ReplyForm::Schema(schema) => python_json::serialize(&sample(schema, words)),
        ReplyForm::Choice(texts) => texts
            .get(words.below(texts.len()))
            .cloned()
            .unwrap_or_default(),
    }
}

/// Writes the model's own words; returns the reply's finish reason.
fn write_content(writer: &mut ScriptWriter<'_>, reply: &ReplyStream, limit: LengthLimit) -> Finish {
    let (whole, finish) = limit.words(|| reply.natural_len());
    // Reasoning counts towards a length that the client sets.
    let left = if finish == Finish::Length {
        whole.saturating_sub(writer.len())
    } else {
        whole
    };
    writer.words(
        Channel::Content,
        (0..left.min(limit.available_tokens))
            .map(|index| reply.token(index))
            .collect(),
    );
    finish
}

fn think(writer: &mut ScriptWriter<'_>, stream: &ReplyStream) {
    let count = MIN_THINKING_TOKENS + stream.natural_len() % EXTRA_THINKING_TOKENS;
    writer.text(Channel::Hidden, "<think>\n");
    writer.words(
        Channel::Reasoning,
        (0..count).map(|index| stream.token(index)).collect(),
    );
    writer.text(Channel::Hidden, "\n</think>\n\n");
}

/// Ends the content at the first stop string; returns the number of tokens left.
fn stop(script: &mut ReplyScript, options: &ReplyOptions) -> usize {
    // The end of each token's content.
    let (mut content, mut ends) = (String::new(), Vec::with_capacity(script.texts.len()));
    for piece in &script.texts {
        if piece.channel == Channel::Content {
            content.push_str(&piece.text);
        }
        ends.push(content.len());
    }
    let token_of = |end: usize| ends.partition_point(|token_end| *token_end < end);
    let found = options
        .stop
        .iter()
        .filter_map(|stop| content.find(stop.as_str()).map(|start| (start, stop)));
    let Some((start, stop)) = found.min_by_key(|(start, stop)| token_of(start + stop.len())) else {
        return script.texts.len();
    };
    let last = token_of(start + stop.len());
    let mut left = if options.keep_stop {
        start + stop.len()
    } else {
        start
    };
    for piece in script
        .texts
        .iter_mut()
        .take(last + 1)
        .filter(|piece| piece.channel == Channel::Content)
    {
        let cut = piece.text.floor_char_boundary(left);
        piece.text.truncate(cut);
        left -= cut;
    }
    script.finish = Finish::Stop;
    script.stopped_by = Some(stop.clone());
    last + 1
}
