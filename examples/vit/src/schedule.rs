//! The learning rate of every iteration.

use crate::config::WARM_UP;
use std::f64::consts::PI;

/// A rise to the highest rate, and a cosine from there to zero.
///
/// A function of the iteration, and not one of Burn's schedulers, whose state a resumed run would
/// have to load. The rates are those of Burn's linear and cosine scheduler multiplied.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    highest: f64,
    iterations: usize,
}

impl Schedule {
    /// Plans a run of so many iterations.
    pub fn new(highest: f64, iterations: usize) -> Self {
        Self {
            highest,
            iterations,
        }
    }

    /// The rate of an iteration, counted from 0.
    pub fn rate(&self, iteration: usize) -> f64 {
        let warm_up = ((self.iterations as f64 * WARM_UP) as usize).max(1);
        let rise = ((iteration + 1) as f64 / (warm_up + 1) as f64).min(1.0);
        let fall = (1.0 + (PI * iteration as f64 / self.iterations as f64).cos()) / 2.0;
        self.highest * rise * fall
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_in_a_tenth_of_the_run_and_falls() {
        let schedule = Schedule::new(1.0, 100);
        let rates: Vec<f64> = (0..100).map(|iteration| schedule.rate(iteration)).collect();
        assert!((rates[0] - 1.0 / 11.0).abs() < 1e-12);
        assert!(rates[..11].is_sorted());
        assert!(rates[10..].is_sorted_by(|a, b| a >= b));
        assert!((rates[50] - 0.5).abs() < 1e-12);
        assert!(rates[99] > 0.0 && rates[99] < 0.001);
    }

    #[test]
    fn a_run_of_one_iteration_has_a_rate() {
        assert_eq!(Schedule::new(1.0, 1).rate(0), 0.5);
    }
}
