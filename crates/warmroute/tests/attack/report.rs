//! The figures of the run and the conditions that must hold.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use crate::{
    attackers::AttackCounts,
    harness::Stopwatch,
    honest_client::{ClientResults, HonestClient},
    target::{AttackedRouter, MEMORY_BUDGET, PANIC_INTERVAL_S},
};

/// Interval of CPU and memory samples.
const SAMPLE: Duration = Duration::from_millis(500);

/// The results of one window.
#[derive(Debug, Default)]
pub(crate) struct AttackWindow {
    latencies: Vec<Duration>,
    /// Latencies of the honest client's engine without the router.
    direct: Vec<Duration>,
    losses: Vec<String>,
    cpu_s: f64,
    length_s: f64,
    resident: u64,
    queued: f64,
}

impl AttackWindow {
    /// Watches the honest client for `length`. `adjust` gets the router's CPU share since its last
    /// call.
    pub(crate) fn measure(
        honest: &HonestClient,
        target: &AttackedRouter,
        length: Duration,
        mut adjust: impl FnMut(f64),
    ) -> Self {
        honest.take();
        let mut window = Self::default();
        let clock = Stopwatch::start();
        let begun = target.cpu_s();
        let (mut cpu, mut then) = (begun, Stopwatch::start());
        while clock.elapsed() < length {
            std::thread::sleep(SAMPLE);
            let (now, since) = (
                target.cpu_s(),
                std::mem::replace(&mut then, Stopwatch::start()),
            );
            adjust((now - cpu) / since.elapsed().as_secs_f64());
            cpu = now;
            window.resident = window.resident.max(target.resident());
            window.queued = window.queued.max(target.metric("warmroute_queued"));
        }
        (window.cpu_s, window.length_s) = (target.cpu_s() - begun, clock.elapsed().as_secs_f64());
        let ClientResults { routed, direct } = honest.take();
        window.direct = direct;
        for result in routed {
            match result {
                Ok(latency) => window.latencies.push(latency),
                Err(why) => window.losses.push(why),
            }
        }
        window
    }

    fn add(&mut self, mut other: Self) {
        self.latencies.append(&mut other.latencies);
        self.direct.append(&mut other.direct);
        self.losses.append(&mut other.losses);
        self.cpu_s += other.cpu_s;
        self.length_s += other.length_s;
        self.resident = self.resident.max(other.resident);
        self.queued = self.queued.max(other.queued);
    }

    fn cpu_share(&self) -> f64 {
        self.cpu_s / self.length_s
    }

    /// In milliseconds.
    fn quantile(&self, share: f64) -> f64 {
        quantile(&self.latencies, share)
    }
}

/// In milliseconds.
fn quantile(latencies: &[Duration], share: f64) -> f64 {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((share * last as f64).round() as usize)
        .map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e3)
}

/// All windows together.
pub(crate) struct AttackReport {
    attacked: AttackWindow,
    benign: AttackWindow,
    counts: Vec<Arc<AttackCounts>>,
    panics_before: f64,
}

impl AttackReport {
    pub(crate) fn new(target: &AttackedRouter) -> Self {
        Self {
            attacked: AttackWindow::default(),
            benign: AttackWindow::default(),
            counts: Vec::new(),
            panics_before: panics(target),
        }
    }

    pub(crate) fn attack_took_place(&mut self, counts: Arc<AttackCounts>) {
        self.counts.push(counts);
    }

    pub(crate) fn add_attacked(&mut self, window: AttackWindow) {
        self.attacked.add(window);
    }

    pub(crate) fn add_benign(&mut self, window: AttackWindow) {
        self.benign.add(window);
    }

    pub(crate) fn cpu_under_attack(&self) -> f64 {
        self.attacked.cpu_share()
    }

    fn ratio(&self) -> f64 {
        self.attacked.quantile(0.99) / self.benign.quantile(0.99)
    }

    fn panics(&self, target: &AttackedRouter) -> f64 {
        panics(target) - self.panics_before
    }

    pub(crate) fn print(&self, target: &AttackedRouter) {
        println!(
            "window     requests  lost   p50 ms   p99 ms   max ms   engine's p99   router CPU   memory MiB   queued"
        );
        for (name, window) in [("attack", &self.attacked), ("benign", &self.benign)] {
            println!(
                "{name:<9} {:>9} {:>5} {:>8.2} {:>8.2} {:>8.2} {:>14.2} {:>11.0}% {:>12} {:>8}",
                window.latencies.len() + window.losses.len(),
                window.losses.len(),
                window.quantile(0.5),
                window.quantile(0.99),
                window.quantile(1.0),
                quantile(&window.direct, 0.99),
                window.cpu_share() * 100.0,
                window.resident >> 20,
                window.queued,
            );
        }
        println!(
            "p99 beside the attack / beside benign traffic: {:.2}",
            self.ratio()
        );
        println!(
            "panics inside the router: {}, log lines dropped: {}",
            self.panics(target),
            dropped(target)
        );
        println!("attacks: {:?}", self.counts);
    }

    /// Fails with each condition that did not hold.
    pub(crate) fn check(&self, target: &AttackedRouter) {
        for (name, window) in [("attack", &self.attacked), ("benign", &self.benign)] {
            let shown: Vec<_> = window.losses.iter().take(5).collect();
            assert!(
                window.losses.is_empty(),
                "{} requests lost in the {name} windows: {shown:#?}",
                window.losses.len()
            );
            assert!(
                window.latencies.len() > 100,
                "the honest client got only {} replies",
                window.latencies.len()
            );
            assert!(
                window.resident <= MEMORY_BUDGET,
                "{} MiB used in the {name} windows",
                window.resident >> 20
            );
        }
        for counts in &self.counts {
            let all = [
                &counts.bodies,
                &counts.silent,
                &counts.saturating,
                &counts.hostile,
            ];
            assert!(
                all.iter().all(|count| count.load(Ordering::Relaxed) > 0),
                "an attack did nothing: {counts:?}"
            );
        }
        assert!(
            self.attacked.queued >= 1_500.0,
            "only {} requests waited for the saturated model",
            self.attacked.queued
        );
        let expected = ((self.attacked.length_s + self.benign.length_s) as u64 / PANIC_INTERVAL_S)
            .saturating_sub(1);
        assert!(
            self.panics(target) >= expected as f64,
            "{} panics instead of {expected}",
            self.panics(target)
        );
        assert!(dropped(target) > 0.0, "the log was never blocked");
        if let Ok(most) = std::env::var("ATTACK_MAX_RATIO") {
            let most: f64 = most.parse().expect("ATTACK_MAX_RATIO is a number");
            assert!(
                self.ratio() <= most,
                "the p99 is {:.2} times what it is beside benign traffic",
                self.ratio()
            );
        }
    }
}

fn panics(target: &AttackedRouter) -> f64 {
    target.metric("warmroute_panics_total") + target.metric("warmroute_task_panics_total")
}

fn dropped(target: &AttackedRouter) -> f64 {
    target.metric("warmroute_telemetry_dropped_total")
}
