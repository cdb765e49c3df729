use std::time::Duration;

use contract_id::contract;
use kv_blocks::Moment;
use settings::Secret;

use super::*;
use crate::{HeaderExposure, Isolation, ListedKeys, Refusal, Scope, TenantPermit};

fn entry(name: &str, key: &str) -> TenantEntry {
    TenantEntry {
        key: Some(Secret::new(key)),
        scopes: vec![Scope::Chat],
        metadata: [("team".to_owned(), "a".to_owned())].into(),
        ..TenantEntry::named(name)
    }
}

fn section(api_keys: Vec<TenantEntry>) -> TenantsSection {
    TenantsSection {
        api_keys,
        ..TenantsSection::default()
    }
}

fn tenant(tenants: &Tenants, key: &str) -> Arc<Tenant> {
    match tenants.table().verdict(Some(key.as_bytes()), 0) {
        KeyVerdict::Tenant(tenant) => Arc::clone(tenant),
        other => panic!("{other:?}"),
    }
}

fn admit(tenants: &Tenants, key: &str) -> Result<TenantPermit, Refusal> {
    tenant(tenants, key).admit(Scope::Chat, Moment::START)
}

#[test]
#[contract("V32")]
fn a_key_is_known_by_its_digest_and_kept_in_no_other_form() {
    let mut hashed = entry("hashed", "");
    hashed.key = None;
    hashed.key_sha256 = Some(Secret::new(
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    ));
    let tenants = Tenants::new(
        &section(vec![entry("plain", "sk-1"), hashed]),
        TenantSecrets::default(),
    );
    assert_eq!(&**tenant(&tenants, "sk-1").name(), "plain");
    assert_eq!(&**tenant(&tenants, "abc").name(), "hashed");
    let shown = format!("{tenants:?}");
    assert!(
        !shown.contains("sk-1") && !shown.contains("ba7816"),
        "{shown}"
    );
}

#[test]
#[contract("S7")]
fn the_whole_key_is_hashed_and_no_beginning_of_it_counts() {
    let right = "0123456789abcdef0123456789abcdef";
    let tenants = Tenants::new(&section(vec![entry("a", right)]), TenantSecrets::default());
    let table = tenants.table();
    let is_unknown =
        |key: &str| matches!(table.verdict(Some(key.as_bytes()), 0), KeyVerdict::Unknown);
    assert!(!is_unknown(right));
    let (digest, mut digests) = (KeyDigest::of(right.as_bytes()), Vec::new());
    for equal in 0..right.len() {
        let mut wrong = right.to_owned();
        wrong.replace_range(equal..=equal, "x");
        assert!(is_unknown(&wrong) && is_unknown(&right[..equal]), "{equal}");
        digests.push(KeyDigest::of(wrong.as_bytes()).to_hex());
    }
    // A lookup compares digests, and those of keys that are nearly right share no more than others.
    let alike = |hex: &String| {
        let both = hex.bytes().zip(digest.to_hex().into_bytes());
        both.take_while(|(one, other)| one == other).count()
    };
    assert!(digests.iter().all(|hex| alike(hex) < 8));
    assert!(is_unknown(&format!("{right}0")) && is_unknown(&right.repeat(2)));
}

#[test]
#[contract("V31", "S6", "S14")]
fn a_key_that_is_unknown_disabled_or_expired_has_no_tenant() {
    let (mut off, mut old) = (entry("off", "off"), entry("old", "old"));
    off.enabled = false;
    old.expires_at = Some("1970-01-01T00:01:00Z".to_owned());
    let tenants = Tenants::new(
        &section(vec![entry("a", "sk-1"), off, old]),
        TenantSecrets::default(),
    );
    let table = tenants.table();
    let verdict = |key: Option<&str>, unix_s| {
        let verdict = table.verdict(key.map(str::as_bytes), unix_s);
        format!("{verdict:?}").split('(').next().map(str::to_owned)
    };
    for (key, unix_s, expected) in [
        (None, 0, "Missing"),
        (Some(""), 0, "Unknown"),
        (Some("sk-10"), 0, "Unknown"),
        (Some("sk-1"), 0, "Tenant"),
        (Some("off"), 0, "Disabled"),
        (Some("old"), 59, "Tenant"),
        (Some("old"), 60, "Expired"),
    ] {
        assert_eq!(verdict(key, unix_s).as_deref(), Some(expected), "{key:?}");
    }
    assert!(table.requires_key());
}

