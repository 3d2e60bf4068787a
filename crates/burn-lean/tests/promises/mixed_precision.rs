//! Models in half precision with normalizations in f32, and all that saves memory with them.

use burn::module::{Module, ModuleVisitor, Param, ParamGroup};
use burn::nn as plain;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamWConfig, GradientsParams, MuonConfig, OptimizerRecord};
use burn::tensor::{DType, Device, Int, Tensor};
use burn_lean::operations::{Attention, linear_cross_entropy, nn};
use burn_lean::optim::{InFiveBytes, InOnePass, Lean};
use burn_lean::{
    LossScaler, LossScalerConfig, MixedPrecision, NormClipping, ReleaseAccumulator, ReleaseError,
    ReleaseOptimizer, WithGradientRelease, checkpoint_each, no_decay,
};

use crate::clipping::by_hand::{clip_global, global_norm, gradients, scale};
use crate::harness::{Bits, assert_bits, bits, flex, ids, numbers, seeded};

/// Mixes types where it may not.
macro_rules! model_of {
    ($model:ident, $field:ty) => {
        #[derive(Module, Debug)]
        struct $model {
            linear: plain::Linear,
            inner: Vec<$field>,
        }

        impl $model {
            fn of(inner: impl Into<$field>) -> Self {
                let linear = plain::LinearConfig::new(8, 8).init(&flex());
                let inner = vec![inner.into()];
                seeded(&flex(), |_| Self { linear, inner })
            }
        }
    };
}

model_of!(PlainLayerNorm, plain::LayerNorm);
model_of!(LeanLayerNorm, nn::LayerNorm);
model_of!(PlainRmsNorm, plain::RmsNorm);
model_of!(LeanRmsNorm, nn::RmsNorm);
model_of!(PlainGroupNorm, plain::GroupNorm);
model_of!(LeanGroupNorm, nn::GroupNorm);
model_of!(PlainBatchNorm, plain::BatchNorm);
model_of!(PlainRotary, plain::RotaryEncoding);
model_of!(LeanRotary, nn::RotaryEncoding);
model_of!(PlainPositions, plain::PositionalEncoding);
model_of!(LeanPositions, nn::PositionalEncoding);

fn types<M: Module>(model: &M) -> Vec<DType> {
    struct Types(Vec<DType>);
    impl ModuleVisitor for Types {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().dtype());
        }
    }
    let mut types = Types(Vec::new());
    model.visit(&mut types);
    types.0
}

/// Casts, or refuses by the path of what cannot take an input in half precision. A refused model is
/// as it was.
#[test]
fn modules_that_cannot_mix_types_are_refused_by_path() {
    fn assert_cast<M: Module>(model: M) {
        for (precision, half) in [
            (MixedPrecision::bf16(), DType::BF16),
            (MixedPrecision::f16(), DType::F16),
        ] {
            let cast = precision.cast(model.clone()).unwrap();
            let mut expected = vec![half; 2];
            expected.resize(types(&cast).len(), DType::F32);
            assert_eq!(types(&cast), expected);
            assert_eq!(types(&precision.cast(cast).unwrap()), expected);
        }
    }
    fn assert_refused<M: Module>(model: M, name: &str) {
        let before = bits(&model);
        let refused = MixedPrecision::bf16().cast(model).unwrap_err();
        let text = refused.error().to_string();
        assert!(
            text.starts_with(&format!("inner.0 is a `{name}`")),
            "{text}"
        );
        let (model, error) = refused.into_parts();
        assert!(matches!(error, ReleaseError::CannotMix { .. }));
        assert_bits(&bits(&model), &before, name);
    }
    let device = flex();
    let layer = plain::LayerNormConfig::new(8).init(&device);
    let rms = plain::RmsNormConfig::new(8).init(&device);
    let group = plain::GroupNormConfig::new(2, 8).init(&device);
    let rotary = plain::RotaryEncodingConfig::new(16, 8).init(&device);
    let positions = plain::PositionalEncodingConfig::new(8).init(&device);
    assert_cast(LeanLayerNorm::of(layer.clone()));
    assert_cast(LeanRmsNorm::of(rms.clone()));
    assert_cast(LeanGroupNorm::of(group.clone()));
    assert_cast(LeanRotary::of(rotary.clone()));
    assert_cast(LeanPositions::of(positions.clone()));
    assert_refused(PlainLayerNorm::of(layer.clone()), "LayerNorm");
    assert_refused(PlainRmsNorm::of(rms), "RmsNorm");
    assert_refused(PlainGroupNorm::of(group), "GroupNorm");
    assert_refused(PlainRotary::of(rotary), "RotaryEncoding");
    assert_refused(PlainPositions::of(positions), "PositionalEncoding");
    let batch = PlainBatchNorm::of(plain::BatchNormConfig::new(8).init(&device));
    assert_refused(batch.clone(), "BatchNorm");

    // Both ways out.
    let all = MixedPrecision::bf16().cast_norms();
    let model = all.cast(PlainLayerNorm::of(layer)).unwrap();
    assert_eq!(types(&model), [DType::BF16; 4]);
    let x = numbers([3, 8], 1, &device).cast(DType::BF16);
    assert_eq!(model.inner[0].forward(x).dtype(), DType::BF16);
    let kept = MixedPrecision::bf16().keep(ParamGroup::from_predicate("inner"));
    let model = kept.cast(batch).unwrap();
    assert_eq!(types(&model)[..3], [DType::BF16, DType::BF16, DType::F32]);
}

