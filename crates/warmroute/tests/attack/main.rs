//! The attack run: one honest client beside hostile clients, a hostile engine, a saturated model, a
//! log without a reader and panics inside the router.
//!
//! Windows alternate: the attack, then benign traffic that costs the router as much CPU. The honest
//! client sends the same requests to the same idle model in both. Router and honest client share
//! one core, everything else has the other; there the honest client's engine has priority, since
//! the attackers would be on other machines.
//!
//! Always checked: the honest client loses no request, memory stays within the budget, the router
//! is the same process at the end, and each part of the attack took place. The ratio of the two p99
//! is printed, and checked if `ATTACK_MAX_RATIO` gives a bound (`tests/attack/run` sets it): a
//! shared machine measures nothing reliably in half a minute.
//!
//! `ATTACK_SECONDS` sets the length (30 by default). A program of its own, since it gives its threads cores and raises its
//! limit of descriptors.

#![allow(
    clippy::unwrap_used,
    reason = "a set-up that does not work is a failed test"
)]
#![allow(clippy::print_stdout, reason = "the figures are what it is for")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "figures to read"
)]

#[path = "../harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the suite uses the rest")]
mod harness;

mod attackers;
mod benign;
mod cores;
mod honest_client;
mod hostile_engine;
mod report;
mod target;

use std::time::Duration;

use contract_id::contract;
use harness::Program;

use self::{
    attackers::Attack,
    benign::BenignClients,
    cores::Core,
    honest_client::HonestClient,
    hostile_engine::HostileEngine,
    report::{AttackReport, AttackWindow},
    target::AttackedRouter,
};

/// Models behind the router: the honest client's, the saturated one and the benign traffic's.
const HONEST: &str = "honest";
const SATURATED: &str = "saturated";
const BENIGN: &str = "benign";

/// Longest window of one kind.
const LONGEST_WINDOW: Duration = Duration::from_secs(50);
/// Pause between two windows, so that one does not affect the next.
const PAUSE: Duration = Duration::from_secs(2);

fn seconds(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().expect("a number of seconds"))
}

#[test]
#[contract("F67", "F76", "F79", "F96")]
fn an_honest_client_is_served_while_everything_else_attacks() {
    let total = Duration::from_secs(seconds("ATTACK_SECONDS", 30));
    let window = (total / 2).saturating_sub(PAUSE).min(LONGEST_WINDOW);
    let rounds = total.as_secs().div_ceil(2 * (window + PAUSE).as_secs());
    cores::raise_descriptor_limit();
    let engines = [
        Program::engine(&["--model", HONEST, "--speed", "50"]),
        Program::engine(&[
            "--model",
            SATURATED,
            "--speed",
            "1",
            "--prefill-tps",
            "400",
            "--max-num-seqs",
            "4",
        ]),
        Program::engine(&["--model", BENIGN, "--speed", "50"]),
    ];
    for engine in &engines {
        cores::pin_process(engine.pid(), Core::Others);
    }
    for engine in &engines[1..] {
        cores::lower_priority(engine.pid());
    }
    let hostile = std::thread::spawn(|| {
        cores::become_background_load();
        HostileEngine::start()
    });
    let hostile = hostile.join().expect("the hostile engine starts");
    let mut workers: Vec<String> = engines.iter().map(Program::url).collect();
    workers.push(hostile.url());
    let target = AttackedRouter::start(&workers);
    cores::pin_process(target.pid(), Core::Router);
    target.wait_for_models(&[HONEST, SATURATED, BENIGN, hostile.model()]);

    let honest = HonestClient::start(target.data(), &engines[0].data(), HONEST);
    honest.warm_up();
    let mut report = AttackReport::new(&target);
    for _ in 0..rounds {
        let attack = Attack::start(target.data(), target.admin(), SATURATED, hostile.model());
        let attacked = AttackWindow::measure(&honest, &target, window, |_| ());
        report.attack_took_place(attack.stop());
        report.add_attacked(attacked);
        std::thread::sleep(PAUSE);

        let benign = BenignClients::start(target.data(), BENIGN);
        let mut load = benign.control(report.cpu_under_attack());
        let quiet = AttackWindow::measure(&honest, &target, window, |cpu| load.adjust(cpu));
        benign.stop();
        report.add_benign(quiet);
        std::thread::sleep(PAUSE);
    }
    honest.stop();
    report.print(&target);
    report.check(&target);
}
