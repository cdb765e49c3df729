//! Foreign messages on the subject, and refusals of a server.

use std::{fs, time::Duration};

use async_nats::{Client, HeaderMap, Message, StatusCode};
use event_sources::{Endpoint, NatsSpec, RelayNotice, StreamReport};
use futures_util::StreamExt;
use net::TrustRoots;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::{
    engine::{PATIENCE, TestSource, history, stored},
    nats_server::NatsServer,
    relayed::{
        RelayTask, RelayedEngine, SUBJECT, follow, follow_with, until_reported, until_synced,
    },
};

fn with(headers: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(*name, *value);
    }
    map
}

/// Sends a request to the relay and returns its whole answer.
async fn request_replay(client: &Client, body: &str) -> Vec<Message> {
    let is_last = |message: &Message| {
        ["Warmroute-End", "Warmroute-Error"]
            .iter()
            .any(|name| header(message, name).is_some())
    };
    let wait = async {
        loop {
            let inbox = client.new_inbox();
            let mut answers = client.subscribe(inbox.clone()).await.unwrap();
            client
                .publish_with_reply(format!("{SUBJECT}.replay"), inbox, body.to_owned().into())
                .await
                .unwrap();
            let mut all = vec![answers.next().await.unwrap()];
            // The server may not have the relay's subscription yet.
            if all[0].status == Some(StatusCode::NO_RESPONDERS) {
                continue;
            }
            while !is_last(&all[all.len() - 1]) {
                all.push(answers.next().await.unwrap());
            }
            return all;
        }
    };
    timeout(PATIENCE, wait).await.expect("an answer")
}

