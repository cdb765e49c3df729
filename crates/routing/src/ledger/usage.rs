//! The share of a target's cache in use: the engine's last figure, plus the load added and removed
//! since.
//!
//! A figure is seconds old when it is read. Without the load sent meanwhile, all requests that wait
//! for it to fall would be sent at once.

use super::TargetLoad;

/// An engine's last figure.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsageReading {
    /// Share of the cache in use.
    ratio: f64,
    /// Size of the cache in blocks, if the engine reports it.
    total_blocks: Option<u32>,
    /// The target's load when the figure was first seen.
    load: TargetLoad,
}

impl UsageReading {
    pub(super) fn new(ratio: f64, total_blocks: Option<u32>, load: TargetLoad) -> Self {
        Self {
            ratio,
            total_blocks,
            load,
        }
    }

    /// Returns whether this is the known figure.
    pub(super) fn is(&self, ratio: f64, total_blocks: Option<u32>) -> bool {
        self.ratio.to_bits() == ratio.to_bits() && self.total_blocks == total_blocks
    }

    /// Returns the estimated share of the cache in use with this load.
    pub(super) fn estimate(&self, load: TargetLoad) -> f64 {
        match self.total_blocks {
            Some(total) => {
                let blocks = load.decode_blocks as f64 - self.load.decode_blocks as f64;
                self.ratio + blocks / f64::from(total.max(1))
            }
            // Each request is assumed to need as much as the requests at the time of the figure.
            None => {
                let (before, now) = (f64::from(self.load.in_flight), f64::from(load.in_flight));
                self.ratio + (now - before) * self.ratio / before.max(1.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(in_flight: u32, decode_blocks: u64) -> TargetLoad {
        TargetLoad {
            in_flight,
            decode_blocks,
            ..TargetLoad::default()
        }
    }

    #[test]
    fn the_estimate_includes_load_added_and_ended_since_the_reading() {
        let reading = UsageReading::new(0.5, Some(100), load(2, 40));
        for (blocks, expected) in [(40, 0.5), (60, 0.7), (0, 0.1)] {
            assert!(
                (reading.estimate(load(2, blocks)) - expected).abs() < 1e-9,
                "{blocks}"
            );
        }
        let unsized_cache = UsageReading::new(0.5, None, load(2, 40));
        for (in_flight, expected) in [(2, 0.5), (3, 0.75), (0, 0.0)] {
            assert!(
                (unsized_cache.estimate(load(in_flight, 40)) - expected).abs() < 1e-9,
                "{in_flight}"
            );
        }
    }
}
