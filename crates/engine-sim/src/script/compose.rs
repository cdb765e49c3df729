//! What a reply says, decided before it is generated.

use std::sync::Arc;

use engine_model::{Finish, ReplyStream};
use prompt::PromptModel;
use serde_json::Value;

use super::{
    Channel, ReplyForm, ReplyOptions, ReplyScript, ScriptWriter, ToolCall, python_json, sample,
};

/// Keeps thoughts, arguments and further choices apart from the reply that seed and prompt alone make.
const THOUGHTS: u64 = 0x74_68_6f_75;
const FILLING: u64 = 0x66_69_6c_6c;
const CHOICE: u64 = 0x9e37_79b9_7f4a_7c15;
/// Words of a thought: this many, and up to so many more.
const LEAST_THOUGHT: u32 = 6;
const MORE_THOUGHT: u32 = 12;
/// Words to choose from where a schema wants a text.
const WORDS: u32 = 64;

/// Who speaks.
#[derive(Clone, Debug)]
pub(crate) struct Speaker<'a> {
    pub(crate) model: &'a PromptModel,
    pub(crate) alphabet: &'a Arc<[u32]>,
    pub(crate) seed: u64,
}

/// How long a reply is that nothing cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenEnd {
    /// As long as seed and prompt make it.
    Natural,
    /// Up to the model's length.
    Longest,
    /// As long as seed and prompt make it, and a limit only cuts it: APIs that always want a limit are served so.
    NaturalWithin,
}

/// How long a reply may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LengthLimit {
    /// `None`: as long as the model likes.
    pub(crate) max_tokens: Option<u32>,
    pub(crate) open_end: OpenEnd,
    /// What the model's length leaves.
    pub(crate) room: u32,
}

impl LengthLimit {
    /// Tokens of a reply of words, and how it ends.
    pub(crate) fn words(self, natural: impl FnOnce() -> u32) -> (u32, Finish) {
        match (self.max_tokens, self.open_end) {
            (Some(wanted), OpenEnd::NaturalWithin) => {
                let natural = natural();
                if natural <= wanted {
                    (natural, Finish::Stop)
                } else {
                    (wanted, Finish::Length)
                }
            }
            (Some(wanted), _) => (wanted, Finish::Length),
            (None, OpenEnd::Longest) => (self.room, Finish::Length),
            (None, OpenEnd::Natural | OpenEnd::NaturalWithin) => {
                let natural = natural();
                if natural <= self.room {
                    (natural, Finish::Stop)
                } else {
                    (self.room, Finish::Length)
                }
            }
        }
    }
}

/// The reply to `prompt`; the choice 0 says what the model would say by itself, the others something else.
pub(crate) fn compose(
    wish: &ReplyOptions,
    speaker: &Speaker<'_>,
    prompt: &[u32],
    choice: u32,
    limit: LengthLimit,
) -> ReplyScript {
    let seed = speaker
        .seed
        .wrapping_add(u64::from(choice).wrapping_mul(CHOICE));
    let stream =
        |purpose: u64| ReplyStream::new(seed ^ purpose, prompt, Arc::clone(speaker.alphabet));
    let mut writer = ScriptWriter::new(speaker.model);
    if wish.thinking {
        think(&mut writer, &stream(THOUGHTS));
    }
    let (mut finish, mut calls) = (Finish::Stop, Vec::new());
    match &wish.form {
        _ if !wish.calls.is_empty() => {
            let mut words = WordSource::new(speaker.model, &stream(FILLING));
            for (place, (name, schema)) in wish.calls.iter().enumerate() {
                let arguments = python_json::spelled(&sample(schema, &mut words));
                writer.text(
                    Channel::Hidden,
                    &format!(
                        "\n<call>{{\"name\": {}, \"arguments\": ",
                        Value::from(&**name)
                    ),
                );
                writer.text(Channel::Call(place), &arguments);
                writer.text(Channel::Hidden, "}</call>");
                calls.push(ToolCall {
                    id: words.id(),
                    name: name.clone(),
                });
            }
        }
        Some(form) => {
            let mut words = WordSource::new(speaker.model, &stream(FILLING));
            let text = match form {
                ReplyForm::Schema(schema) => python_json::spelled(&sample(schema, &mut words)),
                ReplyForm::Choice(texts) => texts
                    .get(words.below(texts.len()))
                    .cloned()
                    .unwrap_or_default(),
            };
            writer.text(Channel::Content, &text);
        }
        None => {
            let reply = stream(0);
            let (whole, end) = limit.words(|| reply.natural_len());
            // What was thought counts where the length is the client's.
            let left = if end == Finish::Length {
                whole.saturating_sub(writer.len())
            } else {
                whole
            };
            finish = end;
            writer.words(
                Channel::Content,
                (0..left.min(limit.room))
                    .map(|place| reply.token(place))
                    .collect(),
            );
        }
    }
    let mut script = ReplyScript {
        tokens: Arc::default(),
        texts: writer.texts,
        calls,
        finish,
        stopped_by: None,
    };
    let kept = stop(&mut script, wish).min(writer.tokens.len());
    writer.tokens.truncate(kept);
    script.texts.truncate(kept);
    script.tokens = writer.tokens.into();
    script
}

