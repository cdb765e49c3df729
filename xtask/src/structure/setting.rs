//! The source files that name a setting.

use super::source_file::SourceFile;
use crate::rust_tokens::TokenKind;

/// Returns one line per file and their number, for a key such as `queue.hold_above`. A file names
/// the setting if the key's last part is an identifier in it, or the last part of a string.
pub(super) fn files_naming(files: &[SourceFile], key: &str) -> String {
    let name = last_part(key);
    let naming: Vec<_> = files.iter().filter(|file| names(file, name)).collect();
    let lines = naming.iter().map(|file| format!("{}\n", file.path));
    lines.collect::<String>() + &format!("{} source files name `{name}`\n", naming.len())
}

fn names(file: &SourceFile, name: &str) -> bool {
    file.tokens.iter().enumerate().any(|(at, token)| {
        let is_name = match &token.what {
            TokenKind::Word(word) => word == name,
            TokenKind::Text(text) => last_part(text) == name,
            TokenKind::Sign(_) => false,
        };
        is_name && !file.is_test(at)
    })
}

fn last_part(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_named_by_an_identifier_or_by_a_string() {
        let file = |name: &str, text| SourceFile::new(&format!("crates/a/src/{name}.rs"), text);
        let files = [
            file("a", "hold_above: Duration"),
            file("b", "key(\"queue.hold_above\")"),
            file(
                "c",
                "// hold_above\nlet hold_above_all = \"hold_above it\";",
            ),
            file("d", "#[cfg(test)] mod tests { fn hold_above() {} }"),
        ];
        assert_eq!(
            files_naming(&files, "queue.hold_above"),
            "crates/a/src/a.rs\ncrates/a/src/b.rs\n2 source files name `hold_above`\n"
        );
    }
}