/// Burn initializes a parameter at its first use.
#[test]
fn a_cast_initializes_nothing() {
    let model: plain::Linear = plain::LinearConfig::new(64, 8).init(&flex());
    let cast = MixedPrecision::bf16().cast(model.clone()).unwrap();
    assert!(!cast.weight.is_initialized() && !model.weight.is_initialized());
    let rounded = model.weight.val().cast(DType::BF16);
    assert_eq!(cast.weight.val().into_data(), rounded.into_data());
    assert!(cast.weight.is_require_grad() && cast.weight.id == model.weight.id);
}

#[test]
fn other_models_are_refused_and_handed_back() {
    let linear = || -> plain::Linear {
        seeded(&flex(), |device| {
            plain::LinearConfig::new(64, 8).init(device)
        })
    };
    let bf16 = MixedPrecision::bf16();
    let refused = |precision: &MixedPrecision, model: plain::Linear| {
        let before = bits(&model);
        let (model, error) = precision.cast(model).unwrap_err().into_parts();
        assert_bits(&bits(&model), &before, &error.to_string());
        error
    };
    let misspelt = bf16.clone().keep(ParamGroup::from_path("wieght"));
    let error = refused(&misspelt, linear());
    assert!(matches!(error, ReleaseError::EmptyGroup { .. }), "{error}");

    let half = MixedPrecision::f16().cast(linear()).unwrap();
    let error = refused(&bf16, half.clone());
    assert!(matches!(error, ReleaseError::NotF32 { .. }), "{error}");

    let mut optim = AdamWConfig::new()
        .in_five_bytes(1)
        .init()
        .with_gradient_release();
    let armed = optim.arm(1e-3, half);
    let Err(refused) = MixedPrecision::to_f32(armed) else {
        panic!("its weights move in backward");
    };
    assert!(matches!(
        refused.error(),
        ReleaseError::ArmedElsewhere { .. }
    ));
    let model = optim.disarm(refused.into_model());
    let back = MixedPrecision::to_f32(model).unwrap();
    assert_eq!(types(&back), [DType::F32; 2]);
    // The numbers that are nearest to those of before.
    let nearest = linear().weight.val().cast(DType::F16).cast(DType::F32);
    assert_eq!(back.weight.val().into_data(), nearest.into_data());
}

/// The type of a matrix of a model that was not cast, or that loaded a record in f32 afterwards.
#[test]
#[should_panic(expected = "this one is in F32: cast the model with `MixedPrecision`")]
fn matrices_in_f32_are_refused_in_five_bytes() {
    let model: plain::Linear = plain::LinearConfig::new(8, 8).init(&flex());
    let x = Tensor::<2>::ones([1, 8], &flex());
    let grads = gradients(&model, model.forward(x).sum());
    let optim = AdamWConfig::new().in_five_bytes(1);
    let _ = optim.init().step(1e-3, model, grads);
}

fn matrix() -> plain::Linear {
    let config = plain::LinearConfig::new(64, 100).with_bias(false);
    seeded(&flex(), |device| config.init(device))
}

