//! How long a data parallel step takes, predicted from its parts.
//!
//! A replica computes its gradients one after the other; while the next one is computed, one is on
//! its way. What is on its way takes the time of its messages and of its bytes. From those of one
//! replica, and of messages between two, follows the step of many.

use serde::{Deserialize, Serialize};

/// How many bytes of a gradient are on their way at once, as in burn-gradient-release-data-parallel.
const SEGMENT: f64 = (512 << 10) as f64;

/// A gradient, in the order in which they are complete.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gradient {
    /// Its size.
    pub bytes: u64,
    /// Seconds of the backward pass since the one before was complete, the optimizer's step left
    /// out.
    pub compute: f64,
    /// Seconds of the optimizer's step.
    pub step: f64,
}

/// The step of one replica that does not wait for others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replica {
    /// Seconds of the forward pass.
    pub forward: f64,
    /// Its gradients.
    pub gradients: Vec<Gradient>,
    /// Seconds after the last of them.
    pub end: f64,
}

/// What carries bytes between replicas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// Seconds of a message without bytes.
    pub latency: f64,
    /// Bytes per second out of a replica, what it takes to add them up included.
    pub bandwidth: f64,
}

/// A step of many replicas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// How long it takes.
    pub seconds: f64,
    /// How much of that a replica only waits.
    pub waiting: f64,
}

impl Network {
    /// Seconds to reduce a gradient among so many, of which as many are on each machine: 1, and
    /// nothing is carried for a neighbour.
    ///
    /// Its name is compared by doubling; each segment goes in parts to all others of the machine,
    /// and to one on each other machine, and comes back the same way. Within a machine messages
    /// take as long as between two.
    pub fn reduce(&self, bytes: u64, ranks: usize, of_a_machine: usize) -> f64 {
        if ranks == 1 {
            return 0.0;
        }
        let groups = [of_a_machine, ranks / of_a_machine].map(|size| size as f64);
        let bytes = bytes as f64;
        let segments = (bytes / SEGMENT).ceil().max(1.0);
        let name = (ranks as f64).log2().ceil() * self.latency;
        let there = groups.map(|size| {
            let others = size - 1.0;
            segments * others * self.latency + bytes * others / size / self.bandwidth
        });
        name + 2.0 * (there[0] + there[1])
    }
}

impl Replica {
    /// The same where computing takes so many times as long, as if cores are shared.
    pub fn slowed(&self, times: f64) -> Self {
        let slow = |gradient: &Gradient| Gradient {
            bytes: gradient.bytes,
            compute: gradient.compute * times,
            step: gradient.step * times,
        };
        Self {
            forward: self.forward * times,
            gradients: self.gradients.iter().map(slow).collect(),
            end: self.end * times,
        }
    }

    /// A step of so many such replicas, as many on each machine, one gradient on its way at a time.
    pub fn step(&self, network: &Network, ranks: usize, of_a_machine: usize) -> Step {
        let mut now = self.forward;
        let mut waiting = 0.0;
        // When the one on its way arrives, and what its step takes then.
        let mut under_way: Option<(f64, f64)> = None;
        let mut land = |now: &mut f64, under_way: &mut Option<(f64, f64)>| {
            if let Some((arrival, step)) = under_way.take() {
                let wait = (arrival - *now).max(0.0);
                waiting += wait;
                *now += wait + step;
            }
        };
        for gradient in &self.gradients {
            now += gradient.compute;
            land(&mut now, &mut under_way);
            under_way = Some((
                now + network.reduce(gradient.bytes, ranks, of_a_machine),
                gradient.step,
            ));
        }
        land(&mut now, &mut under_way);
        let end = self.end + (ranks as f64).log2().ceil() * network.latency;
        Step {
            seconds: now + end,
            waiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: Network = Network {
        latency: 1e-5,
        bandwidth: 1e9,
    };

    fn replica(compute: f64) -> Replica {
        let gradient = Gradient {
            bytes: 4_000_000,
            compute,
            step: 1e-3,
        };
        Replica {
            forward: 0.1,
            gradients: vec![gradient; 10],
            end: 0.0,
        }
    }

    #[test]
    fn one_replica_waits_for_nobody() {
        let step = replica(0.01).step(&NETWORK, 1, 1);
        assert_eq!(step.waiting, 0.0);
        assert!((step.seconds - (0.1 + 10.0 * 0.011)).abs() < 1e-12);
    }

    #[test]
    fn what_is_computed_meanwhile_hides_all_but_the_last() {
        let reduce = NETWORK.reduce(4_000_000, 2, 1);
        assert!(reduce > 4e-3 && reduce < 5e-3, "{reduce}");
        let hidden = replica(0.01).step(&NETWORK, 2, 1);
        assert!((hidden.waiting - reduce).abs() < 1e-12);
        // Where nothing is computed meanwhile, nothing is hidden but by the steps.
        let open = replica(0.0).step(&NETWORK, 2, 1);
        assert!((open.waiting - 10.0 * reduce).abs() < 1e-9, "{open:?}");
    }

    #[test]
    fn messages_grow_with_the_replicas_and_bytes_hardly() {
        let free = Network {
            latency: 0.0,
            ..NETWORK
        };
        assert!(free.reduce(4_000_000, 1024, 1) < 2.0 * free.reduce(4_000_000, 2, 1));
        assert!(NETWORK.reduce(4_000_000, 1024, 1) > 5.0 * NETWORK.reduce(4_000_000, 64, 1));
    }
    #[test]
    fn machines_save_messages_and_carry_bytes_twice() {
        let of = |network: Network, machine| network.reduce(4_000_000, 1024, machine);
        assert!(of(NETWORK, 8) < of(NETWORK, 1) / 4.0);
        let free = Network {
            latency: 0.0,
            ..NETWORK
        };
        assert!(of(free, 8) > 1.8 * of(free, 1));
        // All on one machine, or none beside another.
        assert_eq!(of(NETWORK, 1024), of(NETWORK, 1));
    }
}
