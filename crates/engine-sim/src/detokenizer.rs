//! Text of a reply, token by token.

use prompt::PromptModel;

/// Turns tokens into text as they come, holding back what is not a whole character yet.
#[derive(Debug, Default)]
pub(crate) struct Detokenizer {
    ids: Vec<u32>,
    /// Where the context of the unsent tokens begins; some tokenizers join words only in context.
    context: usize,
    /// Tokens whose text is out.
    sent: usize,
}

impl Detokenizer {
    /// The text that `token` adds.
    pub(crate) fn push(&mut self, model: &PromptModel, token: u32) -> String {
        self.ids.push(token);
        // Ids come out of the tokenizer's own vocabulary; one that it cannot decode has no text.
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
