//! `warmroute config check | show | schema`.

use std::process::ExitCode;

use serde_json::json;

use crate::{
    cli::{ConfigArgs, ConfigCommand, ConfigFileArgs},
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
