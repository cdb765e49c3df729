//! `warmroute config init | check | show | schema | convert`.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use config::{Problem, Settings};
use config_convert::{
    SourceRouter, convert_command, convert_continuum, convert_flags, convert_vllm_router,
};
use serde_json::json;

use crate::{
    cli::{ConfigArgs, ConfigCommand, ConfigFileArgs, ConvertArgs, InitArgs, OtherRouter},
    config_search,
    exit_code::ExitCode,
    output, settings,
};

pub(crate) fn run(args: &ConfigArgs) -> ExitCode {
    match &args.command {
        ConfigCommand::Init(args) => init(args),
        ConfigCommand::Check(args) => check(args),
        ConfigCommand::Show(args) => show(args),
        ConfigCommand::Schema => {
            output::out(&format!("{:#}", config::schema()));
            ExitCode::SUCCESS
        }
        ConfigCommand::Convert(args) => convert(args),
    }
}

/// Writes the starter file. Never overwrites an existing file: it may hold the user's work.
fn init(args: &InitArgs) -> ExitCode {
    let Some(file) = &args.file else {
        output::out(config::starter().trim_end());
        return ExitCode::SUCCESS;
    };
    let written =
        File::create_new(file).and_then(|mut open| open.write_all(config::starter().as_bytes()));
    match written {
        Ok(()) => {
            output::err(&format!(
                "written: next `warmroute config check {}`",
                file.display()
            ));
            ExitCode::SUCCESS
        }
        Err(error) => {
            let reason = match error.kind() {
                io::ErrorKind::AlreadyExists => "it is there already: name another file".to_owned(),
                _ => format!("it cannot be written: {error}"),
            };
            output::err(&format!("{}: {reason}", file.display()));
            ExitCode::FAILURE
        }
    }
}

fn check(args: &ConfigFileArgs) -> ExitCode {
    let (problems, idle) = match load(args) {
        Ok(settings) => (Vec::new(), settings.ignored_keys().to_vec()),
        Err(problems) => (problems, Vec::new()),
    };
    if args.json {
        let mut result = json!({"ok": problems.is_empty(), "problems": problems});
        if !idle.is_empty() {
            result["warnings"] = json!(idle);
        }
        output::out(&result.to_string());
    } else if problems.is_empty() {
        idle.iter()
            .for_each(|notice| output::err(&notice.to_string()));
        output::out("ok");
    }
    match (problems.is_empty(), args.json) {
        (true, _) => ExitCode::SUCCESS,
        (false, true) => ExitCode::from(settings::BAD_CONFIGURATION),
        (false, false) => settings::refuse(&problems),
    }
}

fn load(args: &ConfigFileArgs) -> Result<Settings, Vec<Problem>> {
    settings::load(
        args.file.as_deref().or(args.config.as_deref()),
        settings::environment(),
        &[],
    )
}

fn show(args: &ConfigFileArgs) -> ExitCode {
    match load(args) {
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
    let converted = match (args.from, args.flags.as_slice(), source_file(args)) {
        (from, [], Some(file)) => {
            let name = if *file == *"-" {
                "stdin".to_owned()
            } else {
                file.display().to_string()
            };
            read(&file, &name).and_then(|text| convert_text(from, &name, &text))
        }
        (OtherRouter::VllmRouter, flags @ [_, ..], _) => {
            convert_flags(SourceRouter::VllmRouter, "flags", flags)
        }
        (OtherRouter::Smg, flags @ [_, ..], _) => convert_flags(SourceRouter::Smg, "flags", flags),
        (OtherRouter::Continuum, _, _) => {
            output::err(
                "--from continuum takes a FILE, as that router is configured by one, and none is where it searches",
            );
            return ExitCode::from(settings::BAD_FLAG);
        }
        (_, [], None) => {
            output::err("a FILE is needed, or the flags of that router behind `--`");
            return ExitCode::from(settings::BAD_FLAG);
        }
    };
    match converted {
        Ok(text) => {
            output::out(text.trim_end());
            ExitCode::SUCCESS
        }
        Err(problems) => settings::refuse(&problems),
    }
}

/// Returns the file to convert. That of Continuum Router is searched if none is named.
fn source_file(args: &ConvertArgs) -> Option<PathBuf> {
    match (&args.file, args.from) {
        (None, OtherRouter::Continuum) if args.flags.is_empty() => {
            config_search::announced(&["continuum-router"])
        }
        (file, _) => file.clone(),
    }
}

fn convert_text(from: OtherRouter, name: &str, text: &str) -> Result<String, Vec<Problem>> {
    match from {
        OtherRouter::Continuum => convert_continuum(name, text),
        OtherRouter::VllmRouter => convert_vllm_router(name, text),
        OtherRouter::Smg => convert_command(SourceRouter::Smg, name, text),
    }
}

/// Reads a file, or stdin. One byte more than the longest text is enough to detect one that is too
/// long.
fn read(file: &Path, name: &str) -> Result<String, Vec<Problem>> {
    let unreadable = |error: io::Error| vec![Problem::unreadable(name, error)];
    let source: Box<dyn Read> = if file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(file).map_err(unreadable)?)
    };
    let mut bytes = Vec::new();
    source
        .take(config::MAX_TEXT_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() > config::MAX_TEXT_BYTES {
        // The cut may have split a character, which is not the problem to report.
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    String::from_utf8(bytes).map_err(|error| {
        vec![Problem::not_utf8(
            name,
            &error.as_bytes()[..error.utf8_error().valid_up_to()],
        )]
    })
}
