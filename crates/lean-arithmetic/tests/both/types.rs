//! Weights of each type: stepped in 32 bits at least and rounded once, and resumed with the same bits.

use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, SgdConfig};
use burn::tensor::DType;

use super::noise::Noise;
use super::run::Run;
use super::settings::refused;
use super::side::{
    self, AccumulateInMoments, AdaLomoConfig, CameConfig, EightBitMoments, InOnePass, Lean,
    LionConfig, MomentDecay, Optimizer, RAdamConfig, StableAdamWConfig, Tensor, lion,
    model_without_embeddings,
};

/// A type of weights and that of their gradients, the rounding error of a number, and how many of these
/// a step may be off by: half of one is what rounding costs, and in 32 bits each operation has its own.
const TYPES: [(&str, DType, DType, f64, f64); 5] = [
    ("f32", DType::F32, DType::F32, f32::EPSILON as f64, 64.0),
    ("f16", DType::F16, DType::F16, 1.0 / 1024.0, 0.51),
    ("bf16", DType::BF16, DType::BF16, 1.0 / 128.0, 0.51),
    ("f16 alone", DType::F16, DType::F32, 1.0 / 1024.0, 0.51),
    ("bf16 alone", DType::BF16, DType::F32, 1.0 / 128.0, 0.51),
];

/// Enough elements for moments in 8 bits.
const SHAPE: [usize; 2] = [64, 66];

const LR: f64 = 0.01;

/// Gradients from step to step: none, small, and too large to be squared in `f16`.
const SIZES: [f64; 5] = [1.0, 0.0, 1e-7, 300.0, 6e4];

fn gradient(noise: &mut Noise, step: usize, dtype: DType) -> Tensor<2> {
    let grad = noise.numbers(SHAPE).mul_scalar(SIZES[step % SIZES.len()]);
    grad.cast(dtype)
}

/// Checks each optimizer: with its name, and whether its bits are Burn's in every type.
macro_rules! each_optimizer {
    ($check:ident) => {{
        let adamw = || AdamWConfig::new().in_one_pass();
        let model = model_without_embeddings();
        let bf16 = AdamWConfig::new().with_beta_2(0.99).in_one_pass();
        let in_windows = |decay| {
            let optimizer = adamw().accumulating(3, decay);
            optimizer.expect("AdamW has moments")
        };
        $check("RAdam", RAdamConfig::new().build(), false);
        $check("StableAdamW", StableAdamWConfig::new().build(), false);
        $check("CAME", CameConfig::new().build(), false);
        let adalomo = AdaLomoConfig::new().with_weight_decay(0.1);
        $check("AdaLomo", adalomo.build(), false);
        $check("AdamW, 8 bits", adamw().with_8_bit_moments(&model), false);
        $check("AdamW, moments in bf16", bf16.with_bf16_moments(), false);
        $check(
            "AdamW, decoupled rate",
            adamw().with_decoupled_lr(LR),
            false,
        );
        let each_step = in_windows(MomentDecay::EachStep);
        $check("AdamW, micro-batches", each_step, false);
        // Most of its steps are of the moments alone, and the others AdamW's.
        let each_gradient = in_windows(MomentDecay::EachMicroBatch);
        $check("AdamW, decay by micro-batches", each_gradient, true);
        $check("AdamW", adamw(), true);
        $check("Adam", AdamConfig::new().in_one_pass(), true);
        let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
        $check("SGD with momentum", momentum.in_one_pass(), true);
        $check("Lion", lion(&LionConfig::new()), side::LION_IS_BURNS);
        side::each_of_this_burn!($check);
    }};
}

fn numbers(tensor: &Tensor<2>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
}

