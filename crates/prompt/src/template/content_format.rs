//! Reads the content format from a template's source without running it.
//!
//! Engines decide by the template's syntax whether messages carry texts or lists of parts, so this
//! searches for the same pattern: a loop over the content of a loop variable over the messages. It
//! reads tags, and is no parser.

/// The form of message content that a template expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentFormat {
    /// One text.
    Text,
    /// A list of parts.
    Parts,
}

impl ContentFormat {
    /// Reads the format from a template's source.
    pub(crate) fn of(source: &str) -> Self {
        let tags: Vec<Tag<'_>> = tags(source).filter_map(Tag::read).collect();
        // Names of the messages, or of some of them.
        let mut lists = vec!["messages"];
        let mut at = 0;
        while let Some(list) = lists.get(at).copied() {
            at += 1;
            for tag in &tags {
                if let Tag::Set { name, value } = tag
                    && is_whole(value, list, None)
                    && !lists.contains(name)
                {
                    lists.push(name);
                }
            }
        }
        let over = |predicate: &dyn Fn(&str) -> bool| -> Vec<&str> {
            let loops = tags.iter().filter_map(|tag| match tag {
                Tag::For { name, over } if predicate(over) => Some(*name),
                _ => None,
            });
            loops.collect()
        };
        let messages = over(&|value| lists.iter().any(|list| is_whole(value, list, None)));
        let parts = over(&|value| {
            messages
                .iter()
                .any(|message| is_whole(value, message, Some("content")))
        });
        // Engines do not support a loop that unpacks its variable; they then use texts.
        if messages.iter().chain(&parts).any(|name| name.contains(',')) || parts.is_empty() {
            Self::Text
        } else {
            Self::Parts
        }
    }
}

/// The tags that bind names.
enum Tag<'a> {
    Set { name: &'a str, value: &'a str },
    For { name: &'a str, over: &'a str },
}

impl<'a> Tag<'a> {
    fn read(tag: &'a str) -> Option<Self> {
        if let Some(set) = word(tag, "set") {
            let (name, value) = set.split_once('=')?;
            return Some(Self::Set {
                name: name.trim(),
                value: value.trim(),
            });
        }
        let (name, over) = word(tag, "for")?.split_once(" in ")?;
        // The condition and the mark of a recursive loop are not part of the iterated expression.
        let over = over.split(" if ").next()?.trim();
        Some(Self::For {
            name: name.trim(),
            over: over.strip_suffix(" recursive").unwrap_or(over).trim(),
        })
    }
}

/// Returns the text after `word`, if it starts with that.
fn word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.strip_prefix(word)
        .filter(|rest| rest.starts_with(char::is_whitespace))
        .map(str::trim)
}

/// Returns whether `value` is `name` (or its `key`), at most sliced, filtered or tested.
fn is_whole(value: &str, name: &str, key: Option<&str>) -> bool {
    let Some(mut rest) = value.strip_prefix(name) else {
        return false;
    };
    if let Some(key) = key {
        let keyed = [
            format!(".{key}"),
            format!("['{key}']"),
            format!("[\"{key}\"]"),
        ];
        let Some(after) = keyed
            .iter()
            .find_map(|spelling| rest.strip_prefix(spelling.as_str()))
        else {
            return false;
        };
        rest = after;
    }
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return true;
        }
        let after = if let Some(index) = rest.strip_prefix('[') {
            index
                .split_once(']')
                .filter(|(index, _)| index.contains(':'))
                .map(|(_, after)| after)
        } else if let Some(filter) = rest.strip_prefix('|') {
            Some(after_call(filter.trim_start()))
        } else {
            word(rest, "is").map(|test| after_call(word(test, "not").unwrap_or(test)))
        };
        match after {
            Some(after) if after.len() < rest.len() => rest = after,
            _ => return false,
        }
    }
}

/// Returns the text after a name and its arguments.
fn after_call(text: &str) -> &str {
    let end = text
        .find(|character: char| !character.is_alphanumeric() && character != '_')
        .unwrap_or(text.len());
    let rest = &text[end..];
    match rest.strip_prefix('(') {
        Some(arguments) => arguments.split_once(')').map_or("", |(_, after)| after),
        None => rest,
    }
}

/// Returns the insides of `{% %}` tags.
fn tags(source: &str) -> impl Iterator<Item = &str> {
    let mut rest = source;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once("{%")?;
        let (tag, after) = after.split_once("%}")?;
        rest = after;
        Some(
            tag.trim_start_matches(['-', '+'])
                .trim_end_matches(['-', '+'])
                .trim(),
        )
    })
}

/// Replaces the tags that mark a reply for training, which do not affect its text, by ones that
/// every template engine supports. The marks for space around a tag stay unchanged.
pub(super) fn plain_blocks(source: &str) -> String {
    let mut plain = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, after)) = rest.split_once("{%") {
        let Some((tag, following)) = after.split_once("%}") else {
            break;
        };
        plain.push_str(before);
        plain.push_str("{%");
        match tag.trim_matches(['-', '+']).trim() {
            "generation" => plain.push_str(&tag.replace("generation", " if true ")),
            "endgeneration" => plain.push_str(&tag.replace("endgeneration", " endif ")),
            _ => plain.push_str(tag),
        }
        plain.push_str("%}");
        rest = following;
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_over_the_content_of_messages_selects_parts() {
        for source in [
            "{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}",
            "{%- for message in messages[1:] -%}{%- for part in message['content'] if part -%}",
            "{% set loop_messages = messages %}{% for m in loop_messages | list %}{% for c in m[\"content\"] | reverse %}",
            "{% set a = b %}{% set b = messages %}{% for m in a %}{% for c in m.content %}",
        ] {
            assert_eq!(ContentFormat::of(source), ContentFormat::Parts, "{source}");
        }
    }

    #[test]
    fn any_other_template_selects_text() {
        for source in [
            "",
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "{% for c in messages[0].content %}{% endfor %}",
            "{% for m in messages %}{% for c in m.contents %}",
            "{% for m in messages %}{% set content = m.content %}{% for c in content %}",
            "{% for m in other %}{% for c in m.content %}",
            "{% for m in messages %}{% for a, b in m.content %}",
            "{{ '{% for m in messages' }}",
        ] {
            assert_eq!(ContentFormat::of(source), ContentFormat::Text, "{source}");
        }
    }

    #[test]
    fn training_tags_become_blocks_without_effect() {
        let source = "a {%- generation -%} b {% endgeneration %} {% if generation %}";
        assert_eq!(
            plain_blocks(source),
            "a {%-  if true  -%} b {%  endif  %} {% if generation %}"
        );
        assert_eq!(plain_blocks("{% unclosed"), "{% unclosed");
    }
}
