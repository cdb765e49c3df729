//! Time and memory of a table of many keys, and what a request costs at 1,000 tenants with every limit:
//! `cargo run --release -p tenants --example key_table`.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it measures and prints figures"
)]

use std::{fs, num::NonZeroU32, time::Instant};

use kv_blocks::Moment;
use settings::Secret;
use tenants::{
    KeyDigest, KeyVerdict, ReportedTokens, Scope, TenantEntry, TenantSecrets, Tenants,
    TenantsSection, TokenAmounts,
};

const KEYS: usize = 100_000;
const LOOKUPS: usize = 1_000_000;
/// Tenants of the requests.
const TENANTS: usize = 1_000;

fn entry(number: usize) -> TenantEntry {
    TenantEntry {
        name: format!("tenant-{number:06}"),
        key: Some(Secret::new(key(number))),
        key_sha256: None,
        scopes: vec![Scope::Chat, Scope::Embeddings, Scope::Models],
        allowed_models: vec!["llama-*".to_owned(), format!("model-{number}")],
        engine_fields: Vec::new(),
        rate_limit_rps: Some(1e6),
        max_concurrent: NonZeroU32::new(16),
        prompt_tokens_per_minute: NonZeroU32::new(u32::MAX),
        output_tokens_per_minute: NonZeroU32::new(u32::MAX),
        weight: 1.0,
        priority: 0.0,
        slo_ttft: None,
        slo_tpot: None,
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
    requests();
}

/// Measures what a request takes from its key to its end.
fn requests() {
    let section = TenantsSection {
        api_keys: (0..TENANTS).map(entry).collect(),
        ..TenantsSection::default()
    };
    let tenants = Tenants::new(&section, TenantSecrets::default());
    let keys: Vec<String> = (0..TENANTS).map(key).collect();
    let (amounts, used) = (tokens(1000, 200), tokens(1000, 150));
    let (started, mut passed) = (Instant::now(), 0_usize);
    for number in 0..LOOKUPS {
        let now = Moment::at(started.elapsed());
        let (table, key) = (tenants.table(), keys[number * 7 % TENANTS].as_bytes());
        let KeyVerdict::Tenant(tenant) = table.verdict(Some(key), 0) else {
            continue;
        };
        let Ok(mut permit) = tenant.admit(Scope::Chat, now) else {
            continue;
        };
        passed += usize::from(permit.reserve_tokens(amounts, now).is_ok());
        permit.count_tokens(ReportedTokens {
            prompt: used.prompt,
            cached: 0,
            completion: used.output,
        });
        permit.settle_tokens(used, now);
    }
    let each = started.elapsed().as_nanos() / LOOKUPS as u128;
    println!("{passed} requests of {TENANTS} tenants: {each} ns each, from the key to the end");
}

fn tokens(prompt: u32, output: u32) -> TokenAmounts {
    TokenAmounts { prompt, output }
}
