//! The tests that carry contract ids, read from the sources.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::{
    contract_ids::{self, Id},
    rust_tokens::{SourceToken, TokenKind, tokens},
};

/// A function under `#[contract(..)]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContractTest {
    /// Relative to the repository, with `/`.
    pub(crate) file: String,
    pub(crate) line: usize,
    /// Its inline modules and its name: `tests::a_name`.
    pub(crate) inner: String,
    pub(crate) ids: Vec<String>,
}

impl ContractTest {
    pub(crate) fn name(&self) -> &str {
        self.inner.rsplit("::").next().unwrap_or_default()
    }

    /// Returns `crates/net` for any file below it.
    pub(crate) fn package(&self) -> &str {
        let end = self
            .file
            .find("/src/")
            .or_else(|| self.file.find("/tests/"))
            .or_else(|| self.file.find("/benches/"));
        &self.file[..end.unwrap_or(0)]
    }

    /// Returns one line per id that is not among the defined ones.
    pub(crate) fn undefined_ids(&self, defined: &BTreeSet<Id>) -> Vec<String> {
        let is_defined = |id: &str| contract_ids::parse(id).is_some_and(|id| defined.contains(&id));
        let undefined = self.ids.iter().filter(|id| !is_defined(id));
        undefined
            .map(|id| {
                format!(
                    "{}:{}: the contract id `{id}` is not defined: expected a row of {}",
                    self.file,
                    self.line,
                    [contract_ids::CONTRACT, contract_ids::FAULTS].join(" or ")
                )
            })
            .collect()
    }
}

/// The repository's Rust files: their texts by path, relative to it.
pub(crate) fn sources(root: &Path) -> Result<BTreeMap<String, String>, String> {
    let mut files = Vec::new();
    for folder in ["crates", "python", "xtask"] {
        rust_files(&root.join(folder), &mut files);
    }
    let mut sources = BTreeMap::new();
    for path in files {
        let name = path
            .strip_prefix(root)
            .unwrap_or(&path)
            .to_string_lossy()
            .replace('\\', "/");
        let text =
            fs::read_to_string(&path).map_err(|error| format!("{name} cannot be read: {error}"))?;
        sources.insert(name, text);
    }
    Ok(sources)
}

/// All tests that carry ids, in the order of their files.
pub(crate) fn find(sources: &BTreeMap<String, String>) -> Result<Vec<ContractTest>, String> {
    let mut found = Vec::new();
    for (file, text) in sources {
        found.extend(in_file(file, text)?);
    }
    Ok(found)
}

fn rust_files(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "target" {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
}

fn in_file(file: &str, source: &str) -> Result<Vec<ContractTest>, String> {
    let tokens = tokens(source);
    let mut found = Vec::new();
    let mut depth = 0_usize;
    let mut modules: Vec<(&str, usize)> = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match &token.what {
            TokenKind::Sign('{') => {
                if let Some(name) = module_opened_at(&tokens, at) {
                    modules.push((name, depth));
                }
                depth += 1;
            }
            TokenKind::Sign('}') => {
                depth = depth.saturating_sub(1);
                modules.pop_if(|(_, opened)| *opened == depth);
            }
            TokenKind::Word(word) if word == "contract" && is_attribute(&tokens, at) => {
                let ids: Vec<_> = tokens[at + 2..]
                    .iter()
                    .take_while(|token| !token.is_sign(')'))
                    .filter_map(text)
                    .collect();
                let name = function_after(&tokens[at..]).ok_or_else(|| {
                    format!(
                        "{file}:{}: no function follows this contract attribute",
                        token.line
                    )
                })?;
                let inner = modules
                    .iter()
                    .map(|(module, _)| *module)
                    .chain([name])
                    .collect::<Vec<_>>()
                    .join("::");
                found.push(ContractTest {
                    file: file.to_owned(),
                    line: token.line,
                    inner,
                    ids,
                });
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Returns the module name of `mod NAME {`, given its brace.
fn module_opened_at(tokens: &[SourceToken], brace: usize) -> Option<&str> {
    let keyword = tokens.get(brace.checked_sub(2)?)?.word()?;
    if keyword == "mod" {
        tokens[brace - 1].word()
    } else {
        None
    }
}

/// Whether `contract` at this position belongs to `#[contract(` or `#[contract_id::contract(`.
fn is_attribute(tokens: &[SourceToken], at: usize) -> bool {
    let opens = tokens.get(at + 1).is_some_and(|token| token.is_sign('('));
    let before = tokens[..at]
        .iter()
        .rev()
        .find(|token| token.word() != Some("contract_id") && !token.is_sign(':'));
    opens && before.is_some_and(|token| token.is_sign('['))
}

fn text(token: &SourceToken) -> Option<String> {
    match &token.what {
        TokenKind::Text(text) => Some(text.clone()),
        _ => None,
    }
}

/// Returns the name of the function that an attribute belongs to; other attributes may come
/// between.
fn function_after(tokens: &[SourceToken]) -> Option<&str> {
    let item = tokens
        .iter()
        .take_while(|token| !token.is_sign(';') && !token.is_sign('}'));
    let keyword = item
        .into_iter()
        .position(|token| token.word() == Some("fn"))?;
    tokens.get(keyword + 1)?.word()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<(String, Vec<String>)> {
        in_file("crates/a/src/b.rs", source)
            .expect("readable")
            .into_iter()
            .map(|test| (test.inner, test.ids))
            .collect()
    }

    #[test]
    fn an_attribute_may_span_lines_and_precede_its_function_at_any_distance() {
        let source = "
            mod outer { mod tests {
                #[test]
                #[contract(
                    \"V8\", // why
                    \"V10\",
                )]
                #[ignore = \"slow\"]
                async fn first() {}
            } }
            #[contract_id::contract(\"F1\")] #[test] pub(crate) fn second() { if x { } }
        ";
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            found(source),
            [
                ("outer::tests::first".to_owned(), ids(&["V8", "V10"])),
                ("second".to_owned(), ids(&["F1"]))
            ]
        );
    }

    #[test]
    fn text_that_looks_like_an_attribute_is_ignored() {
        let source = "/// #[contract(\"V1\")]\nfn a() { b(\"#[contract(\\\"V1\\\")]\"); contract(\"V1\"); } use x::contract;";
        assert_eq!(found(source), []);
    }

    #[test]
    fn an_attribute_without_a_function_is_refused_with_its_line() {
        let refused = in_file("f.rs", "\n#[contract(\"V1\")]\nconst A: u8 = 1;\nfn b() {}")
            .expect_err("no function");
        assert_eq!(
            refused,
            "f.rs:2: no function follows this contract attribute"
        );
    }

    #[test]
    fn an_undefined_id_is_named_with_file_and_line() {
        let tests = in_file(
            "crates/a/src/b.rs",
            "\n#[contract(\"V8\", \"V49\", \"X1\")]\nfn a() {}",
        )
        .expect("readable");
        let defined = contract_ids::defined_in("| V8 | a promise |\n| V48 | the last one |\n");
        let line = |id| {
            format!(
                "crates/a/src/b.rs:2: the contract id `{id}` is not defined: expected a row of \
                 docs/contract.md or docs/faults-and-threats.md"
            )
        };
        assert_eq!(tests[0].undefined_ids(&defined), ["V49", "X1"].map(line));
        assert_eq!(tests[0].package(), "crates/a");
    }
}