/// A step with a gradient of zero, which the moments of earlier steps still move.
fn step_without_gradient(
    model: plain::Linear,
    optim: &mut burn::optim::ModuleOptimizer,
    lr: f64,
) -> plain::Linear {
    let x = Tensor::<2>::zeros([1, 64], &flex()).cast(model.weight.val().dtype());
    let grads = gradients(&model, model.forward(x).sum());
    optim.step(lr, model, grads)
}

fn distances(found: &plain::Linear, expected: &plain::Linear) -> f32 {
    crate::harness::distance(&bits(found), &bits(expected))
}

/// The record of AdamW in f32, with the weights of that run and with weights that were cast.
#[test]
fn states_of_a_run_in_f32_go_on() {
    let adamw = AdamWConfig::new().in_one_pass();
    let (mut model, mut optim) = (matrix(), adamw.clone().init());
    for step in 0..3 {
        let x = numbers([4, 64], step, &flex());
        let grads = gradients(&model, model.forward(x).square().mean());
        model = optim.step(1e-2, model, grads);
    }
    let record = || optim.to_record();
    let five_bytes = AdamWConfig::new().in_five_bytes(7);
    let bf16 = MixedPrecision::bf16();
    let params = bf16.params(&model).unwrap();
    let with_bits = five_bytes.weights_from_f32(model.clone(), &params, DType::BF16, record());
    let cast = (bf16.cast(model.clone()).unwrap(), record());
    for (half, record) in [with_bits.unwrap(), cast] {
        let mut resumed = five_bytes.clone().init().load_record(record);
        let start = five_bytes
            .weights_to_f32(half.clone(), resumed.to_record())
            .unwrap();
        let half = step_without_gradient(half, &mut resumed, 1e-2);
        let found = five_bytes
            .weights_to_f32(half, resumed.to_record())
            .unwrap();
        let mut exact = adamw.clone().init().load_record(optim.to_record());
        let expected = step_without_gradient(start.clone(), &mut exact, 1e-2);
        let moved = distances(&expected, &start);
        let off = distances(&found, &expected);
        // The moments of AdamW in f32 were rounded to 8 bits before the step.
        assert!(moved > 4e-3 && off < 0.1 * moved, "{off} of {moved}");
    }
}

/// The bits beside a weight in half precision are in the weight once it is in f32: a step with the
/// same record does not add them again.
#[test]
fn bits_are_added_to_a_weight_once() {
    let five_bytes = AdamWConfig::new().in_five_bytes(7).with_f32_parameters();
    let mut model = MixedPrecision::bf16().cast(matrix()).unwrap();
    let mut optim = five_bytes.clone().init();
    for step in 0..2 {
        let x = numbers([4, 64], step, &flex()).cast(DType::BF16);
        let loss = model.forward(x).cast(DType::F32).square().mean();
        let grads = gradients(&model, loss);
        model = optim.step(1e-3, model, grads);
    }
    let in_f32 = five_bytes.weights_to_f32(model, optim.to_record()).unwrap();
    let before = bits(&in_f32);
    let after = step_without_gradient(in_f32, &mut optim, 0.0);
    assert_bits(&bits(&after), &before, "a rate of 0");
}

/// At the call, and not in the middle of the backward pass; of each group.
#[test]
fn optimizers_that_take_no_gradients_in_f32_are_refused() {
    let model = || MixedPrecision::f16().cast(matrix()).unwrap();
    let adamw = AdamWConfig::new();
    for optim in [adamw.init(), adamw.in_one_pass().init()] {
        let mut optim = optim.with_gradient_release().with_f32_gradients();
        let (model, error) = optim.try_arm(1e-3, model()).unwrap_err().into_parts();
        assert!(
            matches!(error, ReleaseError::F32Gradients { .. }),
            "{error}"
        );
        let grads = GradientsParams::new();
        let refused = optim.try_step(1e-3, model, grads).unwrap_err();
        assert!(matches!(refused.error(), ReleaseError::F32Gradients { .. }));
    }
    let group = ParamGroup::from_path("weight");
    let five_bytes = adamw.in_five_bytes(7).init().with_gradient_release();
    let mut optim = five_bytes
        .with_f32_gradients()
        .with_group(group.clone(), adamw.build(), None);
    let refused = optim.try_arm(1e-3, model()).unwrap_err();
    assert!(matches!(refused.error(), ReleaseError::F32Gradients { .. }));
    // Groups of Burn's optimizer, and an optimizer of matrices only.
    let muon = MuonConfig::new().build();
    for optim in [
        adamw
            .in_five_bytes(7)
            .init()
            .with_group(group.clone(), adamw.build(), None),
        adamw
            .in_five_bytes(7)
            .init()
            .with_group(group.clone(), muon, None),
    ] {
        let mut optim = optim.with_gradient_release().with_f32_gradients();
        let refused = optim.try_arm(1e-3, model()).unwrap_err();
        assert!(matches!(refused.error(), ReleaseError::F32Gradients { .. }));
    }
    let five_bytes = adamw.in_five_bytes(7).init().with_gradient_release();
    assert!(
        five_bytes
            .with_f32_gradients()
            .try_arm(1e-3, model())
            .is_ok()
    );
}

