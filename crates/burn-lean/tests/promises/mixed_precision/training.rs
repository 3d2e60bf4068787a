//! Everything together, against what one computes by hand.

#![expect(
    unused_qualifications,
    reason = "`plain::Linear` beside `nn::Linear` says which is meant"
)]

use super::*;

const WIDTH: usize = 64;
const VOCABULARY: usize = 96;
const TIME: usize = 12;

/// In the style of Llama, with the embedding as its head.
#[derive(Module, Debug)]
struct Decoder {
    embedding: nn::Embedding,
    blocks: Vec<Block>,
    norm: nn::RmsNorm,
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
        let head = self.embedding.weight.val().transpose();
        linear_cross_entropy(&loss, x, head, None, targets)
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
/// From this micro-batch on adapters are trained, and nothing else.
const ADAPTED: usize = 2 * MICRO_BATCHES;
const RATE: f64 = 3e-3;
const MAX_NORM: f64 = 0.5;
const SCALE: f64 = 1024.0;

fn decoder(precision: &MixedPrecision) -> Decoder {
    precision.cast(seeded(&flex(), Decoder::new)).unwrap()
}

fn adapted(precision: &MixedPrecision, model: Decoder) -> Decoder {
    let model = seeded(&flex(), |_| model.apply_lora(Lora::new(2, 4.0)));
    precision.cast(model).unwrap()
}

/// The sum of gradients in half precision, in f32.
pub(crate) fn sum_in_f32<M: Module>(model: &M, all: Vec<GradientsParams>) -> GradientsParams {
    struct Sum(Vec<GradientsParams>, GradientsParams);
    impl ModuleVisitor for Sum {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let grads = self.0.iter_mut();
            let grads = grads.filter_map(|grads| grads.remove::<D>(param.id));
            let sum = grads
                .map(|grad| grad.cast(DType::F32))
                .reduce(|sum, grad| sum + grad);
            if let Some(sum) = sum {
                self.1.register(param.id, sum);
            }
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
        let first = step * MICRO_BATCHES;
        if first == ADAPTED {
            model = adapted(precision, model);
        }
        let grads = |batch| gradients(&model, model.loss(batch) * SCALE);
        let mut sums = sum_in_f32(&model, (first..first + MICRO_BATCHES).map(grads).collect());
        scale(&model, &mut sums, 1.0 / SCALE);
        let norm = clip_global(&model, &mut sums, MAX_NORM);
        assert!(norm > MAX_NORM && norm.is_finite(), "{norm}");
        assert!(global_norm(&model, &sums) < MAX_NORM * 1.001);
        model = optim.step(RATE, model, sums);
        steps.push(bits(&model));
    }
    steps
}

fn optimizer(model: &Decoder) -> ModuleOptimizer {
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
/// scopes, operations, tied weights and five bytes, stopped and resumed after each micro-batch; in the
/// second half with adapters.
#[test]
fn everything_together_is_what_one_computes_by_hand() {
    for precision in [MixedPrecision::bf16(), MixedPrecision::f16()] {
        let expected = by_hand(&precision);
        let mut records: Option<(OptimizerRecord, _, ModuleRecord, ModuleRecord)> = None;
        for batch in 0..STEPS * MICRO_BATCHES {
            let scaler = scaler();
            let mut model = decoder(&precision);
            let mut optim = release(&model, &scaler);
            if let Some((states, transforms, weights, window)) = records.take() {
                if batch > ADAPTED {
                    model = adapted(&precision, model);
                }
                optim = optim.load_record(states).load_gradient_record(transforms);
                model = model.load_record(weights);
                optim.load_sums(&model, window).unwrap();
            }
            if batch == ADAPTED {
                model = adapted(&precision, model);
            }
            let scaled = |model: &Decoder| scaler.scale(model.loss(batch));
            if (batch + 1).is_multiple_of(MICRO_BATCHES) {
                let loss;
                (model, loss) = optim.two_passes(RATE, model, scaled);
                assert_eq!(loss.dtype(), DType::F32);
                let what = format!("{precision:?}, micro-batch {batch}");
                assert_bits(&bits(&model), &expected[batch / MICRO_BATCHES], &what);
            } else {
                optim.accumulate(scaled(&model), &model);
            }
            let window = optim.sums_to_record(&model);
            let (states, transforms) = (optim.to_record(), optim.gradient_record());
            records = Some((states, transforms, model.into_record(), window));
        }
    }
}

/// With the lower bits of the weights from before the adapters.
#[test]
fn adapters_are_merged_once_the_weights_are_in_f32() {
    let bf16 = MixedPrecision::bf16();
    let five_bytes = AdamWConfig::new().in_five_bytes(7);
    let mut optim = five_bytes.clone().init().with_gradient_release();
    let model = release_step(decoder(&bf16), &mut optim, |model| model.loss(0));
    let before = five_bytes.weights_to_f32(model.clone(), optim.to_record());
    let before = before.unwrap().embedding.weight.val();
    let model = release_step(adapted(&bf16, model), &mut optim, |model| model.loss(1));

    // An average is kept in f32, and validated in the model's types.
    let average = MixedPrecision::to_f32(model.clone());
    assert!(types(&average).iter().all(|dtype| *dtype == DType::F32));
    assert_bits(&bits(&bf16.cast(average).unwrap()), &bits(&model), "back");

    let full = five_bytes.weights_to_f32(model.clone(), optim.to_record());
    let full = full.unwrap();
    let weight = &full.embedding.weight;
    assert_eq!(weight.base().into_data(), before.into_data());
    let merged = weight.val().into_data();
    assert_eq!(
        full.materialize().embedding.weight.val().into_data(),
        merged
    );
    let too_late = || five_bytes.weights_to_f32(model.materialize(), optim.to_record());
    assert_panics(too_late, "merge adapters (`materialize`) after it");
}

/// Gradients that are given in f32 stay so, as with Burn's optimizer.
#[test]
fn gradients_of_the_caller_keep_their_type() {
    let bf16 = MixedPrecision::bf16();
    let model = decoder(&bf16);
    let sums = || {
        sum_in_f32(
            &model,
            (0..3).map(|at| gradients(&model, model.loss(at))).collect(),
        )
    };
    let expected = optimizer(&model).step(RATE, model.clone(), sums());
    let mut release = optimizer(&model).with_gradient_release();
    let found = release.step(RATE, model.clone(), sums());
    assert_bits(&bits(&found), &bits(&expected), "ordinary");
}

/// Burn's optimizers compute in the type of the weight. They get sums in f32 rounded to that, by
/// whatever call the window ends.
#[test]
fn burns_optimizer_gets_sums_in_the_type_of_the_weight() {
    let model = decoder(&MixedPrecision::bf16());
    let grads = |batch| gradients(&model, model.loss(batch));
    let mut sums = sum_in_f32(&model, (0..2).map(grads).collect());
    sums = in_types_of(&model, sums);
    let expected = bits(&adamw().step(LR, model.clone(), sums));
    type End = fn(&mut ReleaseOptimizer, Decoder) -> Decoder;
    let ends: [End; 3] = [
        |optim, model| optim.backward(LR, model.loss(1), model),
        |optim, model| {
            let grads = gradients(&model, model.loss(1));
            optim.step(LR, model, grads)
        },
        |optim, model| {
            optim.accumulate(model.loss(1), &model);
            optim.step(LR, model, GradientsParams::new())
        },
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let mut optim = adamw().with_gradient_release().with_f32_sums();
        optim.accumulate(model.loss(0), &model);
        let found = end(&mut optim, model.clone());
        assert_bits(&bits(&found), &expected, &format!("end {number}"));
    }
}

/// Gradients in the types of their weights.
fn in_types_of<M: Module>(model: &M, grads: GradientsParams) -> GradientsParams {
    struct Cast(GradientsParams);
    impl ModuleVisitor for Cast {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = self.0.remove::<D>(param.id) {
                let grad = grad.cast(param.val().dtype());
                self.0.register(param.id, grad);
            }
        }
    }
    let mut cast = Cast(grads);
    model.visit(&mut cast);
    cast.0
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
        let mut mean = sum_in_f32(&model, (0..2).map(grads).collect());
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
            let loss = model.loss(2 * step + replicas.rank());
            model = optim.backward(RATE, loss, model);
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
    let sum_of = |mut optim: ReleaseOptimizer| {
        let model = model();
        for number in std::iter::once(256.0).chain([1.0; 300]) {
            let x = Tensor::<2>::full([1, 1], number, &device).cast(DType::BF16);
            optim.accumulate(model.forward(x).sum(), &model);
        }
        let sum = optim.take_sums(&model).remove::<2>(model.weight.id);
        sum.unwrap().into_scalar::<f32>()
    };
    let optim = || adamw().with_gradient_release();
    assert_eq!(sum_of(optim()), 256.0);
    assert_eq!(sum_of(optim().with_f32_sums()), 556.0);
}
