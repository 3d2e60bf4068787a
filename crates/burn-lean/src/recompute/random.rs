//! The random numbers of a scope, which have to be the same when backward computes it again.
//!
//! Burn's generators can be seeded, and not read. So each scope has a stream of its own: a seed for
//! it, and one for what comes after. Its seed is drawn from the stream of the device. Where reading
//! from the device would wait for it, one is drawn for all scopes between two backward passes.

use std::cell::Cell;

use burn::Tensor;
use burn::tensor::{Device, Distribution};

thread_local! {
    /// What seeds are made from, and how many scopes have one.
    static DRAWN: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
}

/// The seed of one scope.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(u64);

/// Which stream of a scope.
const INSIDE: u64 = 0;
const AFTER: u64 = 1;
const AFTER_REPLAY: u64 = 2;

impl Seed {
    /// Runs a scope for the first time.
    pub(crate) fn run<R>(
        device: &Device,
        reading_waits: bool,
        run: impl FnOnce() -> R,
    ) -> (R, Self) {
        let drawn = DRAWN.get().filter(|_| reading_waits);
        let (drawn, scopes) = drawn.unwrap_or_else(|| (draw(device), 0));
        DRAWN.set(Some((drawn, scopes + 1)));
        let seed = Self(mix(drawn ^ mix(scopes)));
        device.seed(seed.of(INSIDE));
        let result = run();
        device.seed(seed.of(AFTER));
        (result, seed)
    }

    /// Runs it again.
    pub(crate) fn run_again<R>(self, device: &Device, run: impl FnOnce() -> R) -> R {
        forget();
        device.seed(self.of(INSIDE));
        let result = run();
        device.seed(self.of(AFTER_REPLAY));
        result
    }

    /// The seed of a pass that runs twice.
    pub(crate) fn draw(device: &Device) -> Self {
        Self(draw(device))
    }

    /// Runs such a pass. Its scopes have the same seeds each time.
    pub(crate) fn run_pass<R>(self, devices: &[Device], run: impl FnOnce() -> R) -> R {
        let seed_all = |stream| {
            forget();
            devices
                .iter()
                .for_each(|device| device.seed(self.of(stream)));
        };
        seed_all(INSIDE);
        let result = run();
        seed_all(AFTER);
        result
    }

    fn of(self, stream: u64) -> u64 {
        mix(self.0.wrapping_add(stream))
    }
}

/// The next scope draws anew.
pub(crate) fn forget() {
    DRAWN.set(None);
}

fn draw(device: &Device) -> u64 {
    let numbers = Tensor::<1>::random([4], Distribution::Uniform(0.0, 1.0), device);
    numbers
        .into_data()
        .iter::<f64>()
        .fold(0, |seed, number| mix(seed ^ number.to_bits()))
}

/// SplitMix64's finalizer (Steele, Lea and Flood, 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
