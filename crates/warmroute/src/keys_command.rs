//! `warmroute keys`: makes, lists and revokes the keys in a file of `tenants.keys_file`.
//!
//! The file holds digests only; a new key is printed once.

use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use tenants::{KeyDigest, KeyEntry, ListedKeys};

use crate::{exit_code::ExitCode, output, private_file};

/// Digits of a digest by which a key is named: enough for 100,000 keys.
const ID_DIGITS: usize = 12;

#[derive(Args, Debug)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Make a key, add its digest to the file and print the key: it is stored nowhere else.
    New(Box<NewArgs>),
    /// List the keys of the file by tenant and id.
    List(FileArg),
    /// Remove a key from the file, or all keys of a tenant.
    Revoke(RevokeArgs),
}

#[derive(Args, Debug)]
struct FileArg {
    /// The file that `tenants.keys_file` names.
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
}

#[derive(Args, Debug)]
struct NewArgs {
    #[command(flatten)]
    at: FileArg,
    /// Tenant. A second key of a tenant gets the rules of the first unless others are given.
    #[arg(long)]
    name: String,
    /// A scope: chat, embeddings, media, tokenize, route, models or overrides. May be repeated.
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<String>,
    /// A model that it may name, or the beginning of names and a `*`. May be repeated.
    #[arg(long = "model", value_name = "MODEL")]
    models: Vec<String>,
    /// A field for engines that it may send although there are other tenants, such as `priority`. May
    /// be repeated.
    #[arg(long = "engine-field", value_name = "FIELD")]
    engine_fields: Vec<String>,
    /// Requests per second.
    #[arg(long)]
    rate_limit_rps: Option<f64>,
    /// Requests at the same time.
    #[arg(long)]
    max_concurrent: Option<u32>,
    /// Tokens of prompts per minute.
    #[arg(long)]
    prompt_tokens_per_minute: Option<u32>,
    /// Tokens of replies per minute.
    #[arg(long)]
    output_tokens_per_minute: Option<u32>,
    /// Time from which the key is refused, as in 2027-01-31T00:00:00Z.
    #[arg(long)]
    expires_at: Option<String>,
}

#[derive(Args, Debug)]
struct RevokeArgs {
    #[command(flatten)]
    at: FileArg,
    /// Id of the key, as `list` prints it, or more digits of its digest.
    #[arg(long, required_unless_present = "name", conflicts_with = "name")]
    id: Option<String>,
    /// Tenant of which all keys are revoked.
    #[arg(long)]
    name: Option<String>,
}

/// Runs the command. Exit code 1 if the file cannot be used or does not have the key.
pub(crate) fn run(args: &KeysArgs) -> ExitCode {
    let done = match &args.command {
        KeysCommand::New(args) => new(args),
        KeysCommand::List(at) => list(&at.file),
        KeysCommand::Revoke(args) => revoke(args),
    };
    match done {
        Ok(lines) => {
            lines.iter().for_each(|line| output::out(line));
            ExitCode::SUCCESS
        }
        Err(message) => {
            output::err(&format!("warmroute keys: {message}"));
            ExitCode::FAILURE
        }
    }
}

/// The text of a file and its entries, each with its line.
struct KeysText {
    text: String,
    keys: ListedKeys,
}

impl KeysText {
    fn read(path: &Path) -> Result<Self, String> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        let keys = read_keys(path, &text)?;
        Ok(Self { text, keys })
    }

    /// Returns the lines with entries, each with its entry.
    fn rows(&self) -> impl Iterator<Item = (&str, &KeyEntry)> {
        self.text
            .lines()
            .filter(|line| is_entry(line))
            .zip(self.keys.entries())
    }
}

fn is_entry(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with('#')
}

fn read_keys(path: &Path, text: &str) -> Result<ListedKeys, String> {
    let name = path.display().to_string();
    config::keys_file(text, &name, &[]).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        lines.join("\n")
    })
}

fn new(args: &NewArgs) -> Result<Vec<String>, String> {
    let mut file = KeysText::read(&args.at.file)?;
    let key = random_key().map_err(|error| format!("no random number from the system: {error}"))?;
    let digest = KeyDigest::of(key.as_bytes()).to_hex();
    let rules = file.rows().find(|(_, entry)| **entry.name() == *args.name);
    let entry = entry(args, &digest, rules.map(|(line, _)| line));
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        file.text.push('\n');
    }
    file.text.push_str(&format!("{entry}\n"));
    read_keys(&args.at.file, &file.text)?;
    replace(&args.at.file, &file.text)?;
    let id = &digest[..ID_DIGITS];
    output::err(&format!(
        "key {id} of tenant {:?}; it is shown only now:",
        args.name
    ));
    Ok(vec![key])
}

