//! Neither the content of Redis nor the server that answers is trusted.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
};

use contract_id::contract;
use prefix_view::{EventKind::Created, Offloading, PrefixIndex};
use redis_store::FaultKind;

use crate::{
    BOTH_TIERS, holders, hot, redis_server::RedisServer, router, send, until, until_holders,
    until_shared, warm,
};

const KEY: &str = "cr:kvidx:0000000000000001";

#[tokio::test(flavor = "multi_thread")]
#[contract("CK65")]
async fn only_configured_backends_with_a_valid_token_count_are_used() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let long = "x".repeat(10_000);
    for (score, name) in [
        ("9000", "nobody"),
        ("8000", ""),
        ("7000", "W1"),
        ("6000", "w1 "),
        ("5000", long.as_str()),
        ("64", "w1"),
        ("-1", "w2"),
        ("inf", "w3"),
    ] {
        server.ask(&["ZADD", KEY, score, name]);
    }
    server.ask(&[
        "HSET",
        &format!("{KEY}:tier"),
        "w1",
        "a tier of later years",
        "nobody",
        "GpuHot",
    ]);
    let router = router(&server.url(), BOTH_TIERS);
    until_holders(&router, 1, &[warm("w1", 64)]).await;
    server.ask(&[
        "ZADD",
        KEY,
        "4294967295",
        "w2",
        "4294967296",
        "w3",
        "0.9",
        "w1",
    ]);
    until_holders(&router, 1, &[hot("w2", u32::MAX), warm("w1", 0)]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK65")]
async fn only_the_best_entries_of_a_huge_set_are_read() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let mut client = server.client();
    for number in 0..5_000 {
        client.ask(&[
            "ZADD",
            KEY,
            &(1_000 + number).to_string(),
            &format!("nobody-{number}"),
        ]);
    }
    client.ask(&["ZADD", KEY, "64", "w1", "4294967295", "w2"]);
    let router = router(&server.url(), Offloading::Off);
    until_holders(&router, 1, &[hot("w2", u32::MAX)]).await;
    // Names that are too long for an answer are a fault, and the connection is closed.
    let name = "n".repeat(2_000_000);
    client.ask(&["ZADD", "cr:kvidx:0000000000000002", "5000000", &name]);
    send(&router, "w1", Created, 2, 64);
    until_holders(&router, 2, &[hot("w1", 64)]).await;
    until("the fault to be counted", async || {
        router.faults(FaultKind::Other) > 0
    })
    .await;
    assert!(router.is_shared(), "the server is well");
    until_holders(&router, 1, &[hot("w2", u32::MAX)]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK65")]
async fn keys_of_another_type_affect_only_themselves() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    server.ask(&["SET", KEY, "text"]);
    server.ask(&["SET", "cr:kvidx:0000000000000003:tier", "text"]);
    let router = router(&server.url(), BOTH_TIERS);
    for number in 1..=3 {
        send(&router, "w1", Created, number, 64);
    }
    until_holders(&router, 2, &[hot("w1", 64)]).await;
    assert_eq!(holders(&router, 1).await, [hot("w1", 64)], "by memory");
    assert_eq!(holders(&router, 3).await, [hot("w1", 64)], "by memory");
    until("both refusals", async || {
        router.dropped() >= 2 && router.faults(FaultKind::Other) >= 2
    })
    .await;
    assert!(router.is_shared(), "a refusal is no outage");
    assert_eq!(
        server.ask(&["ZSCORE", "cr:kvidx:0000000000000002", "w1"]),
        ["64"]
    );
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK65")]
async fn a_read_only_server_is_still_read() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    server.ask(&["ZADD", KEY, "64", "w2"]);
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    let router = router(&server.url(), Offloading::Off);
    send(&router, "w1", Created, 1, 32);
    until("the refusal", async || router.dropped() > 0).await;
    until_holders(&router, 1, &[hot("w2", 64)]).await;
    assert!(router.is_shared());
}

/// A server that answers everything with the same bytes. Ends with the test.
fn fixed_answer_server(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let serve = move |mut stream: TcpStream| {
        let mut request = [0; 4096];
        while stream.read(&mut request).is_ok_and(|count| count > 0)
            && stream.write_all(answer).is_ok()
        {}
    };
    std::thread::spawn(move || {
        listener
            .incoming()
            .flatten()
            .for_each(|stream| drop(std::thread::spawn(move || serve(stream))))
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK65")]
async fn memory_serves_whatever_a_server_answers() {
    let endless: &'static [u8] = Box::leak(
        [b"*2147483647\r\n".to_vec(), b":1\r\n".repeat(1 << 20)]
            .concat()
            .into(),
    );
    let nested: &'static [u8] = Box::leak(b"*4096\r\n".repeat(200).into());
    let long: &'static [u8] = Box::leak(
        [b"$1073741824\r\n".to_vec(), vec![b'x'; 4 << 20]]
            .concat()
            .into(),
    );
    let answers: [&'static [u8]; 12] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\xff\x16\x03\x01 garbage \r\n",
        b"$-2\r\n",
        b"$99999999999999999999\r\n",
        b"*-1\r\n",
        b":12\r\n",
        b"+OK\r\n",
        b"-ERR go away\r\n",
        b"|1\r\n+a\r\n+b\r\n+PONG\r\n",
        endless,
        nested,
        long,
    ];
    for answer in answers {
        let router = router(&fixed_answer_server(answer), BOTH_TIERS);
        send(&router, "w1", Created, 1, 64);
        let shown = String::from_utf8_lossy(&answer[..answer.len().min(40)]);
        let faults = || {
            FaultKind::ALL
                .map(|kind| router.faults(kind))
                .iter()
                .sum::<u64>()
        };
        until(&format!("a fault after {shown:?}"), async || faults() > 0).await;
        assert_eq!(holders(&router, 1).await, [hot("w1", 64)], "{shown:?}");
        assert!(!router.is_shared(), "{shown:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK65")]
async fn a_server_that_answers_only_pings_is_treated_as_absent() {
    // Every command gets one answer, so a lookup receives it and a transaction never completes.
    let router = router(&fixed_answer_server(b"+PONG\r\n"), Offloading::Off);
    until_shared(&router).await;
    send(&router, "w1", Created, 1, 64);
    until_holders(&router, 1, &[hot("w1", 64)]).await;
    until("a fault", async || {
        FaultKind::ALL.iter().any(|kind| router.faults(*kind) > 0)
    })
    .await;
    for _ in 0..20 {
        assert_eq!(holders(&router, 1).await, [hot("w1", 64)]);
        assert_eq!(router.stats().entries, 1);
    }
}