/// Burn keeps the update of running statistics for the next forward pass, in the type of before.
#[test]
fn running_statistics_are_cast_with_their_update() {
    let device = flex();
    let batch_norm = plain::BatchNormConfig::new(8).init(&device);
    let model = PlainBatchNorm::of(batch_norm);
    let x = numbers([4, 8], 1, &device);
    let _ = model.inner[0].forward(x.clone() + 3.0);
    let expected = model.inner[0].running_mean.value_sync().cast(DType::BF16);
    let cast = MixedPrecision::bf16().cast_norms().cast(model).unwrap();
    let valid = cast.valid();
    let mean = valid.inner[0].running_mean.value_sync();
    assert_eq!(mean.into_data(), expected.inner().into_data());
    let out = valid.inner[0].forward(x.inner().cast(DType::BF16));
    assert_eq!(out.dtype(), DType::BF16);
}

#[cfg(feature = "ndarray")]
#[test]
#[allow(deprecated)] // Burn 0.22 deprecates NdArray.
fn a_device_without_the_type_is_refused() {
    let model: plain::Linear = plain::LinearConfig::new(8, 8).init(&Device::ndarray().autodiff());
    let refused = MixedPrecision::bf16().cast(model).unwrap_err();
    assert!(matches!(refused.error(), ReleaseError::NoSuchType { .. }));
}

const WIDTH: usize = 64;
const VOCABULARY: usize = 96;
const TIME: usize = 12;

/// In the style of Llama.
#[derive(Module, Debug)]
struct Decoder {
    embedding: nn::Embedding,
    blocks: Vec<Block>,
    norm: nn::RmsNorm,
    head: nn::Linear,
}

#[derive(Module, Debug)]
struct Block {
    norm: nn::RmsNorm,
    query: nn::Linear,
    rotary: nn::RotaryEncoding,
    ff_norm: nn::LayerNorm,
    gate: nn::SwiGlu,
    down: nn::Linear,
}

impl Decoder {
    fn new(device: &Device) -> Self {
        let linear = |from, to| {
            nn::LinearConfig::new(from, to)
                .with_bias(false)
                .init(device)
        };
        let block = || Block {
            norm: nn::RmsNormConfig::new(WIDTH).init(device),
            query: linear(WIDTH, WIDTH),
            rotary: nn::RotaryEncodingConfig::new(TIME, WIDTH / 2).init(device),
            ff_norm: nn::LayerNormConfig::new(WIDTH).init(device),
            gate: nn::SwiGluConfig::new(WIDTH, WIDTH).init(device),
            down: linear(WIDTH, WIDTH),
        };
        Self {
            embedding: nn::EmbeddingConfig::new(VOCABULARY, WIDTH).init(device),
            blocks: (0..2).map(|_| block()).collect(),
            norm: nn::RmsNormConfig::new(WIDTH).init(device),
            head: linear(WIDTH, VOCABULARY),
        }
    }

    fn loss(&self, batch: usize) -> Tensor<1> {
        let tokens = ids([2, TIME + 1], batch, VOCABULARY, &flex());
        let seen = tokens.clone().narrow(1, 0, TIME);
        let targets: Tensor<1, Int> = tokens.narrow(1, 1, TIME).reshape([2 * TIME]);
        let x = self.embedding.forward(seen);
        let x = checkpoint_each(&self.blocks, x, |block, x| block.forward(x));
        let x = self.norm.forward(x).flatten::<2>(0, 1);
        let loss = CrossEntropyLossConfig::new().init(&x.device());
        linear_cross_entropy(&loss, x, self.head.weight.val(), None, targets)
    }
}