#[test]
#[contract("V33")]
fn the_first_of_tenants_one_key_and_open_access_that_is_configured_decides() {
    let none = section(Vec::new());
    let some = section(vec![entry("a", "sk-a")]);
    let open = Tenants::new(&none, TenantSecrets::default());
    assert!(!open.table().requires_key());
    assert_eq!(&**tenant(&open, "anything").name(), DEFAULT_TENANT);
    let one = Tenants::new(&none, TenantSecrets::of_key("sk-one"));
    assert_eq!(&**tenant(&one, "sk-one").name(), DEFAULT_TENANT);
    one.reconfigure(&some);
    let table = one.table();
    assert!(matches!(
        table.verdict(Some(b"sk-one"), 0),
        KeyVerdict::Unknown
    ));
    assert_eq!(&**tenant(&one, "sk-a").name(), "a");
    assert!(!one.reconfigure(&none));
    assert_eq!(&**tenant(&one, "sk-one").name(), DEFAULT_TENANT);
}

#[test]
#[contract("V33", "S6")]
fn removing_the_last_key_opens_nothing_until_the_next_start() {
    let (none, some) = (section(Vec::new()), section(vec![entry("a", "sk-a")]));
    let tenants = Tenants::new(&some, TenantSecrets::default());
    assert!(tenants.reconfigure(&none), "it is closed");
    for key in [None, Some(&b"sk-a"[..]), Some(b"")] {
        let table = tenants.table();
        let verdict = table.verdict(key, 0);
        assert!(
            matches!(verdict, KeyVerdict::Missing | KeyVerdict::Unknown),
            "{verdict:?}"
        );
    }
    assert!(!tenants.reconfigure(&some));
    assert_eq!(&**tenant(&tenants, "sk-a").name(), "a");
    // A router that began open stays open.
    let open = Tenants::new(&none, TenantSecrets::default());
    assert!(!open.reconfigure(&none) && !open.table().requires_key());
}

#[test]
#[contract("V32")]
fn a_tenant_that_is_removed_and_comes_back_has_its_running_requests_and_counts() {
    let mut a = entry("a", "a");
    a.max_concurrent = std::num::NonZeroU32::new(1);
    let both = section(vec![a.clone(), entry("b", "b")]);
    let tenants = Tenants::new(&both, TenantSecrets::default());
    let running = admit(&tenants, "a").expect("it is the first");
    tenants.reconfigure(&section(vec![entry("b", "b")]));
    tenants.reconfigure(&both);
    let limited = admit(&tenants, "a").expect_err("the first one still runs");
    assert_eq!(limited, Refusal::ConcurrencyLimited { most: 1 });
    drop(running);
    assert!(admit(&tenants, "a").is_ok());
    assert_eq!(tenant(&tenants, "a").counts().requests, 3);
}

#[test]
fn removed_tenants_without_running_requests_are_forgotten_beyond_a_number() {
    let names = |from: usize| (0..=MOST_REMOVED).map(move |n| (from + n).to_string());
    let many = |from| section(names(from).map(|name| entry(&name, &name)).collect());
    let tenants = Tenants::new(&many(0), TenantSecrets::default());
    let running = admit(&tenants, "7").expect("no limits");
    tenants.reconfigure(&many(MOST_REMOVED + 1));
    assert_eq!(tenants.states.lock().len(), MOST_REMOVED + 2, "7 is kept");
    drop(running);
}

#[test]
#[contract("V32")]
fn only_a_changed_section_makes_a_new_table() {
    let mut same = section(vec![entry("a", "a"), entry("b", "b")]);
    same.hash_keys();
    let tenants = Tenants::new(&same, TenantSecrets::default());
    let first = tenants.table();
    assert!(!tenants.reconfigure(&same));
    assert!(Arc::ptr_eq(&first, &tenants.table()));
    let mut shared = same.clone();
    shared.isolation = Isolation::Shared;
    let mut fewer = same.clone();
    fewer.api_keys.pop();
    for changed in [shared, fewer, section(Vec::new())] {
        let before = tenants.table();
        tenants.reconfigure(&changed);
        assert!(!Arc::ptr_eq(&before, &tenants.table()));
    }
    // The last key is gone, and stays so.
    assert!(tenants.reconfigure(&section(Vec::new())));
}

