//! Converts a reply's tokens to text, one by one.

use prompt::PromptModel;

/// Converts tokens to text as they arrive, holding back incomplete characters.
#[derive(Debug, Default)]
pub(crate) struct Detokenizer {
    ids: Vec<u32>,
    /// Start of the context of the unsent tokens; some tokenizers join words only in context.
    context: usize,
    /// Number of tokens whose text is sent.
    sent: usize,
}

impl Detokenizer {
    /// Returns the text that `token` adds.
    pub(crate) fn push(&mut self, model: &PromptModel, token: u32) -> String {
        self.ids.push(token);
        // Ids come from the tokenizer's own vocabulary; one that it cannot decode has no text.
        let known = model
            .decode(&self.ids[self.context..self.sent])
            .unwrap_or_default();
        let whole = model.decode(&self.ids[self.context..]).unwrap_or_default();
        match whole.strip_prefix(&known) {
            Some(added) if !added.is_empty() && !added.ends_with('\u{fffd}') => {
                let added = added.to_owned();
                self.context = self.sent;
                self.sent = self.ids.len();
                added
            }
            _ => String::new(),
        }
    }
}
