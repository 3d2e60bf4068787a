//! Master weights of 24 bits, and weights in f32 from and to a model in 16 bits.

use burn::backend::Flex;
use burn_lean::optim::{AccumulateInMoments, Lean, LowBits, MasterWeights24, MomentDecay};

use super::noise::Noise;
use super::run::{Run, numbers};
use super::side::{
    AdamW, Bf16Weights, Device, EightBitMoments, InOnePass, MasterWeights, Moment, Optimizer,
    Rounding, Stochastic, Tensor, device, model_without_embeddings, places_with_bf16,
};
use crate::harness::prelude::*;

const SHAPE: [usize; 2] = [64, 100];
const HALVES: [DType; 2] = [DType::BF16, DType::F16];
const MASTERS: MasterWeights24 = MasterWeights24 { seed: 7 };

fn adamw() -> AdamW {
    AdamWConfig::new().in_one_pass()
}

fn five_bytes() -> Bf16Weights<AdamW, MasterWeights24> {
    let adamw = adamw().with_8_bit_moments(&model_without_embeddings());
    Bf16Weights::new(adamw, MASTERS)
}

fn masters<O: Optimizer>(run: &Run<Bf16Weights<O, MasterWeights24>, 2>) -> Vec<f32> {
    let low = run.state.clone().expect("stepped").low;
    numbers(&MASTERS.widen(run.weight().clone(), low))
}

/// Each step rounds by less than one of the last of 24 bits, with a deviation of 0.4: over 24 steps
/// that is 2, and one weight in 6,400 has four times as much. On every device the bits are the same.
#[test]
fn masters_of_24_bits_go_where_those_of_32_go() {
    for dtype in HALVES {
        let mut all: Vec<Vec<u32>> = Vec::new();
        for device in places_with_bf16() {
            let mut noise = Noise(3);
            let weight = noise.tensor(SHAPE, &device, |noise| noise.number() + 2.0);
            let weight = weight.cast(dtype);
            let mut exact = Run::new(adamw(), weight.clone().cast(DType::F32));
            let mut run = Run::new(Bf16Weights::new(adamw(), MASTERS), weight);
            let mut bits = Vec::new();
            for step in 0..24 {
                let lr = [1e-2, 1e-4, 1e-6][step % 3];
                let grad = noise.tensor(SHAPE, &device, Noise::number).cast(dtype);
                exact.step(lr, grad.clone().cast(DType::F32));
                run.step(lr, grad);
                let masters = masters(&run);
                let unit = match dtype {
                    DType::F16 => 2f32.powi(-17),
                    _ => 2f32.powi(-14),
                };
                for ((master, exact), half) in
                    masters.iter().zip(exact.weights()).zip(run.weights())
                {
                    let off = (master - exact).abs();
                    assert!(
                        off < 9.0 * unit,
                        "{dtype:?}, step {step}: {master} for {exact}"
                    );
                    // Half a unit of the 16 bits.
                    assert!((half - master).abs() <= 128.0 * unit, "{half} for {master}");
                }
                bits.extend(masters.into_iter().map(f32::to_bits));
            }
            all.push(bits);
        }
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{dtype:?}");
    }
}

/// A step of 2^-20 is a 16th of the last of the 24 bits of a weight of one, and is less than a
/// 4000th of what bf16 can hold.
#[test]
fn a_tiny_step_moves_weights_on_average() {
    const STEPS: usize = 512;
    for dtype in HALVES {
        let weight: Tensor<2> = Tensor::ones(SHAPE, &device());
        let sgd = SgdConfig::new().in_one_pass();
        let mut run = Run::new(Bf16Weights::new(sgd, MASTERS), weight.cast(dtype));
        for _ in 0..STEPS {
            let grad: Tensor<2> = Tensor::ones(SHAPE, &device());
            run.step(-f64::from(2f32.powi(-20)), grad.cast(dtype));
        }
        let weights = masters(&run);
        let moved = weights
            .iter()
            .map(|weight| f64::from(weight - 1.0))
            .sum::<f64>();
        let expected = STEPS as f64 * 2f64.powi(-20) * weights.len() as f64;
        let off = (moved / expected - 1.0).abs();
        assert!(off < 0.01, "{dtype:?}: {moved} of {expected}");
    }
}

