//! Time and memory of a table of many keys: `cargo run --release -p tenants --example key_table`.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it measures and prints figures"
)]

use std::{fs, time::Instant};

use settings::Secret;
use tenants::{KeyDigest, KeyVerdict, Scope, TenantEntry, TenantSecrets, Tenants, TenantsSection};

const KEYS: usize = 100_000;
const LOOKUPS: usize = 1_000_000;

fn entry(number: usize) -> TenantEntry {
    TenantEntry {
        name: format!("tenant-{number:06}"),
        key: Some(Secret::new(key(number))),
        key_sha256: None,
        scopes: vec![Scope::Chat, Scope::Embeddings, Scope::Models],
        allowed_models: vec!["llama-*".to_owned(), format!("model-{number}")],
        rate_limit_rps: Some(10.0),
        max_concurrent: std::num::NonZeroU32::new(16),
        weight: 1.0,
        priority: 0.0,
        expires_at: Some("2030-01-01T00:00:00Z".to_owned()),
        enabled: true,
        metadata: [("team".to_owned(), format!("team-{}", number % 100))].into(),
    }
}

fn key(number: usize) -> String {
    format!("sk-{number:045}")
}

/// Resident memory of this process, in KiB.
fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn main() {
    let section = TenantsSection {
        api_keys: (0..KEYS).map(entry).collect(),
        ..TenantsSection::default()
    };
    let (before, started) = (resident_kib(), Instant::now());
    let tenants = Tenants::new(&section, TenantSecrets::default());
    let (took, grown) = (started.elapsed(), resident_kib().saturating_sub(before));
    println!("{KEYS} keys: {took:?}, {} MiB", grown / 1024);
    let started = Instant::now();
    tenants.reconfigure(&section);
    println!("reload: {:?}", started.elapsed());
    let keys: Vec<String> = (0..1000).map(|number| key(number * 97)).collect();
    let (table, started) = (tenants.table(), Instant::now());
    let mut found = 0_usize;
    for number in 0..LOOKUPS {
        let key = keys[number % keys.len()].as_bytes();
        found += usize::from(matches!(table.verdict(Some(key), 0), KeyVerdict::Tenant(_)));
    }
    let each = started.elapsed().as_nanos() / LOOKUPS as u128;
    println!("{found} lookups: {each} ns each, with the digest of the key");
    let started = Instant::now();
    for number in 0..LOOKUPS {
        std::hint::black_box(KeyDigest::of(keys[number % keys.len()].as_bytes()));
    }
    let each = started.elapsed().as_nanos() / LOOKUPS as u128;
    println!("the digest alone: {each} ns");
}
