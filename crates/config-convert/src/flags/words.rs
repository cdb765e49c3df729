//! Splits a command line as a shell does, without the parts that only a running shell can evaluate.

/// Returns the words of a command line: quotes and backslashes are interpreted, a backslash
/// continues a line, `#` begins a comment. Variables and substitutions stay as written.
pub(super) fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                // The line continues.
                Some('\n') | None => {}
                Some(escaped) => word.get_or_insert_default().push(escaped),
            },
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                while let Some(inner) = letters.next() {
                    match inner {
                        _ if inner == letter => break,
                        '\\' if letter == '"' => word.extend(letters.next()),
                        _ => word.push(inner),
                    }
                }
            }
            '#' if word.is_none() => {
                letters.by_ref().find(|letter| *letter == '\n');
            }
            _ if letter.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn a_command_is_split_as_in_a_shell() {
        let text = "# start\npython -m r \\\n  --a 'x y' --b=\"1 \\\" 2\"\t--c\\ d # done\n";
        assert_eq!(
            words(text),
            ["python", "-m", "r", "--a", "x y", "--b=1 \" 2", "--c d"]
        );
        for text in ["", "'open", "\\", "\"a\\"] {
            let _ = words(text);
        }
    }
}
