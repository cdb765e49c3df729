//! Turns file, environment and flags into settings, or reports every problem at once with exit code
//! 78.

use std::path::Path;

use config::{ConfigSource, MoreWorker, Override, Problem, Secret, Settings};
use tenants::{KeyDigest, SaltSecret, TenantSecrets, Tenants};
use zeroize::Zeroizing;

use crate::{
    cli::{AccessArgs, NameValue, ServeArgs, WorkerArgs},
    exit_code::ExitCode,
    output, secret_file,
};

/// Exit code of a bad configuration.
pub(crate) const BAD_CONFIGURATION: u8 = 78;
/// Exit code of a bad flag.
pub(crate) const BAD_FLAG: u8 = 2;
/// Variable with the key that clients must send, as an alternative to the command line.
const API_KEY: &str = "WARMROUTE_API_KEY";
/// Variable with the admin token for commands that query a running router.
pub(crate) const ADMIN_TOKEN: &str = "WARMROUTE_ADMIN_TOKEN";
/// Variables that are not configuration keys.
const OWN_ENV: &[&str] = &[
    API_KEY,
    ADMIN_TOKEN,
    // Of `warmroute.dynamo` in the Python package.
    "WARMROUTE_ADMIN_URL",
    "WARMROUTE_ENGINE_URL",
    "WARMROUTE_TEST_NODE",
    "WARMROUTE_TEST_PYTHON",
    "WARMROUTE_WRITE_STATUS",
];

/// Returns the variables of this process. One that is not UTF-8 can be neither a key nor a value
/// that the file may use.
pub(crate) fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Returns the router's admin token, for requests to another router. The start has checked the
/// file.
pub(crate) fn admin_token(settings: &Settings) -> Option<Secret> {
    secret_file::read(settings.admin.token_file.as_ref()?).ok()
}

/// Returns the key that clients must send. An empty variable counts as not set; an empty flag was
/// refused already.
pub(crate) fn api_key(args: &AccessArgs) -> Option<Secret> {
    let of_flag = args.api_key.clone().map(Secret::new);
    let own = || {
        let key = std::env::var(API_KEY).ok().filter(|key| !key.is_empty());
        key.map(Secret::new)
    };
    of_flag.or_else(|| args.api_key_file.clone()).or_else(own)
}

/// Returns the tenants and their keys: those of the configuration, else the one key of a flag or
/// variable, if there is one.
///
/// # Errors
///
/// The file with the secret for salts cannot be read, or is empty.
pub(crate) fn tenants(settings: &Settings, key: Option<Secret>) -> Result<Tenants, Vec<Problem>> {
    let secrets = TenantSecrets {
        key: key.map(|key| KeyDigest::of(key.expose().as_bytes())),
        salt: salt_secret(settings)?,
    };
    Ok(Tenants::new(&settings.tenants, secrets))
}

fn salt_secret(settings: &Settings) -> Result<SaltSecret, Vec<Problem>> {
    let Some(path) = &settings.tenants.salt_secret_file else {
        return Ok(SaltSecret::default());
    };
    let bad = |message: &str| {
        let shown = path.display().to_string();
        let problem = Problem::bad_value("tenants.salt_secret_file", &shown, message);
        vec![settings.locate(problem)]
    };
    // Any bytes, which need not be text.
    let secret = std::fs::read(path)
        .map(Zeroizing::new)
        .map_err(|error| bad(&format!("the file could not be read: {error}")))?;
    match secret.trim_ascii() {
        [] => Err(bad("the file is empty: write a random secret into it")),
        secret => Ok(SaltSecret::new(secret)),
    }
}

/// Loads the settings of a file (or of none) under `env` and `overrides`.
pub(crate) fn load(
    file: Option<&Path>,
    env: Vec<(String, String)>,
    overrides: &[Override],
) -> Result<Settings, Vec<Problem>> {
    let name = file.map_or_else(
        || "configuration".to_owned(),
        |path| path.display().to_string(),
    );
    let text = file.map(|path| read(path, &name)).transpose()?;
    check(&SettingsInput {
        name: &name,
        text: text.as_ref().map(|text| text.as_str()),
        env: &env,
        overrides,
        left_out: &[],
        more_workers: &[],
    })
}

/// Sources as read.
pub(crate) struct SettingsInput<'a> {
    /// Name of the file in problems.
    pub(crate) name: &'a str,
    pub(crate) text: Option<&'a str>,
    pub(crate) env: &'a [(String, String)],
    pub(crate) overrides: &'a [Override],
    /// Names of workers of these sources that are left out.
    pub(crate) left_out: &'a [String],
    pub(crate) more_workers: &'a [MoreWorker],
}

/// Returns the settings that the sources make together.
pub(crate) fn check(input: &SettingsInput<'_>) -> Result<Settings, Vec<Problem>> {
    config::load(ConfigSource {
        name: input.name,
        text: input.text,
        env: input.env,
        own_env: OWN_ENV,
        overrides: input.overrides,
        left_out: input.left_out,
        more_workers: input.more_workers,
        check_url: |url| {
            url.parse::<net::WorkerUrl>()
                .map(|url| url.worker_name())
                .map_err(|error| error.to_string())
        },
    })
}

/// Maximum size of a file that is read, several times that of a file with the most keys.
const MOST_FILE_BYTES: u64 = 256 << 20;

