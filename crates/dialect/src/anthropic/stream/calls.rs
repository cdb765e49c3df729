//! The tool calls of a stream.

use super::{InvalidStream, MessageStream, OpenBlock, UnnamedCall};
use crate::RawJson;

/// Maximum number of calls in one message.
const MOST_CALLS: usize = 256;
/// Maximum bytes of a call's arguments before its name.
const MOST_UNNAMED: usize = 64 * 1024;

impl MessageStream {
    /// Writes a piece of a call.
    pub(super) fn call(
        &mut self,
        call: RawJson<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), InvalidStream> {
        let function = call.member("function");
        let text = |value: Option<_>| value.and_then(RawJson::string).unwrap_or_default();
        let (id, name) = (
            text(call.member("id")),
            text(function.and_then(|function| function.member("name"))),
        );
        let arguments = text(function.and_then(|function| function.member("arguments")));
        let number = self.number_of(call, &id);
        if self.calls.contains(&number) {
            if self.open != Some(OpenBlock::Call(number)) {
                return Err("the worker's stream goes back to a call that had ended");
            }
            if !arguments.is_empty() {
                self.delta(out, "input_json_delta", "partial_json", &arguments);
            }
            return Ok(());
        }
        let mut begun = match self.unnamed.take() {
            Some(unnamed) if unnamed.number == number => unnamed,
            Some(_) => return Err("the worker's stream has a call without a name"),
            None => UnnamedCall {
                number,
                id: String::new(),
                arguments: String::new(),
            },
        };
        if begun.id.is_empty() {
            begun.id = id.into_owned();
        }
        begun.arguments += &arguments;
        if name.is_empty() {
            if begun.arguments.len() > MOST_UNNAMED {
                return Err("the worker's stream has a call without a name");
            }
            self.unnamed = Some(begun);
            return Ok(());
        }
        if self.calls.len() >= MOST_CALLS {
            return Err("the worker's stream has more than 256 calls");
        }
        self.calls.push(number);
        self.open_block(OpenBlock::Call(number), out, |block| {
            block.text("type", "tool_use");
            block.text("id", &begun.id);
            block.text("name", &name);
            block.raw("input", "{}");
        });
        if !begun.arguments.is_empty() {
            self.delta(out, "input_json_delta", "partial_json", &begun.arguments);
        }
        Ok(())
    }

    /// Returns the number of a call; without an index, a new id starts a new call.
    fn number_of(&self, call: RawJson<'_>, id: &str) -> u32 {
        let index = call
            .member("index")
            .and_then(RawJson::integer)
            .and_then(|index| u32::try_from(index).ok());
        index.unwrap_or_else(|| {
            let next = u32::try_from(self.calls.len()).unwrap_or(u32::MAX);
            if id.is_empty() {
                next.saturating_sub(1)
            } else {
                next
            }
        })
    }
}
