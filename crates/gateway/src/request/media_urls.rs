//! Which URLs of pictures, sound and video reach engines, which fetch them.
//!
//! A client could have an engine fetch what only the engine can reach (S43). The body is checked as
//! the client sent it, before hooks change it.

use dialect::{ApiError, MediaUrl};
use tenants::{MediaUrlRule, Tenant};

use crate::errors;

/// Longest path of a file, in bytes: a text without a scheme that is not longer may name one.
const LONGEST_PATH: usize = 4096;

/// Checks the URLs in a JSON body of the tenant. Where any may pass the body is not searched.
pub(super) fn check(tenant: &Tenant, body: &[u8]) -> Result<(), ApiError> {
    let rule = tenant.media_urls();
    if rule == MediaUrlRule::Any {
        return Ok(());
    }
    dialect::media_urls(body).try_for_each(|url| check_url(rule, &url))
}

fn check_url(rule: MediaUrlRule, url: &MediaUrl<'_>) -> Result<(), ApiError> {
    if url.is_plain_data() {
        return Ok(());
    }
    let text = url.text();
    if is_data(&text) {
        return Ok(());
    }
    if rule == MediaUrlRule::Data {
        return Err(errors::media_url_not_allowed(url.field, "is no data: URL"));
    }
    net::check_public_url(&text).map_err(|reason| errors::media_url_not_allowed(url.field, reason))
}

/// Returns whether a text is the content itself: a `data:` URL, or base64, which some engines take
/// without one. They may take the same text for the path of a file, unless it is too long for one.
fn is_data(text: &str) -> bool {
    let begins_as_data = (text.get(..5)).is_some_and(|it| it.eq_ignore_ascii_case("data:"));
    let of_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(&byte);
    begins_as_data || (text.len() > LONGEST_PATH && text.bytes().all(of_base64))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use config::Secret;
    use contract_id::contract;
    use dialect::ErrorCode;
    use tenants::{KeyVerdict, MediaUrls, TenantEntry, TenantSecrets, Tenants, TenantsSection};

    use super::*;

    /// The first of so many tenants; without any, the key `a` is that of `--api-key`.
    fn tenant(media_urls: MediaUrls, count: usize) -> Arc<Tenant> {
        let names = ["a", "b"].into_iter().take(count);
        let entries = names.map(|name| TenantEntry {
            key: Some(Secret::new(name)),
            ..TenantEntry::named(name)
        });
        let section = TenantsSection {
            media_urls,
            api_keys: entries.collect(),
            ..TenantsSection::default()
        };
        let tenants = Tenants::new(&section, TenantSecrets::of_key("a"));
        match tenants.table().verdict(Some(b"a"), 0) {
            KeyVerdict::Tenant(tenant) => Arc::clone(tenant),
            other => panic!("{other:?}"),
        }
    }

    fn passes(tenant: &Tenant, url: &str) -> bool {
        let text = serde_json::Value::from(url);
        let body = format!(
            r#"{{"model":"m","messages":[{{"content":[{{"image_url":{{"url":{text}}}}}]}}]}}"#
        );
        match check(tenant, body.as_bytes()) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.code, ErrorCode::FieldNotAllowed);
                assert_eq!(error.param.as_deref(), Some("image_url"));
                false
            }
        }
    }

    #[test]
    #[contract("S43")]
    fn each_rule_passes_its_urls_and_auto_depends_on_the_other_tenants() {
        let base64 = "A".repeat(LONGEST_PATH + 1);
        let data = ["data:image/png;base64,AA==", "DATA:,x", &*base64];
        let public = ["https://example.com/a.png"];
        let internal = [
            "http://169.254.169.254/latest/meta-data",
            "http://localhost:8000/",
            "http://2852039166/",
            "file:///etc/passwd",
            "/etc/passwd",
            "AAAA",
            " data:,x",
            "",
        ];
        for (setting, count, rule) in [
            (MediaUrls::Auto, 0, MediaUrlRule::Any),
            (MediaUrls::Auto, 1, MediaUrlRule::Any),
            (MediaUrls::Auto, 2, MediaUrlRule::Public),
            (MediaUrls::Any, 2, MediaUrlRule::Any),
            (MediaUrls::Public, 0, MediaUrlRule::Public),
            (MediaUrls::Public, 1, MediaUrlRule::Public),
            (MediaUrls::Data, 0, MediaUrlRule::Data),
            (MediaUrls::Data, 2, MediaUrlRule::Data),
        ] {
            let tenant = tenant(setting, count);
            assert_eq!(tenant.media_urls(), rule, "{setting:?} {count}");
            let all_pass = |urls: &[&str], expected: bool| {
                for url in urls {
                    assert_eq!(passes(&tenant, url), expected, "{rule:?} {url}");
                }
            };
            all_pass(&data, true);
            all_pass(&public, rule != MediaUrlRule::Data);
            all_pass(&internal, rule == MediaUrlRule::Any);
        }
    }

    #[test]
    #[contract("S43")]
    fn one_url_that_may_not_pass_among_others_refuses_the_body() {
        let tenant = tenant(MediaUrls::Public, 1);
        let body = |second: &str| {
            format!(r#"{{"image_data":["data:,x","https://example.com/a","{second}"]}}"#)
        };
        assert!(check(&tenant, body("https://example.com/b").as_bytes()).is_ok());
        let refused = check(&tenant, body("http://10.0.0.1/").as_bytes());
        let field = refused.err().and_then(|error| error.param);
        assert_eq!(field.as_deref(), Some("image_data"));
    }
}
