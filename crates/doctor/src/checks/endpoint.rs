//! Checks whether the engine's publishers are at the endpoints that the router uses, and who else
//! can subscribe there.

use fleet::WorkerProbe;
use net::WorkerUrl;

use super::{CheckSubject, Finding, events::followed, flags::EngineFlags};
use crate::observe::{AnnouncedBlocks, LinkStatus, PublisherBinding};

pub(super) fn check(subject: &CheckSubject<'_>, probe: &WorkerProbe) -> Finding {
    for stream in followed(subject, probe) {
        let (endpoint, rank) = (&stream.endpoint.endpoint, stream.endpoint.rank);
        let reason = match &stream.observation.link {
            LinkStatus::Connected => continue,
            LinkStatus::Waiting => "no connection came about in time",
            LinkStatus::Unreachable(reason) => reason,
        };
        let message = format!("no publisher answers at {endpoint}: {reason}");
        let finding = Finding::fail(message, fix(subject, probe, rank, endpoint)).found(endpoint);
        return match announced(probe, rank) {
            Some(there) if there != endpoint => finding.expected(there),
            _ => finding,
        };
    }
    // Another publisher may answer at a wrong port: then our blocks are announced elsewhere.
    if let Some(AnnouncedBlocks {
        stream,
        subscribed: false,
        ..
    }) = &subject.seen.probes.arrival
        && let Some(elsewhere) = subject
            .seen
            .streams
            .get(*stream)
            .filter(|stream| !stream.followed)
        && let Some(here) =
            followed(subject, probe).find(|stream| stream.endpoint.rank == elsewhere.endpoint.rank)
    {
        let (here, there) = (&here.endpoint.endpoint, &elsewhere.endpoint.endpoint);
        let message = format!(
            "the engine's blocks are announced at {there} and not at {here}: that is another publisher"
        );
        let fix = fix(subject, probe, elsewhere.endpoint.rank, here);
        return Finding::fail(message, fix).found(here).expected(there);
    }
    if let Some(open) = open_to_everyone(subject) {
        return open;
    }
    let endpoints: Vec<&str> = followed(subject, probe)
        .map(|stream| stream.endpoint.endpoint.as_str())
        .collect();
    Finding::ok(format!("a publisher answers at {}", endpoints.join(", ")))
        .found(endpoints.join(", "))
}

/// Returns the endpoint that the engine announces for this rank, as seen from here.
fn announced(probe: &WorkerProbe, rank: u32) -> Option<&str> {
    let endpoint = probe
        .announced
        .iter()
        .flatten()
        .find(|endpoint| endpoint.rank == rank)?;
    Some(&endpoint.endpoint)
}

/// Returns the fix for a publisher of this rank that does not answer at `endpoint`.
fn fix(subject: &CheckSubject<'_>, probe: &WorkerProbe, rank: u32, endpoint: &str) -> String {
    let key = subject.key("kv_events.endpoint");
    let setting = EngineFlags::of(probe.engine).events_setting();
    if subject.worker.kv_events.endpoint.is_some() {
        // The key belongs to rank 0; the ports of further ranks follow from it.
        return match announced(probe, 0).or(announced(probe, rank)) {
            Some(there) => format!(
                "set {key}: \"{there}\", or leave it at auto: that is what the engine announces"
            ),
            None => format!("set {key} to the endpoint in {setting}"),
        };
    }
    let bound = subject.seen.bound.iter().find(|bound| bound.rank == rank);
    let Some(port) = endpoint
        .rsplit_once(':')
        .map(|(_, port)| port)
        .filter(|_| endpoint.starts_with("tcp://"))
    else {
        return format!(
            "let the router see the engine's {endpoint}, or set \"endpoint\": \"tcp://*:5557\" in {setting}"
        );
    };
    match (bound, host(subject)) {
        (Some(bound), _) if bound.everywhere() => {
            format!(
                "open port {port} of the engine's machine to the router (for a container: docker run -p {port}:{port})"
            )
        }
        (Some(bound), Some(host)) if !bound.endpoint.starts_with(&format!("tcp://{host}:")) => {
            // An announcement only leads to the worker's own host.
            format!(
                "set {key}: \"{there}\" if the router reaches that address, or \"endpoint\": \"tcp://*:{port}\" in \
                 {setting}: the engine publishes at another address than it serves requests at",
                there = bound.endpoint
            )
        }
        (Some(_), _) => format!(
            "set \"endpoint\": \"tcp://*:{port}\" in {setting}: an address without a star is connected to, not \
             listened at"
        ),
        (None, _) => format!(
            "let the engine publish where it announces, on an address that can be reached from here, or set {key}"
        ),
    }
}