/// What a step leaves: weight, lower bits and moments, at most 5.1 bytes a parameter. The records
/// hold as many, of which the lower bits are half of those of 32 bits.
#[test]
fn a_parameter_takes_five_bytes_and_resumes_to_the_bit() {
    /// Of the buffer itself.
    fn bytes(tensor: Tensor<2>) -> usize {
        tensor.try_into_primitive::<Flex>().unwrap().bytes().len()
    }
    fn low(low: LowBits) -> usize {
        low.try_into_primitive::<Flex>().unwrap().bytes().len()
    }
    for dtype in HALVES {
        let mut noise = Noise(5);
        let mut run = Run::new(five_bytes(), noise.numbers(SHAPE).cast(dtype));
        let mut resumed = Run::new(five_bytes(), run.weight().clone());
        for step in 0..6 {
            let grad = noise.numbers(SHAPE).cast(dtype);
            run.step(1e-3, grad.clone());
            resumed.step(1e-3, grad);
            assert_eq!(run.bits(), resumed.bits(), "{dtype:?}, step {step}");
            assert!(run.saved() == resumed.saved(), "{dtype:?}, step {step}");
            resumed = run.resumed(five_bytes());
        }
        let saved = run.saved();
        let state = run.state.take().unwrap();
        let adamw = state.optimizer.unwrap().momentum;
        let moments = [adamw.moment_1, adamw.moment_2];
        let moments = moments.map(|moment| match moment {
            Moment::EightBit(blocks) => low(blocks.words),
            Moment::Float(_) => unreachable!("it is large enough"),
        });
        let low = low(state.low.unwrap());
        let count = SHAPE.iter().product::<usize>();
        assert_eq!(low, count);
        let all = bytes(run.weight().clone()) + low + moments.iter().sum::<usize>();
        let per_parameter = all as f64 / count as f64;
        println!("{dtype:?}: {per_parameter:.3} bytes a parameter");
        assert!(per_parameter <= 5.1, "{per_parameter}");
        assert!(
            saved.bytes() as f64 <= 3.1 * count as f64,
            "{}",
            saved.bytes()
        );
    }
    let mut noise = Noise(5);
    let run = |optimizer| Run::new(optimizer, Noise(5).numbers(SHAPE).cast(DType::BF16));
    let mut in_32 = run(Bf16Weights::new(
        SgdConfig::new().in_one_pass(),
        MasterWeights,
    ));
    in_32.step(1e-3, noise.numbers(SHAPE).cast(DType::BF16));
    assert_eq!(in_32.saved().bytes(), 2 * SHAPE[0] * SHAPE[1]);
}

fn loss(model: &Linear, step: usize) -> Tensor<1> {
    let mut noise = Noise(step as u64);
    let x: Tensor<2> = noise.tensor([8, 64], &Device::flex().autodiff(), Noise::number);
    let x = x.cast(model.weight.val().dtype());
    model.forward(x).square().mean()
}

fn bits(model: &Linear) -> Vec<u32> {
    let bias = model.bias.as_ref().expect("it has one").val();
    let numbers = [model.weight.val().into_data(), bias.into_data()];
    let numbers = numbers.iter().flat_map(|data| data.iter::<f32>());
    numbers.map(f32::to_bits).collect()
}

