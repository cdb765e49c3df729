//! Maintenance commands of the repository:
//!
//! - `c-header --write` generates the header of the C library from its functions, `c-header --check`
//!   compares it;
//! - `contract-status --log FILE [--check]` writes `docs/contract-status.md`, or with `--check`
//!   compares it;
//! - `dependencies` checks licences, bans and sources of all dependencies against `deny.toml`;
//! - `run-suite` runs one test program for `cargo test`, within time limits;
//! - `sbom` prints the software bill of materials of the program, as CycloneDX;
//! - `structure [--list | --write | --setting KEY]` prints figures of the source code's structure,
//!   or writes them into `docs/structure.md`.

mod c_header;
mod contract_ids;
mod contract_status;
mod dependencies;
mod python_tests;
mod run_suite;
mod rust_tokens;
mod sbom;
mod security_checklist;
mod status_table;
mod structure;
mod test_log;
mod tests_in_sources;
mod undeclared_modules;

use std::{
    env,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use c_header::{HeaderMode, c_header};
use contract_status::{StatusMode, contract_status};
use structure::StructureReport;

const USAGE: &str = "usage: cargo xtask c-header --write | --check
       cargo xtask contract-status --log FILE [--check]
       cargo xtask dependencies
       cargo xtask run-suite [--durations FILE] [--test-limit SECONDS] [--suite-limit SECONDS] PROGRAM [ARGUMENT]...
       cargo xtask sbom
       cargo xtask structure [--list | --write | --setting KEY]";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["c-header", "--write"] => report("c-header", c_header(&root(), HeaderMode::Write)),
        ["c-header", "--check"] => report("c-header", c_header(&root(), HeaderMode::Check)),
        ["contract-status", "--log", log] => report(
            "contract-status",
            contract_status(&root(), Path::new(log), StatusMode::Write),
        ),
        ["contract-status", "--log", log, "--check"]
        | ["contract-status", "--check", "--log", log] => report(
            "contract-status",
            contract_status(&root(), Path::new(log), StatusMode::Check),
        ),
        ["dependencies"] => report("dependencies", dependencies::check(&root())),
        ["run-suite", args @ ..] => match run_suite::Suite::from_args(args) {
            Some(suite) => suite.run(),
            None => usage(),
        },
        ["sbom"] => print("sbom", sbom::sbom(&root())),
        ["structure"] => print_structure(StructureReport::Tables),
        ["structure", "--list"] => print_structure(StructureReport::List),
        ["structure", "--write"] => print_structure(StructureReport::Write),
        ["structure", "--setting", key] => {
            print("structure", structure::files_naming_setting(&root(), key))
        }
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn report(chore: &str, result: Result<String, String>) -> ExitCode {
    match result {
        Ok(done) => {
            eprintln!("{done}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("{chore}: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn print_structure(report: StructureReport) -> ExitCode {
    print("structure", structure::structure(&root(), report))
}

/// Prints the text of a command on standard output.
fn print(chore: &str, text: Result<String, String>) -> ExitCode {
    let printed = text.and_then(|text| {
        let written = io::stdout().write_all(text.as_bytes());
        written.map_err(|error| format!("standard output cannot be written: {error}"))
    });
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{chore}: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the repository: the parent of this package, or the working directory.
fn root() -> PathBuf {
    let package = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    package
        .and_then(|package| package.parent().map(Path::to_owned))
        .unwrap_or_else(|| PathBuf::from("."))
}