fn think(writer: &mut ScriptWriter<'_>, stream: &ReplyStream) {
    let count = LEAST_THOUGHT + stream.natural_len() % MORE_THOUGHT;
    writer.text(Channel::Hidden, "<think>\n");
    writer.words(
        Channel::Reasoning,
        (0..count).map(|place| stream.token(place)).collect(),
    );
    writer.text(Channel::Hidden, "\n</think>\n\n");
}

/// Ends the content at the stop string that comes first; how many tokens are left.
fn stop(script: &mut ReplyScript, wish: &ReplyOptions) -> usize {
    // Where each token's content ends.
    let (mut content, mut ends) = (String::new(), Vec::with_capacity(script.texts.len()));
    for said in &script.texts {
        if said.channel == Channel::Content {
            content.push_str(&said.text);
        }
        ends.push(content.len());
    }
    let token_of = |end: usize| ends.partition_point(|token_end| *token_end < end);
    let found = wish
        .stop
        .iter()
        .filter_map(|stop| content.find(stop.as_str()).map(|start| (start, stop)));
    let Some((start, stop)) = found.min_by_key(|(start, stop)| token_of(start + stop.len())) else {
        return script.texts.len();
    };
    let last = token_of(start + stop.len());
    let mut left = if wish.keep_stop {
        start + stop.len()
    } else {
        start
    };
    for said in script
        .texts
        .iter_mut()
        .take(last + 1)
        .filter(|said| said.channel == Channel::Content)
    {
        let cut = said.text.floor_char_boundary(left);
        said.text.truncate(cut);
        left -= cut;
    }
    script.finish = Finish::Stop;
    script.stopped_by = Some(stop.clone());
    last + 1
}

/// Words and numbers to fill forms with, one after the other.
#[derive(Debug)]
pub(super) struct WordSource {
    words: Vec<String>,
    stream: ReplyStream,
    next: u32,
}

impl WordSource {
    fn new(model: &PromptModel, stream: &ReplyStream) -> Self {
        let said = (0..WORDS).map(|place| model.decode(&[stream.token(place)]).unwrap_or_default());
        let words: Vec<String> = said
            .map(|word| word.trim().to_owned())
            .filter(|word| !word.is_empty())
            .collect();
        Self {
            words,
            stream: stream.clone(),
            next: 0,
        }
    }

    /// The next word.
    pub(super) fn word(&mut self) -> String {
        self.next = self.next.wrapping_add(1);
        let place = self.next as usize % self.words.len().max(1);
        self.words
            .get(place)
            .cloned()
            .unwrap_or_else(|| "word".to_owned())
    }

    /// The next number below `end`; 0 where there is none.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.next = self.next.wrapping_add(1);
        self.stream.token(self.next) as usize % end.max(1)
    }

    /// Sixteen hex digits.
    fn id(&mut self) -> String {
        (0..4)
            .map(|_| format!("{:04x}", self.below(0x1_0000)))
            .collect()
    }
}

#[cfg(test)]
pub(super) fn any_words() -> WordSource {
    WordSource {
        words: ["one", "two", "three"].map(str::to_owned).into(),
        stream: ReplyStream::new(0, &[1], (0..500).collect()),
        next: 0,
    }
}
