//! Forms of a worker's URL, and the errors of refused spellings.

use net::{WorkerUrl, WorkerUrlError};

fn parse(text: &str) -> WorkerUrl {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> String {
    match text.parse::<WorkerUrl>() {
        Ok(url) => panic!("{text:?} was read as {url}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn plain_urls_parse() {
    for (text, address, base) in [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", ""),
        (
            "http://engine-0.pool_a.svc:8000/",
            "engine-0.pool_a.svc:8000",
            "",
        ),
        ("http://Engine", "engine:80", ""),
        ("HTTP://h:1", "h:1", ""),
        ("http://[::1]:8000/base/path/", "[::1]:8000", "/base/path"),
        ("http://[0:0:0:0:0:0:0:1]", "[::1]:80", ""),
        ("http://10.0.0.5:65535/v1@x", "10.0.0.5:65535", "/v1@x"),
        ("unix:///run/engine.sock", "unix:/run/engine.sock", ""),
    ] {
        let url = parse(text);
        assert_eq!(
            (url.address().to_string().as_str(), url.base()),
            (address, base),
            "{text}"
        );
        assert_eq!(url.display_name(), address, "{text}");
    }
}

#[test]
fn a_formatted_url_parses_to_the_same() {
    for text in [
        "http://127.0.0.1:8000",
        "http://[::1]:80/base",
        "unix:///run/a.sock",
        "http://h:9",
    ] {
        assert_eq!(parse(text).to_string(), text);
    }
}

#[test]
fn request_targets_start_with_the_base_path() {
    assert_eq!(
        parse("http://h:1/base/").path("/v1/models?x=1"),
        "/base/v1/models?x=1"
    );
    assert_eq!(parse("http://h:1").path("health"), "/health");
    assert_eq!(parse("unix:///a.sock").authority(), "localhost");
    assert_eq!(parse("http://h").authority(), "h:80");
}

#[test]
fn https_is_the_same_authority_with_tls() {
    let url = parse("https://Host/base");
    assert!(url.is_tls() && !parse("http://host:443/base").is_tls());
    assert_eq!(
        (url.to_string().as_str(), url.authority().as_str()),
        ("https://host:443/base", "host:443")
    );
    assert_ne!(url, parse("http://host:443/base"));
    assert_eq!(parse("HTTPS://h:1").display_name(), "h:1");
}

#[test]
fn other_schemes_are_refused() {
    for text in [
        "file:///etc/passwd",
        "gopher://h:70/",
        "ftp://h/",
        "file:/etc/passwd",
        "data:text/plain,x",
        "http:/h",
    ] {
        assert!(
            matches!(
                text.parse::<WorkerUrl>(),
                Err(WorkerUrlError::Scheme { .. })
            ),
            "{text}"
        );
    }
    for text in ["", "127.0.0.1:8000", "localhost", "//h:1", "http//h"] {
        assert!(refusal(text).contains("http://host:port"), "{text}");
    }
}

#[test]
fn passwords_are_refused_and_not_quoted() {
    for text in [
        "http://user:hunter2@h:1",
        "http://hunter2@h",
        "https://u:hunter2@h",
        "user:hunter2@h",
        "http://a@h/?x=hunter2",
    ] {
        assert!(
            matches!(text.parse::<WorkerUrl>(), Err(WorkerUrlError::UserInfo)),
            "{text}"
        );
        assert!(!refusal(text).contains("hunter2"), "{text}");
    }
}

#[test]
fn queries_and_fragments_are_refused() {
    assert!(refusal("http://h:1/a?b=c").contains("has a query"));
    assert!(refusal("http://h:1/a#b").contains("has a fragment"));
    assert!(refusal("http://h:1?b").contains("has a query"));
    assert!(refusal("unix:///a.sock#b").contains("has a fragment"));
}

#[test]
fn ambiguous_characters_are_refused() {
    for text in [
        "http://h\\@evil:1",
        "http://h:1\\x",
        "http://h\t:1",
        "http:// h",
        "http://h:1\r\n",
        " http://h",
        "http://h\u{e9}:1",
        "http://h\u{ff0e}x",
        "http://h\0",
    ] {
        assert!(
            matches!(
                text.parse::<WorkerUrl>(),
                Err(WorkerUrlError::Character { .. })
            ),
            "{text:?}"
        );
    }
}

#[test]
fn unusual_spellings_of_addresses_are_refused() {
    for host in [
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "127.1",
        "127.0.1",
        "127.0.0.1.",
        "1.2.3.4.5",
        "0x",
        "256.0.0.1",
        "127.0.0.01",
        "a.0x7f",
    ] {
        let message = refusal(&format!("http://{host}:80"));
        assert!(
            message.contains("write four decimal numbers") || message.contains("leave the dot out"),
            "{message}"
        );
    }
    assert!(refusal("http://%31%32%37.0.0.1").contains("percent-encoded"));
    assert!(refusal("http://[fe80::1%25eth0]:80").contains("zone"));
    for host in [
        "[::1",
        "[::1]x",
        "[1.2.3.4]",
        "[]",
        "::1",
        "",
        ".a",
        "a..b",
        "a b",
        "h,i",
        "*",
    ] {
        refusal(&format!("http://{host}/"));
    }
    refusal(&format!("http://{}:1", "a".repeat(64)));
}

#[test]
fn ports_are_plain_numbers() {
    for port in [
        "",
        "0",
        "65536",
        "+80",
        "-1",
        "8 0",
        "80a",
        "٨",
        "99999999999999999999",
    ] {
        refusal(&format!("http://h:{port}"));
    }
    assert!(refusal("http://h:0").contains("from 1 to 65535"));
    assert!(refusal("http://h:80:80").contains("from 1 to 65535"));
}

#[test]
fn ambiguous_base_paths_are_refused() {
    for path in [
        "/..", "/a/../b", "/./a", "//a", "/a//b", "/%2e%2e/", "/a%00", "/a\"b", "/a<b",
    ] {
        assert!(
            matches!(
                format!("http://h:1{path}").parse::<WorkerUrl>(),
                Err(WorkerUrlError::Path { .. })
            ),
            "{path}"
        );
    }
    for text in ["unix://", "unix://run/a.sock", "unix:///", "unix:///dir/"] {
        assert!(
            matches!(
                text.parse::<WorkerUrl>(),
                Err(WorkerUrlError::RelativeSocket { .. })
            ),
            "{text}"
        );
    }
}
