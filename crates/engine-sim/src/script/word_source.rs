//! Words and numbers of the model's own, to fill forms with.

use engine_model::ReplyStream;
use prompt::PromptModel;

/// Words to choose from if a schema wants a text.
const WORDS: u32 = 64;

/// A source of words and numbers to fill forms with.
#[derive(Debug)]
pub(super) struct WordSource {
    words: Vec<String>,
    stream: ReplyStream,
    next: u32,
}

impl WordSource {
    pub(super) fn new(model: &PromptModel, stream: &ReplyStream) -> Self {
        let decoded =
            (0..WORDS).map(|index| model.decode(&[stream.token(index)]).unwrap_or_default());
        let words: Vec<String> = decoded
            .map(|word| word.trim().to_owned())
            .filter(|word| !word.is_empty())
            .collect();
        Self {
            words,
            stream: stream.clone(),
            next: 0,
        }
    }

    /// Returns the next word.
    pub(super) fn word(&mut self) -> String {
        self.next = self.next.wrapping_add(1);
        let index = self.next as usize % self.words.len().max(1);
        self.words
            .get(index)
            .cloned()
            .unwrap_or_else(|| "word".to_owned())
    }

    /// Returns the next number below `end`; 0 if there is none.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.next = self.next.wrapping_add(1);
        self.stream.token(self.next) as usize % end.max(1)
    }

    /// Returns sixteen hex digits.
    pub(super) fn id(&mut self) -> String {
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