/// Returns the entry of a new key. `like`: the line of another key of the tenant.
fn entry(args: &NewArgs, digest: &str, like: Option<&str>) -> Value {
    let like = like.and_then(|line| serde_json::from_str::<Map<String, Value>>(line).ok());
    let mut entry = like.unwrap_or_default();
    for of_key in ["key", "key_sha256", "expires_at", "enabled", "metadata"] {
        entry.remove(of_key);
    }
    let given = [
        ("name", Some(json!(args.name))),
        ("key_sha256", Some(json!(digest))),
        (
            "scopes",
            (!args.scopes.is_empty()).then(|| json!(args.scopes)),
        ),
        (
            "allowed_models",
            (!args.models.is_empty()).then(|| json!(args.models)),
        ),
        (
            "engine_fields",
            (!args.engine_fields.is_empty()).then(|| json!(args.engine_fields)),
        ),
        (
            "rate_limit_rps",
            args.rate_limit_rps.map(|rate| json!(rate)),
        ),
        (
            "max_concurrent",
            args.max_concurrent.map(|most| json!(most)),
        ),
        (
            "prompt_tokens_per_minute",
            args.prompt_tokens_per_minute.map(|most| json!(most)),
        ),
        (
            "output_tokens_per_minute",
            args.output_tokens_per_minute.map(|most| json!(most)),
        ),
        ("expires_at", args.expires_at.as_ref().map(|at| json!(at))),
    ];
    for (name, value) in given {
        if let Some(value) = value {
            entry.insert(name.to_owned(), value);
        }
    }
    Value::Object(entry)
}

fn list(path: &Path) -> Result<Vec<String>, String> {
    let file = KeysText::read(path)?;
    let row = |(line, entry): (&str, &KeyEntry)| {
        let digest = entry.digest().to_hex();
        let id = &digest[..ID_DIGITS];
        let state = if entry.is_enabled() {
            "enabled"
        } else {
            "disabled"
        };
        let expires = expiry_text(line).unwrap_or_else(|| "never".to_owned());
        format!("{id}  {:?}  {state}  expires={expires}", entry.name())
    };
    Ok(file.rows().map(row).collect())
}

/// Returns the time of expiry as the line of an entry has it.
fn expiry_text(line: &str) -> Option<String> {
    let entry: Map<String, Value> = serde_json::from_str(line.trim()).ok()?;
    Some(entry.get("expires_at")?.as_str()?.to_owned())
}

fn revoke(args: &RevokeArgs) -> Result<Vec<String>, String> {
    let file = KeysText::read(&args.at.file)?;
    let is_meant = |entry: &KeyEntry| match (&args.id, &args.name) {
        (Some(id), _) => {
            let digest = entry.digest().to_hex();
            id.len() >= ID_DIGITS && digest.starts_with(&id.to_ascii_lowercase())
        }
        (None, name) => name.as_deref() == Some(&**entry.name()),
    };
    let mut entries = file.keys.entries().iter();
    let (mut kept, mut revoked) = (String::with_capacity(file.text.len()), 0);
    for line in file.text.lines() {
        let entry = if is_entry(line) { entries.next() } else { None };
        if entry.is_some_and(is_meant) {
            revoked += 1;
        } else {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    if revoked == 0 {
        let shown = args.at.file.display();
        return Err(format!(
            "{shown} has no such key: `warmroute keys list --file {shown}` prints the ids of all"
        ));
    }
    replace(&args.at.file, &kept)?;
    Ok(vec![format!("revoked {revoked}")])
}

fn replace(path: &Path, text: &str) -> Result<(), String> {
    private_file::replace(path, text.as_bytes())
        .map_err(|error| format!("{} cannot be written: {error}", path.display()))
}

/// Returns a key of 256 random bits.
fn random_key() -> io::Result<String> {
    let mut bytes = [0; 32];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("sk-{}", BASE64_URL_SAFE_NO_PAD.encode(bytes)))
}
