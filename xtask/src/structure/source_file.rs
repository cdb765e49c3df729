//! A source file of a crate, and which of its tokens are test code.

use std::{
    collections::{BTreeMap, HashSet},
    ops::Range,
};

use crate::rust_tokens::{SourceToken, tokens};

/// A file below `crates/*/src` or `python/src` that is not test code as a whole.
pub(super) struct SourceFile {
    /// Relative to the repository, with `/`.
    pub(super) path: String,
    pub(super) text: String,
    pub(super) tokens: Vec<SourceToken>,
    /// Inline modules under `#[cfg(test)]`, as positions in `tokens`.
    test_modules: Vec<Range<usize>>,
}

impl SourceFile {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let tokens = tokens(text);
        let test_modules = test_modules(&tokens)
            .into_iter()
            .filter_map(|module| module.body.ok())
            .collect();
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            tokens,
            test_modules,
        }
    }

    pub(super) fn crate_name(&self) -> &str {
        crate_of(&self.path).unwrap_or_default()
    }

    pub(super) fn is_test(&self, position: usize) -> bool {
        self.test_modules
            .iter()
            .any(|module| module.contains(&position))
    }

    /// Returns the number of lines outside test modules.
    pub(super) fn lines(&self) -> usize {
        let test_lines: usize = self
            .test_modules
            .iter()
            .map(|module| self.tokens[module.end - 1].line - self.tokens[module.start].line + 1)
            .sum();
        self.text.lines().count().saturating_sub(test_lines)
    }

    /// Returns the lines outside test modules that are neither blank nor comments.
    pub(super) fn code_lines(&self) -> usize {
        let test_lines: HashSet<usize> = self
            .test_modules
            .iter()
            .flat_map(|module| self.tokens[module.start].line..=self.tokens[module.end - 1].line)
            .collect();
        let code = self.text.lines().enumerate().filter(|(index, line)| {
            let line = line.trim();
            !line.is_empty() && !line.starts_with("//") && !test_lines.contains(&(index + 1))
        });
        code.count()
    }
}

/// Returns the source files among all files of the repository. Left out are folders and files of
/// tests by name, and the modules that a `#[cfg(test)] mod name;` declares.
pub(super) fn source_files(sources: &BTreeMap<String, String>) -> Vec<SourceFile> {
    let candidates: Vec<_> = sources
        .iter()
        .filter(|(path, _)| is_source(path))
        .map(|(path, text)| SourceFile::new(path, text))
        .collect();
    let mut test_paths = Vec::new();
    for file in &candidates {
        let folder = module_folder(&file.path);
        for module in test_modules(&file.tokens) {
            if let Err(name) = module.body {
                test_paths.push(format!("{folder}/{name}.rs"));
                test_paths.push(format!("{folder}/{name}/"));
            }
        }
    }
    let is_test = |path: &str| {
        test_paths
            .iter()
            .any(|test| path == test || (test.ends_with('/') && path.starts_with(test.as_str())))
    };
    candidates
        .into_iter()
        .filter(|file| !is_test(&file.path))
        .collect()
}

/// Returns `net` for `crates/net/src/lib.rs`, and `python` for the files of the extension.
pub(super) fn crate_of(path: &str) -> Option<&str> {
    match path.strip_prefix("crates/") {
        Some(inside) => inside.split('/').next(),
        None => path.starts_with("python/").then_some("python"),
    }
}

fn is_source(path: &str) -> bool {
    let inside = path
        .strip_prefix("crates/")
        .and_then(|rest| Some(rest.split_once('/')?.1))
        .or_else(|| path.strip_prefix("python/"));
    let in_source_folder = inside.is_some_and(|inside| inside.starts_with("src/"));
    let is_test =
        path.contains("/tests/") || path.ends_with("/tests.rs") || path.ends_with("_tests.rs");
    in_source_folder && !is_test
}

/// Returns the folder with the child modules of a file.
fn module_folder(path: &str) -> &str {
    for root in ["/mod.rs", "/lib.rs", "/main.rs", ".rs"] {
        if let Some(folder) = path.strip_suffix(root) {
            return folder;
        }
    }
    path
}