/// Out of the model and in again, in the middle of a run with gradient release: the same weights,
/// the same record, and the same steps from there.
#[test]
fn weights_go_to_f32_and_back() {
    fn check<R: Rounding>(dtype: DType, rounding: R, is_exact: bool) {
        let adamw = || adamw().with_8_bit_moments(&model_without_embeddings());
        let optimizer = Bf16Weights::new(adamw(), rounding);
        let start = start();
        let all = ParamGroup::all();
        let from = |model, record| {
            optimizer
                .weights_from_f32(model, &all, dtype, record)
                .unwrap()
        };
        let to = |model, record| optimizer.weights_to_f32(model, record).unwrap();
        let record = OptimizerRecord::default;

        let (mut model, record) = from(start.clone(), record());
        assert_eq!(model.weight.val().dtype(), dtype);
        assert!(model.weight.is_require_grad() && model.weight.id == start.weight.id);
        let optim = || optimizer.clone().init();
        let back = to(model.clone(), optim().load_record(record).to_record());
        assert_eq!(back.weight.val().dtype(), DType::F32);
        for (found, exact) in bits(&back).into_iter().zip(bits(&start)) {
            let [found, exact] = [found, exact].map(f32::from_bits);
            // Half of the last of 24 bits, or all of it with noise.
            let unit = if is_exact {
                0.0
            } else {
                2f32.powi(-15) * exact.abs()
            };
            assert!((found - exact).abs() <= unit, "{found} for {exact}");
        }

        let (_, record) = from(start, OptimizerRecord::default());
        let mut release = optim().load_record(record).with_gradient_release();
        for step in 0..4 {
            model = release.backward(1e-3, loss(&model, step), model);
        }
        let full = to(model.clone(), release.to_record());
        assert!(bits(&full) != bits(&model));
        let (again, record) = from(full.clone(), release.to_record());
        assert_eq!(bits(&again), bits(&model));
        let mut resumed = optim().load_record(record);
        assert_eq!(bits(&to(again.clone(), resumed.to_record())), bits(&full));
        let step = |model: Linear| GradientsParams::from_grads(loss(&model, 9).backward(), &model);
        let (grads, same) = (step(model.clone()), step(again.clone()));
        let mut plain = optim().load_record(release.to_record());
        let found = resumed.step(1e-3, again, same);
        let expected = plain.step(1e-3, model, grads);
        assert_eq!(bits(&found), bits(&expected));
        let [found, expected] = [(found, resumed), (expected, plain)];
        let bits_of =
            |(model, optim): (Linear, ModuleOptimizer)| bits(&to(model, optim.to_record()));
        assert_eq!(bits_of(found), bits_of(expected));
    }
    check(DType::BF16, MasterWeights, true);
    for dtype in HALVES {
        check(dtype, MASTERS, false);
    }
}

/// Also of weights that have not been stepped in between, such as frozen ones, and of an optimizer
/// without states of its own: its noise is that of the number of steps.
#[test]
fn weights_go_to_f32_and_back_as_often_as_wanted() {
    fn again<O: Optimizer>(
        optimizer: &Bf16Weights<O, MasterWeights24>,
        model: Linear,
        record: OptimizerRecord,
    ) -> (Linear, ModuleOptimizer) {
        let all = ParamGroup::all();
        let rounded = optimizer.weights_from_f32(model, &all, DType::BF16, record);
        let (model, record) = rounded.unwrap();
        (model, optimizer.clone().init().load_record(record))
    }
    let start = start();

    let optimizer = five_bytes();
    let in_f32 = |model, optim: &ModuleOptimizer| {
        let record = optim.to_record();
        optimizer.weights_to_f32(model, record).unwrap()
    };
    let (model, optim) = again(&optimizer, start.clone(), OptimizerRecord::default());
    let full = in_f32(model, &optim);
    let (model, optim) = again(&optimizer, full.clone(), optim.to_record());
    assert_eq!(bits(&in_f32(model, &optim)), bits(&full));

    let sgd = Bf16Weights::new(SgdConfig::new().in_one_pass(), MASTERS);
    let run = |is_interrupted: bool| {
        let (mut model, mut optim) = again(&sgd, start.clone(), OptimizerRecord::default());
        for step in 0..4 {
            if is_interrupted && step == 3 {
                let full = sgd.weights_to_f32(model, optim.to_record()).unwrap();
                (model, optim) = again(&sgd, full, optim.to_record());
            }
            let grads = GradientsParams::from_grads(loss(&model, step).backward(), &model);
            model = optim.step(1e-2, model, grads);
        }
        bits(&sgd.weights_to_f32(model, optim.to_record()).unwrap())
    };
    assert_eq!(run(true), run(false));
}

/// A frozen parameter may be in several fields, as that of tied embeddings.
#[test]
fn fields_with_one_parameter_stay_equal() {
    let model = start().no_grad();
    let (all, record) = (ParamGroup::all(), OptimizerRecord::default());
    let pair = [model.clone(), model.clone()];
    let masters = Bf16Weights::new(adamw(), MasterWeights);
    let (pair, record) = masters
        .weights_from_f32(pair, &all, DType::BF16, record)
        .unwrap();
    let pair = masters.weights_to_f32(pair, record).unwrap();
    assert_eq!(pair.each_ref().map(bits), [bits(&model), bits(&model)]);
}

#[test]
fn what_is_not_in_the_group_stays_in_f32() {
    let model: Linear = LinearConfig::new(64, 100).init(&flex());
    let (optimizer, group) = (five_bytes(), ParamGroup::from_path("weight"));
    let record = OptimizerRecord::default();
    let (half, record) = optimizer
        .weights_from_f32(model, &group, DType::BF16, record)
        .unwrap();
    let bias = half.bias.as_ref().unwrap();
    assert!(!bias.is_initialized(), "nor is it drawn");
    assert_eq!(bias.val().dtype(), DType::F32);
    assert_eq!(half.weight.val().dtype(), DType::BF16);
    assert_eq!(record.len(), 1);
    assert_eq!(half.num_params(), 64 * 100 + 100);
}

