//! Compares our block index with its peers, on the same events and queries.
//!
//! `README.md` explains how to run it and how to read the figures. The program checks only answers:
//! one that differs from the oracle's ends it.

mod clock;
mod compare;
mod counting_allocator;
mod figures;
mod index;
mod machine;
mod options;
mod oracle;
mod phases;
mod profile;
mod random;
mod report;
mod samples;
mod workload;

use std::{error::Error, process::ExitCode};

use clap::Parser as _;

use index::with_index;
use options::Options;

#[global_allocator]
static ALLOCATOR: counting_allocator::CountingAllocator = counting_allocator::CountingAllocator;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("index-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    if let Some(recipe) = &options.memory_of {
        counting_allocator::count();
        let workload = recipe.make(options.traces.as_deref(), options.size())?;
        for contender in options.contenders() {
            let memory = with_index!(contender, I => phases::memory::<I>(&workload));
            println!("{}", serde_json::to_string(&memory)?);
        }
        return Ok(());
    }
    if let Some(profile) = &options.profile {
        return Ok(profile::profile(profile, options)?);
    }
    if options.check_all {
        return Ok(compare::check_all(options)?);
    }
    let results = compare::compare(options)?;
    let tables = report::markdown(&results);
    if let Some(path) = &options.markdown {
        report::write_into(path, &tables)
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if options.json {
        println!("{:#}", report::json(&results));
    } else {
        print!("{tables}");
    }
    Ok(())
}
