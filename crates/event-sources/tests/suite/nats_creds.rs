//! A server that authenticates users by signed tokens and grants them only the rights in the
//! manual.

use std::fs;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use event_sources::NatsCredentials;
use nkeys::KeyPair;
use serde_json::{Value, json};

use crate::{
    engine::stored,
    nats_server::NatsServer,
    relayed::{RelayTask, RelayedEngine, SUBJECT, follow, follow_with, until_synced},
};

/// Returns a token with these claims about `of`, signed by `signer`.
fn jwt(signer: &KeyPair, of: &KeyPair, name: &str, nats: &Value) -> String {
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = json!({
        "jti": name, "iat": 1_700_000_000, "iss": signer.public_key(), "name": name, "sub": of.public_key(), "nats": nats,
    });
    let text = format!(
        "{}.{}",
        part(&json!({"typ": "JWT", "alg": "ed25519-nkey"})),
        part(&claims)
    );
    let signature = BASE64_URL_SAFE_NO_PAD.encode(signer.sign(text.as_bytes()).unwrap());
    format!("{text}.{signature}")
}

/// Returns the text of a `.creds` file of a user with these publish and subscribe rights.
fn creds(account: &KeyPair, publish: &[&str], subscribe: &[&str]) -> String {
    let user = KeyPair::new_user();
    let rights = json!({
        "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1,
        "pub": {"allow": publish}, "sub": {"allow": subscribe},
    });
    let token = jwt(account, &user, "user", &rights);
    let seed = user.seed().unwrap();
    format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_and_router_need_the_rights_in_the_manual_and_no_others() {
    test_programs::require!(NatsServer);
    let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account());
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
    });
    let operator_says = jwt(
        &operator,
        &operator,
        "operator",
        &json!({"type": "operator", "version": 2}),
    );
    let of_account = json!({"type": "account", "version": 2, "limits": limits});
    let account_is = jwt(&operator, &account, "account", &of_account);
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("nats.conf");
    let preload = format!(
        "resolver_preload: {{ {}: {account_is} }}",
        account.public_key()
    );
    fs::write(
        &config,
        format!("operator: {operator_says}\nresolver: MEMORY\n{preload}\n"),
    )
    .unwrap();
    let server = NatsServer::start(&["-c", config.to_str().unwrap()]);

    let replay = format!("{SUBJECT}.replay");
    let of_relay: NatsCredentials = creds(&account, &[SUBJECT, "_INBOX.>"], &[&replay])
        .parse()
        .unwrap();
    let of_router: NatsCredentials = creds(&account, &[&replay], &[SUBJECT, "_INBOX.>"])
        .parse()
        .unwrap();
    let engine = RelayedEngine::start().await;
    engine.publish(stored(1));
    let mut relay = RelayTask::with(&engine, &server.url(), |spec| {
        spec.credentials = Some(of_relay)
    });
    relay.until_relaying().await;
    let reader = follow_with(&server.url(), |spec| spec.credentials = Some(of_router));
    until_synced(&reader, &engine).await;
    engine.until_subscribed().await;
    engine.publish(stored(2));
    until_synced(&reader, &engine).await;

    let has_error = |report: &event_sources::StreamReport, text: &str| {
        report.state == "connecting"
            && report
                .last_error
                .as_ref()
                .is_some_and(|error| error.contains(text))
    };
    let stranger = follow(&server.url());
    stranger
        .until("a refusal", |report, _| {
            has_error(report, "check the credentials")
        })
        .await;
    let other: NatsCredentials = creds(&account, &["x"], &["x"]).parse().unwrap();
    let powerless = follow_with(&server.url(), |spec| spec.credentials = Some(other));
    powerless
        .until("a refusal", |report, _| {
            has_error(report, "Permissions Violation")
        })
        .await;
}
