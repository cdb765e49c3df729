//! The messages of a chat, with the parts that routing reads of each.

use crate::json::{raw::RawJson, turns::walk_turns};

/// The value of `messages`, of any form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessages<'a> {
    raw: RawJson<'a>,
    /// Found while the body was read, so that no later stage searches it again; empty if it was
    /// read otherwise, or has more than [`Self::MOST`].
    turns: Vec<Turn<'a>>,
}

/// One message of a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn<'a> {
    /// The whole message.
    pub raw: RawJson<'a>,
    /// Its `role`; `null` counts as absent.
    pub role: Option<RawJson<'a>>,
    /// Its `content`; `null` counts as absent.
    pub content: Option<RawJson<'a>>,
    /// Whether it is an object with other members, or no object.
    pub has_more: bool,
    /// Whether a string in it has an escape that other clients may write in another way.
    pub has_odd_escapes: bool,
}

impl<'a> ChatMessages<'a> {
    /// Most messages that are kept: some 230 KB.
    pub(crate) const MOST: usize = 4096;

    pub(crate) fn new(raw: RawJson<'a>, turns: Vec<Turn<'a>>) -> Self {
        Self { raw, turns }
    }

    /// Returns the value.
    pub fn raw(&self) -> RawJson<'a> {
        self.raw
    }

    /// Returns the text of the value.
    pub fn as_str(&self) -> &'a str {
        self.raw.as_str()
    }

    /// Returns the messages, if the value is a list.
    pub fn elements(&self) -> Option<impl Iterator<Item = RawJson<'a>> + use<'a>> {
        self.raw.elements()
    }

    /// Calls `each` for every message, in order; returns false if the value is no list.
    pub fn for_each_turn(&self, each: impl FnMut(&Turn<'a>)) -> bool {
        if self.turns.is_empty() {
            walk_turns(self.as_str(), each)
        } else {
            self.turns.iter().for_each(each);
            true
        }
    }
}

impl<'a> From<RawJson<'a>> for ChatMessages<'a> {
    fn from(raw: RawJson<'a>) -> Self {
        Self::new(raw, Vec::new())
    }
}

impl<'a> Turn<'a> {
    /// Returns whether the message has this role.
    pub fn has_role(&self, name: &str) -> bool {
        self.role
            .and_then(RawJson::string)
            .is_some_and(|role| role == name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::{Dialect, PromptPart, view};

    /// Text, role, content, whether there is more, and whether there are odd escapes.
    type TurnParts = (String, Option<String>, Option<String>, bool, bool);

    /// The turns as found with the body, and as found later.
    fn both(messages: &str) -> [Vec<TurnParts>; 2] {
        let body = format!(r#"{{"model":"m","messages":{messages}}}"#);
        let view = view(Dialect::Chat, body.as_bytes()).expect("a good body");
        let PromptPart::Messages(found) = &view.prompt else {
            panic!("a chat")
        };
        [found.clone(), ChatMessages::from(found.raw())].map(|messages| {
            let mut turns = Vec::new();
            let text = |value: Option<RawJson<'_>>| value.map(|value| value.as_str().to_owned());
            messages.for_each_turn(|turn| {
                turns.push((
                    turn.raw.as_str().to_owned(),
                    text(turn.role),
                    text(turn.content),
                    turn.has_more,
                    turn.has_odd_escapes,
                ));
            });
            turns
        })
    }

    #[test]
    fn a_turn_has_its_role_and_content_as_engines_read_them() {
        let [found, walked] = both(
            r#"[ {"role":"user","content":"a\n"},{"content":[{"text":"b\u00e9"}],"role":"tool","id":1 },{},7,
               {"role":"a","role":null,"content":"x","content":"\/"}]"#,
        );
        assert_eq!(found, walked);
        let short: Vec<_> = found
            .iter()
            .map(|(_, role, content, more, odd)| (role.as_deref(), content.as_deref(), *more, *odd))
            .collect();
        assert_eq!(
            short,
            [
                (Some(r#""user""#), Some(r#""a\n""#), false, false),
                (
                    Some(r#""tool""#),
                    Some(r#"[{"text":"b\u00e9"}]"#),
                    true,
                    true
                ),
                (None, None, false, false),
                (None, None, true, false),
                (None, Some(r#""\/""#), false, true),
            ]
        );
        assert_eq!(both("{}"), [vec![], vec![]]);
        assert_eq!(both("[]"), [vec![], vec![]]);
    }

    #[test]
    fn more_messages_than_are_kept_are_found_by_a_walk() {
        let messages = format!("[{}{{}}]", "{},".repeat(ChatMessages::MOST));
        let [found, walked] = both(&messages);
        assert_eq!((found.len(), walked.len()), (4097, 4097));
    }

    proptest! {
        #[test]
        fn turns_are_the_members_of_the_messages(texts in prop::collection::vec((".{0,80}", any::<bool>()), 0..6)) {
            let messages: Vec<Value> = texts
                .iter()
                .map(|(text, calls)| if *calls {
                    json!({"role": "assistant", "content": null, "tool_calls": [{"arguments": text}]})
                } else {
                    json!({"role": "user", "content": text})
                })
                .collect();
            let [found, walked] = both(&Value::from(messages.clone()).to_string());
            prop_assert_eq!(&found, &walked);
            prop_assert_eq!(found.len(), messages.len());
            for (turn, message) in found.iter().zip(&messages) {
                prop_assert_eq!(&turn.0, &message.to_string());
                let content = message.get("content").filter(|content| !content.is_null());
                prop_assert_eq!(turn.2.clone(), content.map(Value::to_string));
                prop_assert_eq!(turn.3, message.get("tool_calls").is_some());
            }
        }
    }
}