fn start() -> Linear {
    seeded(&flex(), |device| LinearConfig::new(64, 100).init(device))
}

#[test]
fn a_record_with_bits_that_have_no_weight_is_refused() {
    let (all, masters) = (ParamGroup::all(), five_bytes());
    let cast = || {
        let record = OptimizerRecord::default();
        masters.weights_from_f32(start(), &all, DType::BF16, record)
    };
    let ((half, _), (_, of_another)) = (cast().unwrap(), cast().unwrap());
    let another = || masters.weights_to_f32(half, of_another).unwrap();
    assert_panics(another, "in this model has");
}

/// Lower bits of another type, some of which have the same size, and of another number of bits; or with
/// an optimizer that keeps none. The text names the way out.
#[test]
fn lower_bits_of_other_weights_are_refused() {
    fn check<A: Rounding, B: Rounding>(
        (from, of): (A, DType),
        (to, dtype): (B, DType),
        text: &str,
    ) {
        let (model, all) = (start(), ParamGroup::all());
        let (from, to) = (
            Bf16Weights::new(adamw(), from),
            Bf16Weights::new(adamw(), to),
        );
        let empty = OptimizerRecord::default;
        let half = from.weights_from_f32(model.clone(), &all, of, empty());
        let (half, record) = half.unwrap();
        let record = record.into_bytes().unwrap();
        let record = || OptimizerRecord::from_bytes(record.clone()).unwrap();
        let step = |model: Linear, record| {
            let grads = GradientsParams::from_grads(loss(&model, 0).backward(), &model);
            to.clone()
                .init()
                .load_record(record)
                .step(1e-3, model, grads)
        };
        let other = to.weights_from_f32(model, &all, dtype, empty()).unwrap().0;
        assert_panics(|| step(other.clone(), record()), text);
        assert_panics(|| to.weights_to_f32(other, record()).unwrap(), text);
        // The record goes on with the bits of the other type.
        let full = from.weights_to_f32(half, record()).unwrap();
        let (other, record) = to.weights_from_f32(full, &all, dtype, record()).unwrap();
        step(other, record);
    }
    let [bf16, f16] = HALVES;
    let has_those_of = "and its optimizer has the lower bits of weights in";
    check((MASTERS, bf16), (MASTERS, f16), has_those_of);
    check((MASTERS, f16), (MASTERS, bf16), has_those_of);
    let other_bits = "or of master weights with other bits";
    check((MasterWeights, bf16), (MASTERS, bf16), other_bits);
    check((MASTERS, bf16), (MasterWeights, bf16), other_bits);
    let none = (Stochastic { seed: 7 }, bf16);
    check((MASTERS, bf16), none, "lower bits of master weights");
}

/// The optimizer that accumulates in its moments has an optimizer in its state, as ours has.
#[test]
fn a_window_of_sums_in_the_moments_goes_on_in_16_bits() {
    fn gradients(model: &Linear) -> GradientsParams {
        let x = Tensor::<2>::ones([2, 64], &flex()).cast(model.weight.val().dtype());
        GradientsParams::from_grads(model.forward(x).sum().backward(), model)
    }
    fn goes_on<R: Rounding>(rounding: R) {
        let model = start();
        let accumulating = adamw().accumulating(2, MomentDecay::EachStep).unwrap();
        let mut in_f32 = accumulating.clone().init();
        let grads = gradients(&model);
        let model = in_f32.step(1e-2, model, grads);
        let optimizer = Bf16Weights::new(accumulating, rounding);
        let all = ParamGroup::all();
        let half = optimizer.weights_from_f32(model, &all, DType::BF16, in_f32.to_record());
        let (half, record) = half.unwrap();
        let record = optimizer.clone().init().load_record(record).to_record();
        let grads = gradients(&half);
        let before = half.weight.val();
        let stepped = optimizer.init().load_record(record).step(1e-2, half, grads);
        // The window has its two micro-batches.
        let moved = (stepped.weight.val() - before).abs().min();
        assert!(moved.into_scalar::<f32>() > 0.0);
    }
    goes_on(MASTERS);
    goes_on(Stochastic { seed: 7 });
}