impl Block {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let query = self.query.forward(self.norm.forward(x.clone()));
        let query = query.reshape([2, TIME, 2, WIDTH / 2]).swap_dims(1, 2);
        let query = self.rotary.forward(query);
        let attended = Attention::new()
            .causal()
            .forward(query.clone(), query.clone(), query);
        let x = x + attended.swap_dims(1, 2).reshape([2, TIME, WIDTH]);
        let hidden = self.gate.forward(self.ff_norm.forward(x.clone()));
        x + self.down.forward(hidden)
    }
}

const STEPS: usize = 4;
const MICRO_BATCHES: usize = 3;
const RATE: f64 = 3e-3;
const MAX_NORM: f64 = 0.5;
const SCALE: f64 = 1024.0;

fn decoder(precision: &MixedPrecision) -> Decoder {
    precision.cast(seeded(&flex(), Decoder::new)).unwrap()
}

fn micro_batch(step: usize, of_step: usize) -> usize {
    step * MICRO_BATCHES + of_step
}

/// The sum of gradients in half precision, in f32.
fn sum<M: Module>(model: &M, all: Vec<GradientsParams>) -> GradientsParams {
    struct Sum(Vec<GradientsParams>, GradientsParams);
    impl ModuleVisitor for Sum {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let grads = self.0.iter_mut();
            let grads = grads.filter_map(|grads| grads.remove::<D>(param.id));
            let sum = grads
                .map(|grad| grad.cast(DType::F32))
                .reduce(|sum, grad| sum + grad);
            self.1.register(param.id, sum.unwrap());
        }
    }
    let mut sum = Sum(all, GradientsParams::new());
    model.visit(&mut sum);
    sum.1
}

/// With gradients in f32, by hand: their sum over micro-batches, without the scale, clipped by the
/// global norm, and given to an optimizer of Burn's.
fn by_hand(precision: &MixedPrecision) -> Vec<Bits> {
    let mut model = decoder(precision);
    let mut optim = optimizer(&model);
    let mut steps = Vec::new();
    for step in 0..STEPS {
        let grads = |of_step| {
            let loss = model.loss(micro_batch(step, of_step)) * SCALE;
            gradients(&model, loss)
        };
        let mut sums = sum(&model, (0..MICRO_BATCHES).map(grads).collect());
        scale(&model, &mut sums, 1.0 / SCALE);
        let norm = clip_global(&model, &mut sums, MAX_NORM);
        assert!(norm > MAX_NORM && norm.is_finite(), "{norm}");
        assert!(global_norm(&model, &sums) < MAX_NORM * 1.001);
        model = optim.step(RATE, model, sums);
        steps.push(bits(&model));
    }
    steps
}

fn optimizer(model: &Decoder) -> burn::optim::ModuleOptimizer {
    let adamw = |decay| AdamWConfig::new().with_weight_decay(decay).in_five_bytes(7);
    let no_decay = no_decay(model);
    adamw(0.1).init().with_group(no_decay, adamw(0.0), None)
}

fn scaler() -> LossScaler {
    LossScalerConfig::new().with_init_scale(SCALE).init()
}

fn release(model: &Decoder, scaler: &LossScaler) -> ReleaseOptimizer {
    optimizer(model)
        .with_gradient_release()
        .with_norm_clipping(NormClipping::GlobalNorm { max_norm: MAX_NORM })
        .with_loss_scaler(scaler.clone())
        .with_f32_gradients()
}

