//! The random numbers of a scope, which must be the same when backward recomputes it.
//!
//! The state of Burn's generators cannot be read. So each scope has a stream of its own, and
//! another stream follows it. The seed is drawn from the stream of the device. If reading from the
//! device would wait for it, one seed is drawn for all scopes between two backward passes. The seed
//! of a scope in another one is made from that one's, which is the same each time it runs.

use std::cell::Cell;

use burn::Tensor;
use burn::tensor::{Device, Distribution};

thread_local! {
    /// The number that seeds are made from, and the number of scopes that have one.
    static DRAWN: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
    /// The seed of the scope that runs, and the number of scopes in it so far.
    static AROUND: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
}

/// The seed of one scope.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(u64);

/// Streams of a scope: the one inside it and the one after it.
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
        let (number, scopes) = match AROUND.get() {
            Some((around, scopes)) => {
                AROUND.set(Some((around, scopes + 1)));
                (around, scopes)
            }
            None => {
                let drawn = DRAWN.get().filter(|_| reading_waits);
                let (drawn, scopes) = drawn.unwrap_or_else(|| (draw(device), 0));
                DRAWN.set(Some((drawn, scopes + 1)));
                (drawn, scopes)
            }
        };
        let seed = Self(mix(number ^ mix(scopes)));
        device.seed(seed.of(INSIDE));
        let result = seed.around(run);
        device.seed(seed.of(AFTER));
        (result, seed)
    }

    /// Runs a scope: the seeds of those in it are made from this one.
    fn around<R>(self, run: impl FnOnce() -> R) -> R {
        struct Back(Option<(u64, u64)>);
        impl Drop for Back {
            fn drop(&mut self) {
                AROUND.set(self.0);
            }
        }
        let _back = Back(AROUND.replace(Some((self.0, 0))));
        run()
    }

    pub(crate) fn run_again<R>(self, device: &Device, run: impl FnOnce() -> R) -> R {
        forget_random();
        device.seed(self.of(INSIDE));
        let result = self.around(run);
        device.seed(self.of(AFTER_REPLAY));
        result
    }

    /// The seed of a pass that runs twice.
    pub(crate) fn draw(device: &Device) -> Self {
        Self(draw(device))
    }

    /// Runs one of two equal passes. Scopes have the same seeds in both.
    pub(crate) fn run_pass<R>(self, devices: &[Device], run: impl FnOnce() -> R) -> R {
        let seed_all = |stream| {
            forget_random();
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

/// Drops the drawn number, so that the next scope draws a new one.
pub(crate) fn forget_random() {
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