#[test]
#[contract("V31")]
fn equal_entries_share_their_rules_and_keep_names_states_and_times_of_their_own() {
    let mut both = [entry("a", "a"), entry("b", "b")];
    for entry in &mut both {
        entry.max_concurrent = std::num::NonZeroU32::new(1);
    }
    both[0].expires_at = Some("1970-01-01T00:01:00Z".to_owned());
    let mut parts = EntryParts::default();
    let listed = both.map(|entry| {
        let digest = KeyDigest::of(entry.name.as_bytes());
        KeyEntry::of(&entry, digest, &mut parts)
    });
    let section = TenantsSection {
        keys_file: Some("keys.jsonl".into()),
        listed: ListedKeys::new(listed.into()),
        ..TenantsSection::default()
    };
    let tenants = Tenants::new(&section, TenantSecrets::default());
    let held = admit(&tenants, "a").expect("it is the first");
    assert!(admit(&tenants, "a").is_err(), "its only place is taken");
    assert!(
        admit(&tenants, "b").is_ok(),
        "that of another tenant is not"
    );
    drop(held);
    let table = tenants.table();
    let is_tenant = |key: &[u8]| matches!(table.verdict(Some(key), 60), KeyVerdict::Tenant(_));
    assert!(!is_tenant(b"a") && is_tenant(b"b"), "only one has a time");
    assert_ne!(
        tenant(&tenants, "a").cache_salt(None),
        tenant(&tenants, "b").cache_salt(None)
    );
    let notes: Vec<_> = table.tenants()[1]
        .metadata()
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    assert_eq!(notes, ["team: a"]);
}

#[test]
#[contract("V31")]
fn entries_of_one_name_are_keys_of_one_tenant() {
    let mut keys = [entry("a", "old"), entry("a", "new")];
    for entry in &mut keys {
        entry.max_concurrent = std::num::NonZeroU32::new(1);
    }
    keys[0].enabled = false;
    let tenants = Tenants::new(&section(keys.into()), TenantSecrets::default());
    let running = admit(&tenants, "new").expect("it is the first");
    assert!(matches!(
        admit(&tenants, "new"),
        Err(Refusal::ConcurrencyLimited { .. })
    ));
    drop(running);
    assert!(matches!(
        tenants.table().verdict(Some(b"old"), 0),
        KeyVerdict::Disabled(_)
    ));
    assert!(tenant(&tenants, "new").is_alone());
    let shown = tenants.table().tenants();
    assert_eq!(shown.len(), 1);
    assert!(shown[0].is_enabled());
}

#[test]
#[contract("V31")]
fn each_tenant_has_places_of_its_own_which_end_with_their_requests() {
    let (mut a, b) = (entry("a", "a"), entry("b", "b"));
    a.max_concurrent = std::num::NonZeroU32::new(2);
    let tenants = Tenants::new(&section(vec![a, b]), TenantSecrets::default());
    let held = [admit(&tenants, "a"), admit(&tenants, "a")];
    let refused = admit(&tenants, "a").expect_err("no place is left");
    assert_eq!(refused, Refusal::ConcurrencyLimited { most: 2 });
    assert!(admit(&tenants, "b").is_ok());
    drop(held);
    assert!(admit(&tenants, "a").is_ok());
    let counts = tenant(&tenants, "a").counts();
    assert_eq!((counts.in_flight, counts.requests), (0, 4));
    assert_eq!(counts.concurrency_limited, 1);
}

