//! Encryption settings: keys that require each other, and listeners that may be public.

use contract_id::contract;

use crate::sources;

fn problems(text: &str) -> Vec<String> {
    sources::problems(text)
        .iter()
        .map(|problem| problem.path.clone())
        .collect()
}

#[test]
fn a_listener_has_certificate_and_key_or_neither() {
    let settings = sources::settings(
        "server: {tls: {cert: /c.pem, key: /k.pem, client_ca: /a.pem}}\nadmin: {tls: {}}\n",
    );
    let tls = settings.server.tls.expect("it is set");
    assert_eq!(
        (tls.cert, tls.key, tls.client_ca),
        ("/c.pem".into(), "/k.pem".into(), Some("/a.pem".into()))
    );
    assert_eq!(settings.admin.tls, None);
    for (text, path) in [
        ("server: {tls: {cert: /c.pem}}", "server.tls.key"),
        ("server: {tls: {key: /k.pem}}", "server.tls.cert"),
        ("admin: {tls: {client_ca: /a.pem}}", "admin.tls.cert"),
        (
            "admin: {tls: {cert: /c.pem, client_ca: /a.pem}}",
            "admin.tls.key",
        ),
    ] {
        assert_eq!(problems(text), [path], "{text}");
    }
}

#[test]
#[contract("S16")]
fn rules_for_client_certificates_need_an_authority() {
    let rules = "client_crl: /l.pem, client_names: [a.test, 10.0.0.1]";
    let settings = sources::settings(&format!(
        "server: {{tls: {{cert: /c.pem, key: /k.pem, client_ca: /a.pem, {rules}}}}}"
    ));
    let tls = settings.server.tls.expect("it is set");
    assert_eq!(tls.client_crl, Some("/l.pem".into()));
    assert_eq!(tls.client_names, ["a.test", "10.0.0.1"]);
    for (rule, path) in [
        ("client_crl: /l.pem", "admin.tls.client_crl"),
        ("client_names: [a.test]", "admin.tls.client_names"),
    ] {
        let text = format!("admin: {{tls: {{cert: /c.pem, key: /k.pem, {rule}}}}}");
        assert_eq!(problems(&text), [path], "{text}");
    }
}

#[test]
fn a_listener_that_verifies_clients_may_be_public() {
    let tls = "tls: {cert: /c, key: /k, client_ca: /a}";
    assert_eq!(
        problems("server: {listen: \"0.0.0.0:1\"}"),
        ["server.listen"]
    );
    assert_eq!(
        problems("server: {also_listen: [\"127.0.0.1:1\", \"0.0.0.0:2\"]}"),
        ["server.also_listen"]
    );
    assert_eq!(
        problems("admin: {listen: \"0.0.0.0:1\", tls: {cert: /c, key: /k}}"),
        ["admin.listen"]
    );
    let known = format!("server: {{listen: \"0.0.0.0:1\", also_listen: [\"0.0.0.0:2\"], {tls}}}\n");
    let known = format!("{known}admin: {{listen: \"0.0.0.0:3\", {tls}}}\n");
    sources::settings(&format!("{known}metrics: {{listen: \"0.0.0.0:4\"}}\n"));
}

#[test]
fn a_workers_certificate_is_verified_by_default() {
    let settings = sources::settings(
        "workers:\n- {url: https://a, tls: {ca: /ca.pem}}\n- {url: https://b:1, tls: {insecure_skip_verify: true}}\n- https://c:2\n",
    );
    let tls: Vec<_> = settings
        .workers
        .iter()
        .map(|worker| (&worker.tls.ca, worker.tls.insecure_skip_verify))
        .collect();
    assert_eq!(
        tls,
        [
            (&Some("/ca.pem".into()), false),
            (&None, true),
            (&None, false)
        ]
    );
    assert_eq!(
        problems("workers: [{url: http://a:1, tls: {ca: /ca.pem}}]"),
        ["workers[0].tls.ca"]
    );
    let both = "workers: [{url: https://a:1, tls: {ca: /ca.pem, insecure_skip_verify: true}}]";
    assert_eq!(problems(both), ["workers[0].tls.insecure_skip_verify"]);
}

#[test]
fn further_listeners_and_one_probe_listener_are_accepted() {
    let settings = sources::settings(
        "server: {also_listen: [\"127.0.0.1:1\", \"unix:/run/x.sock\"], probe_listen: \"0.0.0.0:9\"}",
    );
    let also: Vec<String> = settings
        .server
        .also_listen
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(also, ["127.0.0.1:1", "unix:/run/x.sock"]);
    assert_eq!(
        settings
            .server
            .probe_listen
            .map(|place| place.to_string())
            .as_deref(),
        Some("0.0.0.0:9")
    );
}