/// Reads a file that may have keys in it: the text is overwritten when it is dropped.
pub(crate) fn read(path: &Path, name: &str) -> Result<Zeroizing<String>, Vec<Problem>> {
    let length = std::fs::metadata(path).map_or(0, |file| file.len());
    if length > MOST_FILE_BYTES {
        let reason = format!("it has {length} bytes, at most {MOST_FILE_BYTES} are read");
        return Err(vec![Problem::unreadable(name, reason)]);
    }
    let bytes =
        std::fs::read(path).map_err(|error| vec![Problem::unreadable(name, error.to_string())])?;
    String::from_utf8(bytes)
        .map(Zeroizing::new)
        .map_err(|error| {
            let valid = error.utf8_error().valid_up_to();
            let bytes = Zeroizing::new(error.into_bytes());
            vec![Problem::not_utf8(name, &bytes[..valid])]
        })
}

/// Returns whether flags or variables say where the workers are, so that no file is needed.
pub(crate) fn names_workers(args: &ServeArgs, env: &[(String, String)]) -> bool {
    let names = [
        "WARMROUTE_WORKERS",
        "WARMROUTE_BACKENDS",
        "WARMROUTE_DISCOVERY__",
    ];
    !args.workers.workers.is_empty()
        || env
            .iter()
            .any(|(key, value)| !value.is_empty() && names.iter().any(|name| key.starts_with(name)))
}

/// Checks settings for a running router beyond the check of the file alone.
pub(crate) fn usable(settings: Settings) -> Result<Settings, Vec<Problem>> {
    warn_of_no_workers(&settings);
    match no_workers(&settings) {
        Some(problem) => Err(vec![problem]),
        None => Ok(settings),
    }
}

/// Returns the problem of a configuration without workers, unless it says `workers: []`.
pub(crate) fn no_workers(settings: &Settings) -> Option<Problem> {
    if has_workers(settings) || settings.is_set("workers") {
        return None;
    }
    let message = "there is no engine to route to: add `-w http://127.0.0.1:8000` for each, or a list `workers` to the \
                   file of -c (an empty list starts without any)";
    Some(Problem::bad_value("workers", "", message))
}

/// Warns of a configuration that says that there are no workers.
pub(crate) fn warn_of_no_workers(settings: &Settings) {
    if settings.is_set("workers") && !has_workers(settings) {
        tracing::warn!("no workers are configured: every request is answered with 503 no_worker");
    }
}

fn has_workers(settings: &Settings) -> bool {
    !settings.workers.is_empty() || settings.discovery.finds_any()
}

/// Prints every problem on stderr. If all are errors of flags, exits as for any other bad flag.
pub(crate) fn refuse(problems: &[Problem]) -> ExitCode {
    for problem in problems {
        output::err(&problem.to_string());
    }
    let only_flags = problems.iter().all(Problem::is_bad_flag_value);
    ExitCode::from(if only_flags {
        BAD_FLAG
    } else {
        BAD_CONFIGURATION
    })
}

/// Returns the problems of flags with a password in a URL: all users of the machine can read the
/// arguments of a process. URLs of workers with one are refused wherever they stand.
pub(crate) fn passwords_in_flags(args: &WorkerArgs) -> Vec<Problem> {
    let endpoints = args.kv_events.iter();
    endpoints
        .filter(|NameValue(_, endpoint)| has_user_info(endpoint))
        .map(|NameValue(worker, _)| {
            Problem::bad_value(
                &format!("workers[{worker:?}].kv_events.endpoint"),
                "***",
                "--kv-events: a URL in the arguments of a process, which all users of this machine can read, carries no user or password: name a file with the token as kv_events.token_file of the worker in a configuration",
            )
        })
        .collect()
}

fn has_user_info(endpoint: &str) -> bool {
    endpoint.split_once("://").is_some_and(|(scheme, rest)| {
        let authority = rest.split(['/', '?', '#']).next();
        // Of `ipc` the rest is a path.
        scheme != "ipc" && authority.is_some_and(|authority| authority.contains('@'))
    })
}

/// Returns the overrides from the flags of `serve`.
pub(crate) fn overrides(args: &ServeArgs) -> Vec<Override> {
    let mut set = SetFlags::default();
    worker_overrides(&args.workers, &mut set);
    set.maybe(
        "admin.token_file",
        args.access
            .admin_token_file
            .as_ref()
            .map(|path| path.display()),
        "--admin-token-file",
    );
    // A key protects the listener as well as `--insecure-open` allows it to be open.
    if args.access.insecure_open || api_key(&args.access).is_some() {
        set.one("server.insecure_open", "true", "--insecure-open");
    }
    let groups = [
        args.listeners.overrides(),
        args.routing.overrides(),
        args.replicas.overrides(),
        args.logging.overrides(),
    ];
    set.0
        .into_iter()
        .chain(groups.into_iter().flatten())
        .collect()
}

fn worker_overrides(args: &WorkerArgs, set: &mut SetFlags) {
    for worker in &args.workers {
        set.one("workers", worker, "--worker");
    }
    for NameValue(model, dir) in &args.tokenizers {
        set.one(
            &format!("models.entries[{model:?}].tokenizer"),
            dir,
            "--tokenizer",
        );
    }
    set.maybe(
        "models.defaults.block_size",
        args.block_size.as_ref(),
        "--block-size",
    );
    for NameValue(worker, endpoint) in &args.kv_events {
        set.one(
            &format!("workers[{worker:?}].kv_events.endpoint"),
            endpoint,
            "--kv-events",
        );
    }
    set.maybe(
        "discovery.state_file",
        args.state_file.as_ref().map(|path| path.display()),
        "--state-file",
    );
}

#[derive(Default)]
struct SetFlags(Vec<Override>);

impl SetFlags {
    fn one(&mut self, path: &str, value: &str, flag: &str) {
        self.0.push(Override {
            path: path.to_owned(),
            value: value.to_owned(),
            flag: flag.to_owned(),
        });
    }

    fn maybe(&mut self, path: &str, value: Option<impl ToString>, flag: &str) {
        if let Some(value) = value {
            self.one(path, &value.to_string(), flag);
        }
    }
}
