//! Time and memory of a keys file of 100,000 keys, from its text to the table that requests use:
//! `cargo run --release -p config --example keys_file`.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it is there to measure and to print"
)]

use std::{fmt::Write as _, fs, time::Instant};

use tenants::{KeyDigest, TenantSecrets, Tenants, TenantsSection};

const KEYS: usize = 100_000;

fn line(number: usize) -> String {
    let digest = KeyDigest::of(format!("sk-{number:045}").as_bytes()).to_hex();
    format!(
        r#"{{"name":"tenant-{number:06}","key_sha256":"{digest}","allowed_models":["llama-*"],"rate_limit_rps":10,"max_concurrent":16,"expires_at":"2030-01-01T00:00:00Z"}}"#
    )
}

/// A line of `/proc/self/status` in MiB.
fn status_mib(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse::<u64>().ok())
        .unwrap_or(0)
        / 1024
}

fn main() {
    let mut text = String::new();
    for number in 0..KEYS {
        writeln!(text, "{}", line(number)).expect("a string takes everything");
    }
    let (before, started) = (status_mib("VmRSS:"), Instant::now());
    let listed = config::keys_file(&text, "keys.jsonl", &[]).expect("a good file");
    let read = started.elapsed();
    let section = TenantsSection {
        keys_file: Some("keys.jsonl".into()),
        listed,
        ..TenantsSection::default()
    };
    let tenants = Tenants::new(&section, TenantSecrets::default());
    let took = started.elapsed();
    println!(
        "{KEYS} keys in {} MiB of text: read in {read:?}, table after {took:?}; {} MiB more than before, {} MiB at most",
        text.len() >> 20,
        status_mib("VmRSS:").saturating_sub(before),
        status_mib("VmHWM:"),
    );
    drop(tenants);
}
