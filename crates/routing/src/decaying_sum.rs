//! A sum that decays with time.

use std::time::Duration;

use kv_blocks::Moment;

/// A sum in which older amounts count less: by `1/e` after `memory`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecayingSum {
    memory: Duration,
    sum: f64,
    at: Moment,
}

impl DecayingSum {
    pub(crate) fn over(memory: Duration) -> Self {
        Self {
            memory,
            sum: 0.0,
            at: Moment::START,
        }
    }

    pub(crate) fn add(&mut self, now: Moment, amount: f64) {
        self.sum = self.at(now) + amount;
        // A caller may read its clock before another caller and use the value later; the sum never
        // runs backwards.
        self.at = self.at.max(now);
    }

    pub(crate) fn at(&self, now: Moment) -> f64 {
        if self.sum == 0.0 {
            return 0.0;
        }
        self.sum * (-now.since(self.at).as_secs_f64() / self.memory.as_secs_f64()).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_decays_to_about_a_third_in_its_time_constant() {
        let mut sum = DecayingSum::over(Duration::from_secs(30));
        sum.add(Moment::at(Duration::from_secs(100)), 10.0);
        let later = sum.at(Moment::at(Duration::from_secs(130)));
        assert!((later - 10.0 / std::f64::consts::E).abs() < 1e-9);
        assert_eq!(sum.at(Moment::START), 10.0);
    }
}
