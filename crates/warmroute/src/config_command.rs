//! `warmroute config check | show | schema | convert`.

use std::{
    io::{self, Read},
    path::Path,
    process::ExitCode,
};

use config::Problem;
use serde_json::json;

use crate::{
    cli::{ConfigArgs, ConfigCommand, ConfigFileArgs, ConvertArgs, OtherRouter},
    output, settings,
};

pub(crate) fn run(args: &ConfigArgs) -> ExitCode {
    match &args.command {
        ConfigCommand::Check(args) => check(args),
        ConfigCommand::Show(args) => show(args),
        ConfigCommand::Schema => {
            output::out(&format!("{:#}", config::schema()));
            ExitCode::SUCCESS
        }
        ConfigCommand::Convert(args) => convert(args),
    }
}

fn check(args: &ConfigFileArgs) -> ExitCode {
    let result = settings::load(args.file.as_deref().or(args.config.as_deref()), settings::environment(), &[]);
    let problems = result.err().unwrap_or_default();
    if args.json {
        output::out(&json!({"ok": problems.is_empty(), "problems": problems}).to_string());
    } else if problems.is_empty() {
        output::out("ok");
    }
    match (problems.is_empty(), args.json) {
        (true, _) => ExitCode::SUCCESS,
        (false, true) => ExitCode::from(settings::BAD_CONFIGURATION),
        (false, false) => settings::refuse(&problems),
    }
}

fn show(args: &ConfigFileArgs) -> ExitCode {
    match settings::load(args.file.as_deref().or(args.config.as_deref()), settings::environment(), &[]) {
        Ok(settings) if args.json => {
            output::out(&settings.to_json().to_string());
            ExitCode::SUCCESS
        }
        Ok(settings) => {
            output::out(settings.to_yaml().trim_end());
            ExitCode::SUCCESS
        }
        Err(problems) => settings::refuse(&problems),
    }
}

fn convert(args: &ConvertArgs) -> ExitCode {
    let name = if args.file == Path::new("-") { "stdin".to_owned() } else { args.file.display().to_string() };
    let converted = read(&args.file, &name).and_then(|text| match args.from {
        OtherRouter::VllmRouter => config::convert_vllm_router(&name, &text),
    });
    match converted {
        Ok(text) => {
            output::out(text.trim_end());
            ExitCode::SUCCESS
        }
        Err(problems) => settings::refuse(&problems),
    }
}

/// The text of a file, or of stdin. One byte more than the longest text is enough to see that it is too long.
fn read(file: &Path, name: &str) -> Result<String, Vec<Problem>> {
    let unreadable = |error: io::Error| vec![Problem::unreadable(name, error)];
    let source: Box<dyn Read> = if file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(file).map_err(unreadable)?)
    };
    let mut bytes = Vec::new();
    source.take(config::MAX_TEXT_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > config::MAX_TEXT_BYTES {
        // The cut may have gone through a character, which is not what is wrong.
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    String::from_utf8(bytes)
        .map_err(|error| vec![Problem::not_utf8(name, &error.as_bytes()[..error.utf8_error().valid_up_to()])])
}