/// Returns the host of the worker's address, as an endpoint writes it.
fn host(subject: &CheckSubject<'_>) -> Option<String> {
    let url = subject.worker.url.parse::<WorkerUrl>().ok()?;
    let host = url.host()?;
    Some(if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    })
}

/// Warns if the router is on the engine's machine and the engine publishes to all its networks.
fn open_to_everyone(subject: &CheckSubject<'_>) -> Option<Finding> {
    let bound = subject.seen.bound.iter().find(|bound| bound.everywhere())?;
    if !subject.worker.url.parse::<WorkerUrl>().ok()?.is_loopback() {
        return None;
    }
    let PublisherBinding { endpoint, .. } = bound;
    let port = endpoint.rsplit_once(':').map_or("5557", |(_, port)| port);
    let message = format!(
        "the token ids of prompts are published to other machines, too ({endpoint}), without a key"
    );
    let name = &subject.worker.name;
    let fix = if subject.seen.bound.len() == 1 {
        format!(
            "set \"endpoint\": \"ipc:///tmp/{name}.events\", \"replay_endpoint\": \"ipc:///tmp/{name}.replay\" in the \
             engine's --kv-events-config, or close port {port} to other machines"
        )
    } else {
        // Engines of several ranks publish on TCP only.
        format!("close port {port} and those of the further ranks to other machines")
    };
    Some(
        Finding::warn(message, fix)
            .found(endpoint)
            .expected("an address of this machine"),
    )
}

#[cfg(test)]
mod tests {
    use fleet::EventEndpoint;

    use super::{super::fixture::CheckFixture, *};
    use crate::observe::{PublisherObservation, StreamObservation};
    use api::CheckStatus;

    fn bound(endpoint: &str) -> Vec<PublisherBinding> {
        vec![PublisherBinding {
            rank: 0,
            endpoint: endpoint.to_owned(),
        }]
    }

    #[test]
    fn without_an_answer_the_fix_names_the_endpoint_that_the_engine_reports() {
        for (announced, reported, fix) in [
            (
                "tcp://127.0.0.1:5557",
                "tcp://*:5557",
                "open port 5557 of the engine's machine to the router (for a container: docker run -p 5557:5557)",
            ),
            (
                "tcp://127.0.0.1:5557",
                "tcp://172.17.0.2:5557",
                "set workers[0].kv_events.endpoint: \"tcp://172.17.0.2:5557\" if the router reaches that address, or \
                 \"endpoint\": \"tcp://*:5557\" in the engine's --kv-events-config: the engine publishes at another \
                 address than it serves requests at",
            ),
            (
                "tcp://127.0.0.1:5557",
                "tcp://127.0.0.1:5557",
                "set \"endpoint\": \"tcp://*:5557\" in the engine's --kv-events-config: an address without a star is \
                 connected to, not listened at",
            ),
            (
                "ipc:///run/a",
                "ipc:///run/a",
                "let the router see the engine's ipc:///run/a, or set \"endpoint\": \"tcp://*:5557\" in the engine's \
                 --kv-events-config",
            ),
        ] {
            let mut fixture = CheckFixture::healthy();
            fixture.move_to(announced);
            fixture.observation().link = LinkStatus::Unreachable("connection refused".to_owned());
            fixture.seen.bound = bound(reported);
            fixture.seen.probes.arrival = None;
            assert_eq!(fixture.failed(), ["events_endpoint"], "{reported}");
            assert_eq!(fixture.check("events_endpoint").fix.as_deref(), Some(fix));
        }
    }