fn header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    Some(message.headers.as_ref()?.get(name)?.as_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_the_subject_is_counted_and_harmless() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start(&[]);
    let engine = RelayedEngine::start().await;
    let mut relay = RelayTask::start(&engine, &server.url());
    relay.until_relaying().await;
    let reader = follow(&server.url());
    engine.publish_all(&history(20));
    until_synced(&reader, &engine).await;

    let client = async_nats::connect(server.url()).await.unwrap();
    client.publish(SUBJECT, "no headers".into()).await.unwrap();
    for headers in [
        &[("Other", "1")][..],
        &[("Warmroute-Seq", "")],
        &[("Warmroute-Seq", "-1")],
        &[("Warmroute-Seq", "0x14")],
        &[("Warmroute-Seq", "18446744073709551615")],
        &[("Warmroute-Seq", "99999999999999999999999999")],
        &[("Warmroute-Note", "gone")],
    ] {
        client
            .publish_with_headers(SUBJECT, with(headers), stored(9).into())
            .await
            .unwrap();
    }
    let report = reader
        .until("the count", |report, _| report.counts.decode_errors == 8)
        .await;
    assert_eq!(
        (report.epoch, report.last_seq, report.counts.gaps),
        (1, Some(19), 0)
    );

    // A plausible number on bytes that are no batch: a gap that stays open until the engine's next
    // batch.
    let forged = with(&[("Warmroute-Seq", "140737488355328")]);
    client
        .publish_with_headers(SUBJECT, forged, "\u{1}garbage".into())
        .await
        .unwrap();
    reader
        .until("the gap", |report, _| {
            report.counts.gaps == 1 && report.state == "live"
        })
        .await;
    engine.publish(stored(3));
    let report = until_synced(&reader, &engine).await;
    assert_eq!(report.last_seq, Some(20));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_with_unreadable_headers_costs_only_the_connection() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start(&[]);
    let engine = RelayedEngine::start().await;
    let mut relay = RelayTask::start(&engine, &server.url());
    relay.until_relaying().await;
    let reader = follow(&server.url());
    engine.publish(stored(1));
    until_synced(&reader, &engine).await;
    let address = server.url();
    let mut raw = TcpStream::connect(address.strip_prefix("nats://").unwrap())
        .await
        .unwrap();
    let header = "NATS/1.0\r\nno colon\r\n\r\n";
    let wire = format!(
        "CONNECT {{\"headers\":true,\"verbose\":false}}\r\nHPUB {SUBJECT} {} {}\r\n{header}x\r\nPING\r\n",
        header.len(),
        header.len() + 1
    );
    raw.write_all(wire.as_bytes()).await.unwrap();
    reader
        .until("the second connection", |_, _| {
            reader.source.counters().reconnects == 1
        })
        .await;
    engine.publish(stored(2));
    let report = until_synced(&reader, &engine).await;
    assert_eq!((report.epoch, reader.resident()), (1, vec![1, 2]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_above_the_servers_limit_is_reported_counted_and_missed() {
    test_programs::require!(NatsServer);
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("nats.conf");
    fs::write(&config, "max_payload: 1000\n").unwrap();
    let server = NatsServer::start(&["-c", config.to_str().unwrap()]);
    let engine = RelayedEngine::start().await;
    let mut relay = RelayTask::start(&engine, &server.url());
    relay.until_relaying().await;
    let reader = follow(&server.url());
    engine.publish(stored(1));
    until_synced(&reader, &engine).await;
    engine.until_subscribed().await;
    engine.publish(vec![0; 2_000]);
    engine.publish(stored(2));
    let notice = relay
        .until(|notice| matches!(notice, RelayNotice::TooLarge { .. }))
        .await;
    assert_eq!(
        notice,
        RelayNotice::TooLarge {
            bytes: 2_000,
            limit: 1_000
        }
    );
    let report = until_reported(&reader, 2, &[1, 2]).await;
    assert_eq!(
        (
            report.counts.gaps,
            report.counts.lost_batches,
            report.counts.decode_errors
        ),
        (1, 1, 0)
    );
    // The live message, and the same one in the replay that should fill the gap.
    assert_eq!(relay.stop().await.too_large, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_above_the_readers_limit_is_dropped_and_counted() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start(&[]);
    let engine = RelayedEngine::start().await;
    let mut relay = RelayTask::start(&engine, &server.url());
    relay.until_relaying().await;
    let reader = follow_with(&server.url(), |spec| spec.settings.max_message = 1_000);
    engine.publish(stored(1));
    until_synced(&reader, &engine).await;
    engine.until_subscribed().await;
    engine.publish(vec![0; 2_000]);
    engine.publish(stored(2));
    let report = until_reported(&reader, 2, &[1, 2]).await;
    assert_eq!(
        (
            report.counts.dropped,
            report.counts.lost_batches,
            report.counts.decode_errors
        ),
        (1, 1, 0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_answers_requests_in_the_documented_form() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start(&[]);
    let engine = RelayedEngine::start().await;
    let mut relay = RelayTask::start(&engine, &server.url());
    relay.until_relaying().await;
    engine.publish_all(&history(3));
    let client = async_nats::connect(server.url()).await.unwrap();
    let answers = request_replay(&client, "1").await;
    let numbers: Vec<_> = answers
        .iter()
        .map(|answer| header(answer, "Warmroute-Seq"))
        .collect();
    assert_eq!(numbers, [Some("1"), Some("2"), None]);
    assert_eq!(answers[0].payload, history(3)[1].1);
    assert_eq!(
        (
            header(&answers[2], "Warmroute-End"),
            answers[2].payload.len()
        ),
        (Some("1"), 0)
    );

    let requests_before = engine.request_count();
    let answers = request_replay(&client, &u64::MAX.to_string()).await;
    assert_eq!(
        (answers.len(), header(&answers[0], "Warmroute-End")),
        (1, Some("1"))
    );
    assert_eq!(
        engine.request_count(),
        requests_before,
        "the engine is not asked"
    );
    for body in ["", "minus one", "-1"] {
        let answers = request_replay(&client, body).await;
        assert!(
            header(&answers[0], "Warmroute-Error")
                .unwrap()
                .contains("expected a decimal number")
        );
    }
    // The relay answers only to inboxes: this request names the stream itself as its reply subject.
    let mut stream = client.subscribe(SUBJECT).await.unwrap();
    client
        .publish_with_reply(format!("{SUBJECT}.replay"), SUBJECT, "0".into())
        .await
        .unwrap();
    assert_eq!(
        request_replay(&client, "2").await.len(),
        2,
        "requests are answered in order, and this one is the later one"
    );
    client
        .publish(SUBJECT, "the first that comes".into())
        .await
        .unwrap();
    assert_eq!(
        timeout(PATIENCE, stream.next())
            .await
            .unwrap()
            .unwrap()
            .payload,
        "the first that comes"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fifth_replay_at_once_is_refused() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start(&[]);
    let engine = RelayedEngine::start().await;
    // It accepts every connection and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let replay: Endpoint = format!("tcp://{}", silent.local_addr().unwrap())
        .parse()
        .unwrap();
    let mut relay = RelayTask::with(&engine, &server.url(), |spec| {
        spec.replay_endpoint = Some(replay)
    });
    relay.until_relaying().await;
    let client = async_nats::connect(server.url()).await.unwrap();
    assert_eq!(
        header(
            &request_replay(&client, &u64::MAX.to_string()).await[0],
            "Warmroute-End"
        ),
        Some("1"),
        "the relay answers"
    );
    let inbox = client.new_inbox();
    for _ in 0..4 {
        client
            .publish_with_reply(format!("{SUBJECT}.replay"), inbox.clone(), "0".into())
            .await
            .unwrap();
    }
    let refused = request_replay(&client, "0").await;
    assert!(
        header(&refused[0], "Warmroute-Error")
            .unwrap()
            .contains("4 replays are running already")
    );
    assert_eq!(
        header(
            &request_replay(&client, &u64::MAX.to_string()).await[0],
            "Warmroute-End"
        ),
        Some("1")
    );
}

async fn refusal(reader: &TestSource, text: &str) -> StreamReport {
    let has_error = |report: &StreamReport| {
        report
            .last_error
            .as_ref()
            .is_some_and(|error| error.contains(text))
    };
    reader
        .until(text, |report, _| {
            report.state == "connecting" && has_error(report)
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_requires_a_token_gets_it() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start(&["--auth", "geheim"]);
    let engine = RelayedEngine::start().await;
    engine.publish(stored(1));
    let mut relay = RelayTask::with(&engine, &server.url(), |spec| {
        spec.credentials = Some("falsch".parse().unwrap())
    });
    let notice = relay
        .until(|notice| matches!(notice, RelayNotice::NatsUnreachable(_)))
        .await;
    assert!(
        notice.to_string().contains("check the credentials"),
        "{notice}"
    );
    relay.kill().await;
    refusal(&follow(&server.url()), "check the credentials").await;

    let token = || Some("geheim".parse().unwrap());
    let _relay = RelayTask::with(&engine, &server.url(), |spec| spec.credentials = token());
    until_synced(
        &follow_with(&server.url(), |spec| spec.credentials = token()),
        &engine,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_server_is_followed_if_its_authority_is_trusted() {
    test_programs::require!(NatsServer);
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["127.0.0.1".to_owned()])
        .unwrap()
        .signed_by(&key, &authority)
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (cert, key) = (
        file("cert.pem", own.pem()),
        file("key.pem", key.serialize_pem()),
    );
    let server = NatsServer::start(&["--tls", "--tlscert", &cert, "--tlskey", &key]);
    let url = server.url().replace("nats://", "tls://");
    let trust = || Some(TrustRoots::with_authorities(authority.pem().as_bytes()).unwrap());
    let engine = RelayedEngine::start().await;
    engine.publish(stored(1));
    let _relay = RelayTask::with(&engine, &url, |spec| spec.trust = trust());
    let reader = follow_with(&url, |spec| spec.trust = trust());
    until_synced(&reader, &engine).await;
    // Without the authority both schemes fail.
    refusal(&follow(&url), "cannot be reached").await;
    refusal(&follow(&server.url()), "cannot be reached").await;
    let plain = NatsServer::start(&[]);
    refusal(
        &follow_with(&plain.url().replace("nats://", "tls://"), |spec| {
            spec.trust = trust()
        }),
        "tls://",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_nats_is_reported_and_retried() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    let short = |spec: &mut NatsSpec| spec.settings.replay_timeout = Duration::from_millis(200);
    let reader = follow_with(&url, short);
    for _ in 0..2 {
        let (mut socket, _) = timeout(PATIENCE, listener.accept())
            .await
            .expect("the reader connects again")
            .unwrap();
        socket
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .await
            .unwrap();
        let mut rest = Vec::new();
        let _ = timeout(PATIENCE, socket.read_to_end(&mut rest))
            .await
            .expect("the reader closes the connection");
        assert_eq!(rest, b"", "an unknown server gets no bytes");
    }
    refusal(&reader, "check that a nats server listens there").await;
    reader.source.stop().await;
}