#[test]
#[contract("V31")]
fn each_tenant_has_streams_of_its_own_which_end_with_their_requests() {
    let mut both = section(vec![entry("a", "a"), entry("b", "b")]);
    both.defaults.streams = std::num::NonZeroU32::MIN;
    let tenants = Tenants::new(&both, TenantSecrets::default());
    let permit = |key: &str| admit(&tenants, key).expect("requests are not limited");
    let (mut first, mut second) = (permit("a"), permit("a"));
    assert_eq!(first.begin_stream(), Ok(()));
    assert_eq!(first.begin_stream(), Ok(()), "it has its place already");
    let refused = second.begin_stream();
    assert_eq!(refused, Err(Refusal::StreamsLimited { most: 1 }));
    assert_eq!(permit("b").begin_stream(), Ok(()), "another tenant's");
    // A reload changes the limit and keeps the places.
    both.defaults.streams = std::num::NonZeroU32::new(2).expect("it is not 0");
    tenants.reconfigure(&both);
    let mut third = permit("a");
    assert_eq!(third.begin_stream(), Ok(()));
    assert_eq!(
        permit("a").begin_stream(),
        Err(Refusal::StreamsLimited { most: 2 })
    );
    drop((first, third));
    let mut next = [permit("a"), permit("a")];
    assert!(next.iter_mut().all(|permit| permit.begin_stream().is_ok()));
    let counts = tenant(&tenants, "a").counts();
    assert_eq!((counts.stream_limited, counts.limited()), (2, 2));
}

#[test]
#[contract("V31", "V33")]
fn one_key_and_open_access_have_no_limit_of_streams() {
    let mut none = section(Vec::new());
    none.defaults.streams = std::num::NonZeroU32::MIN;
    for secrets in [TenantSecrets::default(), TenantSecrets::of_key("k")] {
        let tenants = Tenants::new(&none, secrets);
        let mut held = Vec::new();
        for _ in 0..3 {
            let mut permit = admit(&tenants, "k").expect("requests are not limited");
            assert_eq!(permit.begin_stream(), Ok(()));
            held.push(permit);
        }
        assert_eq!(tenant(&tenants, "k").counts().in_flight, 3);
    }
}

#[test]
#[contract("F93")]
fn routers_divide_the_streams_of_a_tenant() {
    let mut one = section(vec![entry("a", "a")]);
    one.defaults.streams = std::num::NonZeroU32::new(3).expect("it is not 0");
    let tenants = Tenants::new(&one, TenantSecrets::default());
    tenants.routers().set(2);
    let mut permits: Vec<_> = (0..3).filter_map(|_| admit(&tenants, "a").ok()).collect();
    let begun: Vec<_> = permits.iter_mut().map(TenantPermit::begin_stream).collect();
    let refused = Err(Refusal::StreamsLimited { most: 2 });
    assert_eq!(begun, [Ok(()), Ok(()), refused]);
}

#[test]
#[contract("V31")]
fn each_tenant_has_a_bucket_of_its_own_and_a_request_without_a_place_takes_no_token() {
    let mut limited = [entry("a", "a"), entry("b", "b")];
    for entry in &mut limited {
        entry.rate_limit_rps = Some(2.0);
        entry.max_concurrent = std::num::NonZeroU32::new(1);
    }
    let tenants = Tenants::new(&section(limited.into()), TenantSecrets::default());
    let first = admit(&tenants, "a").expect("the bucket is full");
    assert!(matches!(
        admit(&tenants, "a"),
        Err(Refusal::ConcurrencyLimited { .. })
    ));
    drop(first);
    drop(admit(&tenants, "a").expect("a second token"));
    let wait = Duration::from_millis(500);
    let refused = admit(&tenants, "a").expect_err("no token is left");
    let expected = Refusal::RateLimited {
        per_second: 2.0,
        wait,
    };
    assert_eq!(refused, expected);
    assert!(admit(&tenants, "b").is_ok());
    let later = Moment::START + wait;
    assert!(tenant(&tenants, "a").admit(Scope::Chat, later).is_ok());
    assert_eq!(tenant(&tenants, "a").counts().rate_limited, 1);
    assert_eq!(tenant(&tenants, "a").counts().in_flight, 0);
}

#[test]
#[contract("V32")]
fn a_reload_changes_the_rules_and_keeps_places_tokens_and_counts() {
    let mut a = entry("a", "old-key");
    a.max_concurrent = std::num::NonZeroU32::new(1);
    a.rate_limit_rps = Some(1.0);
    let tenants = Tenants::new(&section(vec![a.clone()]), TenantSecrets::default());
    let running = admit(&tenants, "old-key").expect("it is the first");
    a.key = Some(Secret::new("new-key"));
    tenants.reconfigure(&section(vec![a.clone()]));
    let table = tenants.table();
    assert!(matches!(
        table.verdict(Some(b"old-key"), 0),
        KeyVerdict::Unknown
    ));
    let limited = admit(&tenants, "new-key").expect_err("the first one still runs");
    assert_eq!(limited, Refusal::ConcurrencyLimited { most: 1 });
    drop(running);
    let limited = admit(&tenants, "new-key").expect_err("its token is used");
    assert!(matches!(limited, Refusal::RateLimited { .. }));
    a.rate_limit_rps = None;
    tenants.reconfigure(&section(vec![a]));
    assert!(admit(&tenants, "new-key").is_ok());
    assert_eq!(tenant(&tenants, "new-key").counts().requests, 4);
}

