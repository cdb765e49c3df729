//! Reads the tokens of operators that the settings name.

use std::path::Path;

use admin::{Token, Tokens, TooShort};
use config::{AdminTokenEntry, Problem, Secret, Settings};

use crate::secret_file;

/// Reads the token of `admin.token_file` and those of `admin.tokens`.
///
/// # Errors
///
/// A file cannot be read, a token is too short, or two owners have the same one.
pub(crate) fn read(settings: &Settings) -> Result<Tokens, Vec<Problem>> {
    let (mut tokens, mut problems) = (Vec::new(), Vec::new());
    let of_file = settings.admin.token_file.as_deref().map(of_token_file);
    let entries = settings.admin.tokens.iter().enumerate();
    for read in of_file.into_iter().chain(entries.map(of_entry)) {
        match read {
            Ok(token) => tokens.push(token),
            Err(problem) => problems.push(settings.locate(*problem)),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    Tokens::new(tokens).map_err(|shared| {
        let message = "two owners have the same token: give each its own";
        let problem = Problem::bad_value("admin.tokens", &shared.names.join(", "), message);
        vec![settings.locate(problem)]
    })
}

fn of_token_file(path: &Path) -> Result<Token, Box<Problem>> {
    let bad = |message: &str| {
        let shown = path.display().to_string();
        Box::new(Problem::bad_value("admin.token_file", &shown, message))
    };
    let text = text_of(path).map_err(|message| bad(&message))?;
    Token::new(text.expose()).map_err(|error| bad(&error.message))
}

fn of_entry((at, entry): (usize, &AdminTokenEntry)) -> Result<Token, Box<Problem>> {
    let create = |text: &str| {
        let token = Token::of(&entry.name, entry.role.into(), text);
        token.map_err(|TooShort| {
            "the token is shorter than 16 characters: use a random one".to_owned()
        })
    };
    let (key, shown, token) = match (&entry.token_file, &entry.token) {
        (Some(path), _) => {
            let token = text_of(path).and_then(|text| create(text.expose()));
            ("token_file", path.display().to_string(), token)
        }
        (None, token) => {
            // The check of the settings leaves no entry without a token.
            let text = token.as_ref().map_or("", |token| token.expose());
            ("token", "***".to_owned(), create(text))
        }
    };
    token.map_err(|message| {
        let path = format!("admin.tokens[{at}].{key}");
        Box::new(Problem::bad_value(&path, &shown, &message))
    })
}

fn text_of(path: &Path) -> Result<Secret, String> {
    secret_file::read(path).map_err(|error| format!("the file could not be read: {error}"))
}