/// Release, sums of micro-batches in f32, the exact global norm, the scale of the loss, groups,
/// scopes, operations and five bytes, stopped and resumed after each step.
#[test]
fn everything_together_is_what_one_computes_by_hand() {
    for precision in [MixedPrecision::bf16(), MixedPrecision::f16()] {
        let expected = by_hand(&precision);
        let mut model = decoder(&precision);
        let mut record: Option<(OptimizerRecord, _, _)> = None;
        for (step, expected) in expected.iter().enumerate() {
            let scaler = scaler();
            let mut optim = release(&model, &scaler);
            if let Some((states, transforms, weights)) = record.take() {
                optim = optim.load_record(states).load_gradient_record(transforms);
                model = decoder(&precision).load_record(weights);
            }
            let mut sums = ReleaseAccumulator::in_f32();
            for of_step in 0..MICRO_BATCHES - 1 {
                model = sums.arm(model);
                let loss = scaler.scale(model.loss(micro_batch(step, of_step)));
                let grads = gradients(&model, loss);
                sums.accumulate(&model, grads);
            }
            let last = micro_batch(step, MICRO_BATCHES - 1);
            let stepped = optim.try_two_passes(RATE, model, sums.grads(), |model| {
                scaler.scale(model.loss(last))
            });
            let loss;
            (model, loss) = stepped.unwrap_or_else(|refused| panic!("{}", refused.error()));
            assert_eq!(loss.dtype(), DType::F32);
            assert_bits(
                &bits(&model),
                expected,
                &format!("{precision:?}, step {step}"),
            );
            let weights = model.clone().into_record();
            record = Some((optim.to_record(), optim.gradient_record(), weights));
        }
    }
}

/// Gradients that are given in f32 stay so, as with Burn's optimizer.
#[test]
fn gradients_of_the_caller_keep_their_type() {
    let bf16 = MixedPrecision::bf16();
    let model = decoder(&bf16);
    let sums = || {
        sum(
            &model,
            (0..3).map(|at| gradients(&model, model.loss(at))).collect(),
        )
    };
    let expected = optimizer(&model).step(RATE, model.clone(), sums());
    let mut release = optimizer(&model).with_gradient_release();
    let found = release.step(RATE, model.clone(), sums());
    assert_bits(&bits(&found), &bits(&expected), "not armed");
}

/// The mean over replicas is in f32 until the step, whose states are in one of them.
#[cfg(feature = "data-parallel")]
#[test]
fn replicas_take_the_mean_in_f32() {
    use burn_lean::{DataParallel, Threads};

    let bf16 = MixedPrecision::bf16();
    let mut model = decoder(&bf16);
    let mut optim = optimizer(&model);
    let mut expected = Vec::new();
    for step in 0..2 {
        let grads = |rank: usize| gradients(&model, model.loss(2 * step + rank));
        let mut mean = sum(&model, (0..2).map(grads).collect());
        scale(&model, &mut mean, 0.5);
        model = optim.step(RATE, model, mean);
        expected.push(bits(&model));
    }
    Threads::run(2, |replicas| {
        let parallel = DataParallel::new(replicas.clone()).with_sharded_optimizer();
        let mut model = parallel.broadcast(decoder(&bf16)).unwrap();
        let optim = optimizer(&model).with_gradient_release();
        let reduction = std::sync::Arc::new(parallel);
        let mut optim = optim.with_reduction(reduction).with_f32_gradients();
        for (step, expected) in expected.iter().enumerate() {
            model = optim.arm(RATE, model);
            let loss = model.loss(2 * step + replicas.rank());
            let grads = gradients(&model, loss);
            model = optim.step(RATE, model, grads);
            assert_bits(&bits(&model), expected, &format!("step {step}"));
        }
    });
}

/// 256 and then 300 ones: in bf16 a sum of 256 stands still, and so does one of one pass.
#[test]
fn sums_in_f32_lose_no_small_gradients() {
    let device = flex();
    let model = || {
        let model: plain::Linear = plain::LinearConfig::new(1, 1)
            .with_bias(false)
            .init(&device);
        MixedPrecision::bf16().cast(model).unwrap()
    };
    for is_armed in [true, false] {
        let sum_of = |mut sums: ReleaseAccumulator| {
            let mut model = model();
            for number in std::iter::once(256.0).chain([1.0; 300]) {
                if is_armed {
                    model = sums.arm(model);
                }
                let x = Tensor::<2>::full([1, 1], number, &device).cast(DType::BF16);
                let grads = gradients(&model, model.forward(x).sum());
                sums.accumulate(&model, grads);
            }
            let sum = sums.grads().remove::<2>(model.weight.id).unwrap();
            sum.into_scalar::<f32>()
        };
        assert_eq!(sum_of(ReleaseAccumulator::new()), 256.0);
        assert_eq!(sum_of(ReleaseAccumulator::in_f32()), 556.0);
    }
}