#[test]
#[contract("V31")]
fn a_tenant_uses_only_its_scopes_and_overrides_only_alone_or_where_granted() {
    let overrides = |section: &TenantsSection| {
        let tenants = Tenants::new(section, TenantSecrets::default());
        tenant(&tenants, "a").has_scope(Scope::Overrides)
    };
    let alone = section(vec![entry("a", "a")]);
    let mut two = section(vec![entry("a", "a"), entry("b", "b")]);
    assert!(overrides(&alone) && !overrides(&two));
    two.api_keys[0].scopes.push(Scope::Overrides);
    assert!(overrides(&two));
    two.api_keys[0].scopes.pop();
    two.defaults.overrides = true;
    assert!(overrides(&two));
    let tenants = Tenants::new(&two, TenantSecrets::default());
    let refused = tenant(&tenants, "a").admit(Scope::Models, Moment::START);
    let refused = refused.expect_err("it has only chat");
    assert_eq!(refused, Refusal::ScopeMissing(Scope::Models));
    assert_eq!(tenant(&tenants, "a").counts().errors, 1);
}

#[test]
#[contract("S50", "S52")]
fn tenants_have_salts_as_soon_as_there_are_two_and_two_keys_of_one_share_theirs() {
    let two_keys = [entry("a", "a1"), entry("a", "a2"), entry("b", "b")];
    let salt = |section: &TenantsSection, key: &str| {
        let tenants = Tenants::new(section, TenantSecrets::default());
        tenant(&tenants, key).cache_salt(None)
    };
    let alone = section(two_keys[..2].to_vec());
    assert_eq!(salt(&alone, "a1"), None);
    let mut both = section(two_keys.to_vec());
    let of_a = salt(&both, "a1");
    assert!(of_a.is_some());
    assert_eq!(
        of_a,
        salt(&both, "a2"),
        "the tenant and not the key decides"
    );
    assert_ne!(of_a, salt(&both, "b"));
    both.isolation = Isolation::Strict;
    assert_eq!(salt(&both, "a1"), of_a, "the caches stay warm");
    both.isolation = Isolation::Shared;
    assert_eq!(salt(&both, "a1"), None);
}

#[test]
#[contract("S59")]
fn only_tenants_beside_others_are_isolated_strictly_and_only_where_it_is_set() {
    let is_strict = |isolation, names: &[&str]| {
        let mut section = section(names.iter().map(|name| entry(name, name)).collect());
        section.isolation = isolation;
        let tenants = Tenants::new(&section, TenantSecrets::default());
        tenant(&tenants, "a").is_strictly_isolated()
    };
    assert!(is_strict(Isolation::Strict, &["a", "b"]));
    assert!(!is_strict(Isolation::Strict, &["a"]));
    assert!(!is_strict(Isolation::Salted, &["a", "b"]));
    assert!(!is_strict(Isolation::Shared, &["a", "b"]));
}

#[test]
#[contract("S56")]
fn replies_tell_a_tenant_of_decisions_only_where_it_is_alone_or_that_is_set() {
    let sees = |exposure, names: &[&str]| {
        let mut section = section(names.iter().map(|name| entry(name, name)).collect());
        section.expose_headers = exposure;
        let tenants = Tenants::new(&section, TenantSecrets::default());
        tenant(&tenants, "a").sees_decisions()
    };
    for (exposure, alone, among_others) in [
        (HeaderExposure::Auto, true, false),
        (HeaderExposure::Always, true, true),
        (HeaderExposure::Never, false, false),
    ] {
        assert_eq!(sees(exposure, &["a"]), alone, "{exposure:?}");
        assert_eq!(sees(exposure, &["a", "b"]), among_others, "{exposure:?}");
    }
}