/// A module under `#[cfg(test)]` or `#[cfg(all(test, ..))]`.
struct TestModule<'t> {
    /// The attribute and the module up to its closing brace, or the name of a module in its own
    /// file.
    body: Result<Range<usize>, &'t str>,
}

fn test_modules(tokens: &[SourceToken]) -> Vec<TestModule<'_>> {
    let mut found = Vec::new();
    for start in 0..tokens.len() {
        if !starts_test_attribute(&tokens[start..]) {
            continue;
        }
        let mut at = start;
        while tokens.get(at).is_some_and(|token| token.is_sign('#')) {
            at = closing(tokens, at + 1) + 1;
        }
        if tokens.get(at).and_then(SourceToken::word) == Some("pub") {
            at += 1;
            if tokens.get(at).is_some_and(|token| token.is_sign('(')) {
                at = closing(tokens, at) + 1;
            }
        }
        if tokens.get(at).and_then(SourceToken::word) != Some("mod") {
            continue;
        }
        let name = tokens.get(at + 1).and_then(SourceToken::word);
        let opens = tokens.get(at + 2).is_some_and(|token| token.is_sign('{'));
        match name {
            Some(_) if opens => found.push(TestModule {
                body: Ok(start..closing(tokens, at + 2) + 1),
            }),
            Some(name) => found.push(TestModule { body: Err(name) }),
            None => {}
        }
    }
    found
}

fn starts_test_attribute(tokens: &[SourceToken]) -> bool {
    let is_word = |at: usize, word: &str| tokens.get(at).and_then(SourceToken::word) == Some(word);
    let opens = tokens.len() > 1 && tokens[0].is_sign('#') && tokens[1].is_sign('[');
    let is_test = is_word(4, "test") || (is_word(4, "all") && is_word(6, "test"));
    opens && is_word(2, "cfg") && is_test
}

/// Returns the position of the bracket that closes the one at `open`, or the last position.
pub(super) fn closing(tokens: &[SourceToken], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        if ['(', '[', '{'].iter().any(|sign| token.is_sign(*sign)) {
            depth += 1;
        } else if [')', ']', '}'].iter().any(|sign| token.is_sign(*sign)) {
            depth = depth.saturating_sub(1);
            if depth == 0 {
                return at;
            }
        }
    }
    tokens.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_modules_are_left_out_of_the_lines() {
        let file = SourceFile::new(
            "crates/a/src/lib.rs",
            "// a comment\nfn a() {}\n\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n",
        );
        assert_eq!(file.lines(), 4);
        assert_eq!(file.code_lines(), 2);
        let word = |word| {
            file.tokens
                .iter()
                .position(|token| token.word() == Some(word))
        };
        assert!(file.is_test(word("b").expect("present")));
        assert!(!file.is_test(word("c").expect("present")));
    }

    #[test]
    fn brackets_in_comments_strings_and_characters_do_not_end_a_module() {
        let file = SourceFile::new(
            "crates/a/src/lib.rs",
            "#[cfg(all(test, feature = \"x\"))]\npub(crate) mod tests {\n// }\nfn a() { '}'; \"}\"; r#\"}\"#; }\n}\nfn b() {}\n",
        );
        assert_eq!(file.lines(), 1);
    }

    #[test]
    fn files_of_tests_are_no_source_files() {
        let files = [
            ("crates/a/src/lib.rs", "#[cfg(test)]\nmod fixture;\nmod b;"),
            ("crates/a/src/fixture.rs", ""),
            ("crates/a/src/fixture/deep.rs", ""),
            ("crates/a/src/b.rs", "#[cfg(test)] mod tests;"),
            ("crates/a/src/b/tests.rs", ""),
            ("crates/a/tests/wire.rs", ""),
            ("python/src/lib.rs", ""),
            ("xtask/src/main.rs", ""),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let found = source_files(&files.into());
        let paths: Vec<_> = found.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "crates/a/src/b.rs",
                "crates/a/src/lib.rs",
                "python/src/lib.rs"
            ]
        );
    }
}
