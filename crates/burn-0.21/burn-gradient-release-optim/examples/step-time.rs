//! Time of an optimizer's step in one pass, beside Burn's: 20 matrices of 1024 x 1024 on Flex.
//!
//! Both step in turn in one process; where Burn has no such optimizer, its AdamW is beside it.
//! Printed are medians and their ratio, and how long the memory takes for what AdamW reads and
//! writes. With glibc, tell its allocator to keep memory, or Burn's temporaries are asked of the
//! system anew in every step:
//!
//! ```sh
//! MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=1099511627776 \
//!     cargo run --release -p burn-gradient-release-optim --features flex --example step-time
//! ```

use std::time::Instant;

use burn::{
    backend::Flex,
    nn::Embedding,
    optim::{
        AdaGradConfig, AdamConfig, AdamWConfig, AdanConfig, RmsPropConfig, SgdConfig,
        SimpleOptimizer, momentum::MomentumConfig,
    },
    tensor::{DType, Distribution, Tensor},
};
use burn_gradient_release_optim::{
    Clip, EightBitMoments, Format, InOnePass, LeanBackend, Number, Operands, Rule,
    StableAdamWConfig, States,
};

const MATRICES: usize = 20;
const SIDE: usize = 1024;
const ROUNDS: usize = 15;

/// Parameters and states of one optimizer.
struct Training<O: SimpleOptimizer<Flex>> {
    optimizer: O,
    parameters: Vec<(Tensor<Flex, 2>, Option<O::State<2>>)>,
    seconds: Vec<f64>,
}

fn matrix() -> Tensor<Flex, 2> {
    Tensor::random([SIDE, SIDE], Distribution::Default, &Default::default())
}

impl<O: SimpleOptimizer<Flex>> Training<O> {
    fn new(optimizer: O) -> Self {
        Self {
            optimizer,
            parameters: (0..MATRICES).map(|_| (matrix(), None)).collect(),
            seconds: Vec::new(),
        }
    }

    fn step(&mut self, grads: &[Tensor<Flex, 2>]) {
        let start = Instant::now();
        for ((weight, state), grad) in self.parameters.iter_mut().zip(grads) {
            let shared = std::mem::replace(weight, Tensor::empty([0, 0], &Default::default()));
            (*weight, *state) = self
                .optimizer
                .step(1e-3, shared, grad.clone(), state.take());
        }
        self.seconds.push(start.elapsed().as_secs_f64());
    }
}

fn compare(
    name: &str,
    burn: impl SimpleOptimizer<Flex>,
    one_pass: impl SimpleOptimizer<Flex>,
    grads: &[Tensor<Flex, 2>],
) {
    let (mut burn, mut one_pass) = (Training::new(burn), Training::new(one_pass));
    for _ in 0..ROUNDS {
        burn.step(grads);
        one_pass.step(grads);
    }
    let (burn, one_pass) = (median(burn.seconds), median(one_pass.seconds));
    println!(
        "{name:16} {burn:9.1} {one_pass:9.1} {:9.2}",
        burn / one_pass
    );
}

/// Reads and writes what AdamW does, and computes next to nothing.
#[derive(Clone, Copy)]
struct ReadAndWrite;

impl Rule<2> for ReadAndWrite {
    fn step<T: Number>(&self, weight: T, grad: T, states: Option<[T; 2]>) -> (T, [T; 2]) {
        let states = match states {
            None => [grad.clone(), grad.clone()],
            Some([one, other]) => [one + grad.clone(), other + grad.clone()],
        };
        (weight + grad, states)
    }
}

/// Milliseconds of reading and writing alone.
fn memory_alone(grads: &[Tensor<Flex, 2>]) -> f64 {
    let float = |tensor: Tensor<Flex, 2>| tensor.into_primitive().tensor();
    let mut parameters: Vec<_> = (0..MATRICES)
        .map(|_| (float(matrix()), States::New([Format::Float(DType::F32); 2])))
        .collect();
    let mut seconds = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let stepped = parameters.into_iter().zip(grads);
        parameters = stepped
            .map(|((weight, states), grad)| {
                let operands = Operands {
                    weight,
                    grad: float(grad.clone()),
                    clip: Clip::None,
                    states,
                    noise: None,
                };
                let stepped = Flex::step_in_place(&ReadAndWrite, operands);
                (stepped.weight, States::Old(stepped.states))
            })
            .collect();
        seconds.push(start.elapsed().as_secs_f64());
    }
    median(seconds)
}

/// Milliseconds, without the first steps, which make the states.
fn median(mut seconds: Vec<f64>) -> f64 {
    let mut seconds = seconds.split_off(3);
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2] * 1e3
}

fn main() {
    let grads: Vec<_> = (0..MATRICES).map(|_| matrix()).collect();
    let embeddings = Vec::<Embedding<Flex>>::new();
    println!("{:16} {:>9} {:>9} {:>9}", "ms", "Burn", "one pass", "ratio");
    macro_rules! compare {
        ($name:literal, $config:expr) => {{
            let config = $config;
            compare($name, config.build(), config.in_one_pass(), &grads);
        }};
    }
    compare!(
        "SGD, momentum",
        SgdConfig::new().with_momentum(Some(MomentumConfig::new()))
    );
    compare!("Adam", AdamConfig::new());
    compare!("AdamW", AdamWConfig::new());
    compare!("AdaGrad", AdaGradConfig::new());
    compare!("RMSProp", RmsPropConfig::new());
    compare!("Adan", AdanConfig::new());
    let eight_bit = AdamWConfig::new()
        .in_one_pass()
        .with_8_bit_moments(&embeddings);
    compare(
        "AdamW, 8 bits",
        AdamWConfig::new().build(),
        eight_bit,
        &grads,
    );
    let stable = StableAdamWConfig::new();
    compare(
        "StableAdamW",
        AdamWConfig::new().build(),
        stable.build(),
        &grads,
    );
    compare(
        "the same, 8 bits",
        AdamWConfig::new().build(),
        stable.build().with_8_bit_moments(&embeddings),
        &grads,
    );
    let (name, milliseconds) = ("memory of AdamW", memory_alone(&grads));
    println!("{name:16} {:9} {milliseconds:9.1}", "");
}
