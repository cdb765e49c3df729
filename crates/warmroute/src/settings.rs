//! File, environment and flags become settings, or every problem at once and exit code 78.

use std::{path::Path, process::ExitCode};

use config::{Override, Problem, Settings, Source};

use crate::{
    cli::{LoggingArgs, RoutingArgs, ServeArgs},
    output,
};

/// The exit code of a bad configuration.
pub(crate) const BAD_CONFIGURATION: u8 = 78;
/// Variables that are no configuration keys.
const OWN_ENV: &[&str] = &["WARMROUTE_API_KEY", "WARMROUTE_TEST_PYTHON", "WARMROUTE_WRITE_STATUS"];

/// The settings of a file (or of none) under the environment and `overrides`.
pub(crate) fn load(file: Option<&Path>, overrides: &[Override]) -> Result<Settings, Vec<Problem>> {
    let name = file.map_or_else(|| "configuration".to_owned(), |path| path.display().to_string());
    let text = file.map(|path| read(path, &name)).transpose().map_err(|problem| vec![problem])?;
    // A variable that is not UTF-8 can be neither a key of ours nor a value that the file may use.
    let env: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    config::load(Source {
        name: &name,
        text: text.as_deref(),
        env: &env,
        own_env: OWN_ENV,
        overrides,
        check_url: |url| url.parse::<net::WorkerUrl>().map(|url| url.display_name()).map_err(|error| error.to_string()),
    })
}

fn read(path: &Path, name: &str) -> Result<String, Problem> {
    let bytes = std::fs::read(path).map_err(|error| Problem::unreadable(name, &error.to_string()))?;
    String::from_utf8(bytes)
        .map_err(|error| Problem::not_utf8(name, &error.as_bytes()[..error.utf8_error().valid_up_to()]))
}

/// Prints every problem on stderr.
pub(crate) fn refuse(problems: &[Problem]) -> ExitCode {
    for problem in problems {
        output::err(&problem.to_string());
    }
    ExitCode::from(BAD_CONFIGURATION)
}

/// What the flags of `serve` set.
pub(crate) fn overrides(args: &ServeArgs) -> Vec<Override> {
    let mut set = Set::default();
    for worker in &args.workers {
        set.one("workers", worker, "--worker");
    }
    set.maybe("server.listen", args.listen.as_ref(), "--listen");
    set.maybe("server.port", args.port.as_ref(), "--port");
    set.maybe("admin.listen", args.admin_listen.as_ref(), "--admin-listen");
    set.maybe("routing.policy", args.policy.as_ref(), "--policy");
    for tokenizer in &args.tokenizers {
        let (model, dir) = tokenizer.split_once('=').unwrap_or((tokenizer, ""));
        set.one(&format!("models.entries[{model:?}].tokenizer"), dir, "--tokenizer");
    }
    set.maybe("models.defaults.block_size", args.block_size.as_ref(), "--block-size");
    for source in &args.kv_events {
        let (worker, endpoint) = source.split_once('=').unwrap_or((source, ""));
        set.one(&format!("workers[{worker:?}].kv_events.endpoint"), endpoint, "--kv-events");
    }
    set.maybe("admin.token_file", args.admin_token_file.as_ref().map(|path| path.display()), "--admin-token-file");
    // A key protects the listener just as well as saying that it is meant to be open.
    if args.insecure_open || args.api_key.is_some() {
        set.one("server.insecure_open", "true", "--insecure-open");
    }
    set.routing(&args.routing);
    set.logging(&args.logging);
    set.0
}

#[derive(Default)]
struct Set(Vec<Override>);

impl Set {
    fn one(&mut self, path: &str, value: &str, flag: &str) {
        self.0.push(Override { path: path.to_owned(), value: value.to_owned(), flag: flag.to_owned() });
    }

    fn maybe(&mut self, path: &str, value: Option<impl ToString>, flag: &str) {
        if let Some(value) = value {
            self.one(path, &value.to_string(), flag);
        }
    }

    fn routing(&mut self, args: &RoutingArgs) {
        self.maybe("routing.overlap_weight", args.kv_overlap_score_weight, "--kv-overlap-score-weight");
        self.maybe("routing.temperature", args.router_temperature, "--router-temperature");
        if args.no_kv_events {
            self.one("kv_events.enabled", "false", "--no-kv-events");
        }
        self.maybe("kv_events.prediction.ttl", args.router_ttl.as_ref(), "--router-ttl");
        self.maybe("kv_events.prediction.max_blocks", args.router_max_tree_size, "--router-max-tree-size");
        self.maybe(
            "kv_events.prediction.prune_target_ratio",
            args.router_prune_target_ratio,
            "--router-prune-target-ratio",
        );
        if args.no_track_active_blocks {
            self.one("routing.track_active_blocks", "false", "--no-track-active-blocks");
        }
    }

    fn logging(&mut self, args: &LoggingArgs) {
        self.maybe("logging.level", args.log_level.as_ref(), "--log-level");
        self.maybe("logging.format", args.log_format.as_ref(), "--log-format");
    }
}