/// Prints a table of the largest error of a weight in a step, in roundings of its type, with
/// `--nocapture`. The same rule in 64 bits steps from the same weights, with states of its own. That
/// rule itself is compared with other packages, in `reference`.
///
/// "Alone" the weights are in that type, and gradients in 32 bits. Burn's optimizers and those of its
/// bits take no such gradients.
#[test]
fn each_type_is_stepped_as_in_f64_and_rounded_once() {
    const STEPS: usize = 25;
    fn check(name: &str, optimizer: impl Optimizer, is_burns: bool) {
        // Which code of 8 bits is the nearest may hang on the last bit.
        let is_narrow = name.contains("8 bits") || name.contains("moments in bf16");
        let reference = if is_narrow { DType::F32 } else { DType::F64 };
        let mut line = format!("{name:24}");
        let mut wrong = Vec::new();
        for (column, dtype, of_grads, epsilon, most) in TYPES {
            if is_burns && of_grads != dtype {
                line += &format!(" {:>10}", "-");
                continue;
            }
            let mut noise = Noise(11);
            let mut run = Run::new(optimizer.clone(), noise.numbers(SHAPE).cast(dtype));
            let mut exact = Run::new(optimizer.clone(), run.weight().clone());
            let mut error = 0.0_f64;
            for step in 0..STEPS {
                let before = numbers(run.weight());
                exact.weight = Some(run.weight().clone().cast(reference));
                let grad = gradient(&mut noise, step, of_grads);
                run.step(LR, grad.clone());
                exact.step(LR, grad.cast(reference));
                let after = numbers(run.weight()).into_iter();
                let after = after.zip(numbers(exact.weight()));
                for ((found, expected), before) in after.zip(before) {
                    // In 32 bits the step may be larger than what is left of the weight.
                    let before = if dtype == DType::F32 { before } else { 0.0 };
                    let size = expected.abs().max(before.abs()).max(LR);
                    let off = (found - expected).abs() / (epsilon * size);
                    error = error.max(if off.is_nan() { f64::INFINITY } else { off });
                }
            }
            line += &format!(" {error:>10.3}");
            if error > most && !is_burns {
                wrong.push((column, error));
            }
        }
        println!("{line}{}", if is_burns { "  as Burn's" } else { "" });
        assert!(wrong.is_empty(), "{name}: {wrong:?}");
    }
    let columns = TYPES.map(|(column, ..)| format!(" {column:>10}"));
    println!("{:24}{}", "roundings", columns.concat());
    each_optimizer!(check);
}

#[test]
fn each_type_is_resumed_with_the_same_bits() {
    const STEPS: usize = 10;
    fn check(name: &str, optimizer: impl Optimizer, _: bool) {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let mut noise = Noise(12);
            let mut run = Run::new(optimizer.clone(), noise.numbers(SHAPE).cast(dtype));
            for step in 0..STEPS {
                let resumed = run.state.is_some().then(|| run.resumed(optimizer.clone()));
                let grad = gradient(&mut noise, step, dtype);
                run.step(LR, grad.clone());
                // There is no state before the first step.
                let Some(mut resumed) = resumed else { continue };
                resumed.step(LR, grad);
                let what = format!("{name} in {dtype:?}, resumed before step {step}");
                let bits = |run: &Tensor<2>| run.to_data().as_bytes().to_vec();
                assert!(
                    bits(run.weight()) == bits(resumed.weight()),
                    "{what}: weights"
                );
                assert!(run.saved() == resumed.saved(), "{what}: states");
            }
        }
    }
    each_optimizer!(check);
}

/// Broadcast with them, the weight would take on the shape of another.
#[test]
fn states_of_another_shape_are_refused() {
    fn check(name: &str, optimizer: impl Optimizer, _: bool) {
        let mut noise = Noise(13);
        let mut run = Run::new(optimizer.clone(), noise.numbers([8, 6]));
        run.step(LR, noise.numbers([8, 6]));
        for shape in [[8, 1], [1, 6], [8, 7], [6, 8]] {
            let mut other = Run::new(optimizer.clone(), noise.numbers(shape));
            other.load(&run.saved());
            let grad = noise.numbers(shape);
            let said = refused(|| other.step(LR, grad));
            assert!(
                said.contains("not of its parameter's shape"),
                "{name}: {said}"
            );
        }
    }
    each_optimizer!(check);
}
