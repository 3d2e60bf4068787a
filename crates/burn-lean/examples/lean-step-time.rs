//! Time of an optimizer's step in one pass, beside Burn's: 20 matrices of 1024 x 1024 on Flex.
//!
//! Both step in turn in one process, as an optimizer of a module does; printed are medians and
//! their ratio. With glibc, tell its allocator to keep memory, or Burn's temporaries are asked of
//! the system anew in every step:
//!
//! ```sh
//! MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=1099511627776 \
//!     cargo run --release -p burn-lean --features optim --example lean-step-time
//! ```

use std::time::Instant;

use burn::module::{Module, Param};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdamConfig, AdamWConfig, GradientsParams, LionConfig, ModuleOptimizer, SgdConfig,
};
use burn::tensor::{Device, Distribution, Tensor};
use burn_lean::optim::{EightBitMoments, InOnePass, Lean, StableAdamWConfig};

const MATRICES: usize = 20;
const SIDE: usize = 1024;
const ROUNDS: usize = 15;

#[derive(Module, Debug)]
struct Matrices {
    weights: Vec<Param<Tensor<2>>>,
}

fn matrices(device: &Device) -> Vec<Tensor<2>> {
    let matrix = |_| Tensor::random([SIDE, SIDE], Distribution::Default, device);
    (0..MATRICES).map(matrix).collect()
}

struct Training {
    optimizer: ModuleOptimizer,
    model: Matrices,
    seconds: Vec<f64>,
}

impl Training {
    fn new(optimizer: ModuleOptimizer) -> Self {
        let weights = matrices(&Device::flex().autodiff())
            .into_iter()
            .map(Param::from_tensor)
            .collect();
        Self {
            optimizer,
            model: Matrices { weights },
            seconds: Vec::new(),
        }
    }

    fn step(&mut self, matrices: &[Tensor<2>]) {
        let mut grads = GradientsParams::new();
        for (weight, grad) in self.model.weights.iter().zip(matrices) {
            grads.register(weight.id, grad.clone());
        }
        let start = Instant::now();
        let weights = std::mem::take(&mut self.model.weights);
        self.model = self.optimizer.step(1e-3, Matrices { weights }, grads);
        self.seconds.push(start.elapsed().as_secs_f64());
    }

    /// Milliseconds, without the first steps, which make the states.
    fn median(&self) -> f64 {
        let mut seconds = self.seconds[3..].to_vec();
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2] * 1e3
    }
}

fn compare(name: &str, burn: ModuleOptimizer, one_pass: ModuleOptimizer, grads: &[Tensor<2>]) {
    let [mut burn, mut one_pass] = [burn, one_pass].map(Training::new);
    for _ in 0..ROUNDS {
        burn.step(grads);
        one_pass.step(grads);
    }
    let [burn, one_pass] = [burn.median(), one_pass.median()];
    let ratio = burn / one_pass;
    println!("{name:16} {burn:9.1} {one_pass:9.1} {ratio:9.2}");
}

fn main() {
    let grads = matrices(&Device::flex());
    println!("{:16} {:>9} {:>9} {:>9}", "ms", "Burn", "one pass", "ratio");
    macro_rules! compare {
        ($name:literal, $config:expr) => {{
            let config = $config;
            compare($name, config.init(), config.in_one_pass().init(), &grads);
        }};
    }
    let momentum = Some(MomentumConfig::new());
    compare!("SGD, momentum", SgdConfig::new().with_momentum(momentum));
    compare!("Adam", AdamConfig::new());
    compare!("AdamW", AdamWConfig::new());
    compare!("Lion", LionConfig::new());
    let adamw = AdamWConfig::new();
    // No embedding among them, whose moments would keep 32 bits.
    let embeddings = Vec::<burn::nn::Embedding>::new();
    let eight_bit = adamw.in_one_pass().with_8_bit_moments(&embeddings);
    compare("AdamW, 8 bits", adamw.init(), eight_bit.init(), &grads);
    // Burn has none of its own.
    let stable = StableAdamWConfig::new();
    compare("StableAdamW", adamw.init(), stable.init(), &grads);
}