    #[test]
    fn a_missing_further_rank_is_reported_with_the_endpoint_of_the_first() {
        let mut fixture =
            CheckFixture::configured("kv_events: {endpoint: \"tcp://127.0.0.1:6000\"}");
        fixture.announce(2);
        let endpoint = EventEndpoint {
            rank: 1,
            endpoint: "tcp://127.0.0.1:6001".to_owned(),
            replay_endpoint: None,
            topic: String::new(),
        };
        let observation = PublisherObservation {
            link: LinkStatus::Unreachable("connection refused".to_owned()),
            ..PublisherObservation::default()
        };
        fixture.seen.streams.push(StreamObservation {
            endpoint,
            followed: true,
            observation,
        });
        let fix = fixture.check("events_endpoint").fix.unwrap_or_default();
        assert!(
            fix.starts_with("set workers[0].kv_events.endpoint: \"tcp://127.0.0.1:5557\""),
            "{fix}"
        );
    }

    #[test]
    fn a_local_engine_that_publishes_to_every_network_is_a_warning() {
        let mut fixture = CheckFixture::healthy();
        for (endpoint, status) in [
            ("tcp://*:5557", CheckStatus::Warn),
            ("tcp://127.0.0.1:5557", CheckStatus::Ok),
        ] {
            fixture.seen.bound = bound(endpoint);
            assert_eq!(
                (fixture.check("events_endpoint").status, fixture.failed()),
                (status, vec![]),
                "{endpoint}"
            );
        }
        // Two engines on one machine remain distinguishable.
        let (mut one, mut two) = (CheckFixture::healthy(), CheckFixture::healthy());
        (one.seen.bound, two.seen.bound) = (bound("tcp://*:5557"), bound("tcp://*:5557"));
        for report in super::super::fixture::reports(vec![one, two]) {
            assert_eq!(super::super::fixture::failed(&report), ["identity_unique"]);
        }
    }

    #[test]
    fn a_port_without_a_listener_is_one_failure() {
        let mut fixture = CheckFixture::configured("kv_events: {endpoint: \"tcp://127.0.0.1:9\"}");
        fixture.seen.streams[0].endpoint.endpoint = "tcp://127.0.0.1:9".to_owned();
        fixture.observation().link = LinkStatus::Unreachable("connection refused".to_owned());
        fixture.seen.probes.arrival = None;
        assert_eq!(fixture.failed(), ["events_endpoint"]);
        let check = fixture.check("events_endpoint");
        assert_eq!(
            (check.found.as_deref(), check.expected.as_deref()),
            (Some("tcp://127.0.0.1:9"), Some("tcp://127.0.0.1:5557"))
        );
        let fix = "set workers[0].kv_events.endpoint: \"tcp://127.0.0.1:5557\", or leave it at auto: that is what the engine announces";
        assert_eq!(check.fix.as_deref(), Some(fix));
    }

    #[test]
    fn a_port_of_another_publisher_is_one_failure() {
        let mut fixture = CheckFixture::configured("kv_events: {endpoint: \"tcp://127.0.0.1:9\"}");
        fixture.seen.streams[0].endpoint.endpoint = "tcp://127.0.0.1:9".to_owned();
        let endpoint = EventEndpoint {
            endpoint: "tcp://127.0.0.1:5557".to_owned(),
            ..fixture.seen.streams[0].endpoint.clone()
        };
        let observation = PublisherObservation {
            link: LinkStatus::Connected,
            ..PublisherObservation::default()
        };
        fixture.seen.streams.push(StreamObservation {
            endpoint,
            followed: false,
            observation,
        });
        let arrival = fixture
            .seen
            .probes
            .arrival
            .as_mut()
            .expect("a healthy scene has one");
        (arrival.stream, arrival.subscribed) = (1, false);
        assert_eq!(fixture.failed(), ["events_endpoint"]);
        assert!(
            fixture
                .check("events_endpoint")
                .message
                .contains("another publisher")
        );
    }
}
