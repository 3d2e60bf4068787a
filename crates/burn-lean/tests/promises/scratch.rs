//! Weights, states and inputs of scopes in a file: the same numbers, and no memory.

use burn::module::Quantizer;
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdanConfig, LambConfig, LionConfig, MuonConfig, RmsPropConfig,
};
use burn::tensor::quantization::{Calibration, QuantScheme};
use burn_lean::optim::{
    AccumulateInMoments, AdaLomoConfig, Bf16Weights, CameConfig, EightBitMoments, InFiveBytes,
    InOnePass, InScratch, Lean, MasterWeights, MomentDecay, RAdamConfig, StableAdamWConfig,
    Stochastic,
};
use burn_lean::{MixedPrecision, Scratch, ScratchError};

use crate::harness::prelude::*;
use crate::heap::{peak_of, warm_threads};
use crate::random_programs::Source;

const WIDTH: usize = 64;
const LAYERS: usize = 3;
const PAGE: u64 = 4096;
/// Of a weight in f32: four pages.
const WEIGHT: u64 = 4 * (WIDTH * WIDTH) as u64;

type Layers = Vec<Linear>;

fn layers() -> Layers {
    let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(&flex());
    numbered((0..LAYERS).map(layer).collect())
}

fn loss(layers: &Layers, step: usize) -> Tensor<1> {
    let x = numbers::<2>([5, WIDTH], step, &flex());
    let x = x.cast(layers[0].weight.val().dtype());
    let run = |x, layer: &Linear| checkpoint(layer, x, |layer: &Linear, x| gelu(layer.forward(x)));
    layers.iter().fold(x, run).cast(DType::F32).square().mean()
}

/// A file, of which next to nothing may be in memory.
fn scratch() -> Scratch {
    let scratch = Scratch::create(env!("CARGO_TARGET_TMPDIR")).unwrap();
    scratch.with_memory(WEIGHT).unwrap()
}

fn through_bytes(record: OptimizerRecord) -> OptimizerRecord {
    OptimizerRecord::from_bytes(record.into_bytes().unwrap()).unwrap()
}

/// Trains in memory, and in a file: bit for bit the same, and each goes on with the other's record. After a step, the file
/// has the weights and the states.
fn trains_the_same<O: InScratch>(name: &str, optimizer: O, dtype: DType, bytes_of_states: u64) {
    let model = || match dtype {
        DType::F32 => layers(),
        _ => MixedPrecision::bf16().cast(layers()).unwrap(),
    };
    let scratch = scratch();
    let mut plain = model();
    let mut placed = scratch.place(plain.clone()).unwrap();
    let mut burns = ModuleOptimizer::from(optimizer.clone());
    let in_scratch = || optimizer.clone().in_scratch(&scratch).init();
    let mut released = in_scratch().with_gradient_release();
    let weight = WEIGHT / 4 * dtype.size() as u64;
    for step in 0..20 {
        plain = plain_step(plain, &mut burns, |model| loss(model, step));
        placed = release_step(placed, &mut released, |model| loss(model, step));
        assert_eq!(bits(&placed), bits(&plain), "{name}, step {step}");
        let expected = LAYERS as u64 * (weight + bytes_of_states);
        assert_eq!(scratch.usage().in_use, expected, "{name}, step {step}");
        if step == 10 {
            let [of_burns, of_placed] =
                [burns.to_record(), released.to_record()].map(through_bytes);
            burns = ModuleOptimizer::from(optimizer.clone()).load_record(of_placed);
            released = in_scratch().load_record(of_burns).with_gradient_release();
        }
    }
    drop((placed, released));
    assert_eq!(scratch.usage().in_use, 0, "{name}");
}

#[test]
fn optimizers_in_one_pass_train_the_same() {
    let adamw = || AdamWConfig::new().in_one_pass();
    trains_the_same("AdamW", adamw(), DType::F32, 2 * WEIGHT);
    let amsgrad = AdamConfig::new().with_amsgrad(true);
    trains_the_same("AMSGrad", amsgrad.in_one_pass(), DType::F32, 3 * WEIGHT);
    let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    trains_the_same("momentum", momentum.in_one_pass(), DType::F32, WEIGHT);
    trains_the_same("SGD", SgdConfig::new().in_one_pass(), DType::F32, 0);
    trains_the_same("Lion", LionConfig::new().in_one_pass(), DType::F32, WEIGHT);
    trains_the_same("RAdam", RAdamConfig::new().build(), DType::F32, 2 * WEIGHT);
    let stable = StableAdamWConfig::new().build();
    trains_the_same("StableAdamW", stable, DType::F32, 2 * WEIGHT);
    trains_the_same("CAME", CameConfig::new().build(), DType::F32, WEIGHT);
    trains_the_same("AdaLomo", AdaLomoConfig::new().build(), DType::F32, 0);
    // 33 words for 128 numbers.
    let in_8_bits = (WEIGHT / 4 / 128 * 33 * 4).next_multiple_of(PAGE);
    let small = adamw().with_8_bit_moments(&layers());
    trains_the_same("8 bits", small, DType::F32, 2 * in_8_bits);
    let mean = adamw()
        .accumulating(2, MomentDecay::EachMicroBatch)
        .unwrap();
    trains_the_same("in moments", mean, DType::F32, 2 * WEIGHT);
    let five_bytes = AdamWConfig::new().in_five_bytes(3);
    trains_the_same(
        "five bytes",
        five_bytes,
        DType::BF16,
        WEIGHT / 4 + 2 * in_8_bits,
    );
    let masters = Bf16Weights::new(adamw(), MasterWeights).with_f32_parameters();
    trains_the_same("masters", masters, DType::BF16, WEIGHT / 2 + 2 * WEIGHT);
    let burns = Bf16Weights::new(AdamWConfig::new().build(), Stochastic { seed: 3 });
    trains_the_same(
        "Burn's in bf16",
        burns.with_f32_parameters(),
        DType::BF16,
        2 * WEIGHT,
    );
}

#[test]
fn burns_optimizers_train_the_same() {
    trains_the_same("AdaGrad", AdaGradConfig::new().build(), DType::F32, WEIGHT);
    trains_the_same("Adafactor", AdafactorConfig::new().build(), DType::F32, 0);
    trains_the_same("Adam", AdamConfig::new().build(), DType::F32, 2 * WEIGHT);
    trains_the_same("AdamW", AdamWConfig::new().build(), DType::F32, 2 * WEIGHT);
    trains_the_same("Adan", AdanConfig::new().build(), DType::F32, 4 * WEIGHT);
    trains_the_same("LAMB", LambConfig::new().build(), DType::F32, 2 * WEIGHT);
    trains_the_same("Lion", LionConfig::new().build(), DType::F32, WEIGHT);
    trains_the_same(
        "RMSProp",
        RmsPropConfig::new().build(),
        DType::F32,
        3 * WEIGHT,
    );
    let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    trains_the_same("momentum", momentum.build(), DType::F32, WEIGHT);
}

/// Muon takes matrices alone: in a group, beside an optimizer in memory.
#[test]
fn a_group_is_in_a_file() {
    let scratch = scratch();
    let matrices = || ParamGroup::from_predicate("weight");
    let muon = || MuonConfig::new().build();
    let mut burns = adamw().with_group(matrices(), muon(), None);
    let placed = adamw().with_group(matrices(), muon().in_scratch(&scratch), None);
    let mut placed = placed.with_gradient_release();
    let (mut one, mut other) = (layers(), layers());
    for step in 0..5 {
        one = plain_step(one, &mut burns, |model| loss(model, step));
        other = release_step(other, &mut placed, |model| loss(model, step));
        assert_eq!(bits(&one), bits(&other));
    }
    // The weights, too: who steps a weight puts it into the file.
    assert_eq!(scratch.usage().in_use, 2 * LAYERS as u64 * WEIGHT);
}

/// What users do between two steps, with models in memory and in a file side by side.
#[test]
fn sequences_end_the_same() {
    for seed in 0..12 {
        let mut source = Source(seed << 32);
        let scratch = scratch();
        let one_pass = || AdamWConfig::new().in_one_pass();
        let model = layers();
        let mut plain = (model.clone(), one_pass().init().with_gradient_release());
        let mut placed = (
            model,
            one_pass()
                .in_scratch(&scratch)
                .init()
                .with_gradient_release(),
        );
        let mut copies: Vec<[(Layers, Bits); 2]> = Vec::new();
        for step in 0..12 {
            let change = source.next(8);
            let frozen = 1 + source.next(LAYERS - 1);
            for (is_placed, (model, optim)) in [&mut plain, &mut placed].into_iter().enumerate() {
                *model = match change {
                    0 if is_placed == 1 => scratch.place(model.clone()).unwrap(),
                    1 => {
                        let bytes = model.clone().into_record().into_bytes().unwrap();
                        let record = ModuleRecord::from_bytes(bytes).unwrap();
                        model.clone().load_record(record)
                    }
                    2 => {
                        model[frozen] = model[frozen].clone().no_grad();
                        model.clone()
                    }
                    3 => model.clone().train(),
                    4 => {
                        let record = through_bytes(optim.to_record());
                        let new = match is_placed {
                            0 => one_pass().init(),
                            _ => one_pass().in_scratch(&scratch).init(),
                        };
                        *optim = new.load_record(record).with_gradient_release();
                        model.clone()
                    }
                    5 => {
                        optim.accumulate(loss(model, 100 + step), model);
                        model.clone()
                    }
                    _ => model.clone(),
                };
            }
            match change {
                6 => copies.push([&plain, &placed].map(|(model, _)| (model.clone(), bits(model)))),
                7 => drop(copies.pop()),
                _ => {}
            }
            for (model, optim) in [&mut plain, &mut placed] {
                let value = loss(model, step);
                let taken = std::mem::take(model);
                *model = optim.backward(LR, value, taken);
            }
            assert_eq!(
                bits(&plain.0),
                bits(&placed.0),
                "seed {seed}, step {step}, change {change}"
            );
            for [_, (copy, before)] in &copies {
                assert_eq!(bits(copy), *before, "seed {seed}: a copy has changed");
            }
        }
        drop((copies, placed));
        assert_eq!(scratch.usage().in_use, 0, "seed {seed}");
    }
}

/// The peak of memory is that of a few weights, from the drawing of the weights on.
#[test]
fn a_model_is_never_in_memory() {
    alone(draws_and_steps);
}

fn draws_and_steps() {
    warm_threads();
    const BIG: usize = 512;
    let weight = 4 * BIG * BIG;
    let device = flex();
    let scratch = scratch();
    let (stepped, peak) = peak_of(|| {
        let layer = |_| LinearConfig::new(BIG, BIG).with_bias(false).init(&device);
        let model: Layers = (0..40).map(layer).collect();
        let mut model = scratch.place(model).unwrap();
        let optim = AdamWConfig::new().in_one_pass().in_scratch(&scratch).init();
        let mut optim = optim.with_gradient_release();
        for step in 0..2 {
            let x = numbers::<2>([4, BIG], step, &device);
            let run =
                |x, layer: &Linear| checkpoint(layer, x, |layer: &Linear, x| layer.forward(x));
            let loss = model.iter().fold(x, run).square().mean();
            model = optim.backward(LR, loss, model);
        }
        optim.last_step().unwrap().in_place()
    });
    assert_eq!(stepped, 40);
    assert!(
        peak < 8 * weight,
        "{} weights of 120",
        peak as f64 / weight as f64
    );
}

/// Adapters over a base in four bits that is in the file.
#[cfg(feature = "operations")]
#[test]
fn a_packed_base_is_in_the_file() {
    use burn::module::Lora;
    use burn_lean::operations::{Nf4, nn};

    type Layers = Vec<nn::Linear>;
    let layer = |_| nn::LinearConfig::new(256, 256).init(&flex());
    let base: Layers = numbered((0..LAYERS).map(layer).collect());
    let scratch = scratch();
    let nf4 = || Nf4::new().with_lora(Lora::new(4, 8.0));
    flex().seed(1);
    let plain = nf4().pack(base.clone()).unwrap();
    flex().seed(1);
    let placed = nf4().in_scratch(&scratch).pack(base).unwrap();
    // Four bits a number, and a byte for 64 of them in less than a page.
    let packed = 256 * 256 / 2;
    assert_eq!(scratch.usage().in_use, LAYERS as u64 * packed);
    let trained = [plain, placed].map(|mut model| {
        let adamw = AdamWConfig::new().in_one_pass().in_scratch(&scratch);
        let mut optim = adamw.init().with_gradient_release();
        for step in 0..5 {
            model = release_step(model, &mut optim, |model| {
                let x = numbers::<2>([5, 256], step, &flex());
                let forward = |layer: &nn::Linear, x| gelu(layer.forward(x));
                let run = |x, layer| checkpoint(layer, x, forward);
                model.iter().fold(x, run).square().mean()
            });
        }
        bits(&model)
    });
    assert_eq!(trained[0], trained[1]);
}

/// Of 16 packed weights, 33 kB each, one is in memory at a time.
#[cfg(all(feature = "operations", feature = "safetensors"))]
#[test]
fn packed_weights_come_from_their_files_one_by_one() {
    use burn_lean::operations::{Nf4, Nf4Weight, nn};
    use burn_lean::safetensors::{Weights, save};

    let layers = || -> Vec<nn::Linear> {
        let layer = |_| nn::LinearConfig::new(256, 256).init(&flex());
        (0..16).map(layer).collect()
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    let scratch = scratch();
    alone(|| {
        let packed = Nf4::new().pack(layers()).unwrap();
        save(&packed, &file, str::to_owned, |_, dtype| dtype).unwrap();
        let nf4 = Nf4::new().in_scratch(&scratch);
        let weights = Weights::open(&file).unwrap();
        let (read, peak) = peak_of(|| weights.load_nf4(nf4, layers(), str::to_owned).unwrap());
        println!("peak {peak}");
        assert!(peak < 200_000, "{peak}");
        for (read, packed) in read.iter().zip(&packed) {
            let state = |layer: &nn::Linear| {
                let weight = layer.weight.reparameterization::<Nf4Weight>();
                weight.unwrap().state()
            };
            assert_eq!(state(read), state(packed));
        }
    });
}

/// In the file the input waits for backward, with the gradient that it has in memory.
#[test]
fn inputs_of_scopes_wait_in_the_file() {
    let scratch = scratch();
    let model = layers();
    let run = |is_kept: bool| {
        let mut x = numbers::<2>([500, WIDTH], 1, &flex()).require_grad();
        let leaf = x.clone();
        let mask = ids::<2>([500, WIDTH], 2, 2, &flex());
        for layer in &model {
            let input = (x, mask.clone());
            let input = if is_kept {
                scratch.keep(input).unwrap()
            } else {
                input
            };
            x = checkpoint(layer, input, |layer: &Linear, (x, mask)| {
                gelu(layer.forward(x)) * mask.float()
            });
        }
        let in_use = scratch.usage().in_use;
        let grads = x.square().mean().backward();
        let of_weights = model.iter().map(|layer| layer.weight.grad(&grads).unwrap());
        let of_weights: Vec<_> = of_weights.map(|grad| grad.into_data()).collect();
        (in_use, leaf.grad(&grads).unwrap().into_data(), of_weights)
    };
    let (_, leaf, weights) = run(false);
    let (in_use, of_kept, of_weights) = run(true);
    assert_eq!((leaf, weights), (of_kept, of_weights));
    let bytes = [4, mask_bytes()].map(|size| (500 * WIDTH as u64 * size).next_multiple_of(PAGE));
    assert_eq!(in_use, LAYERS as u64 * (bytes[0] + bytes[1]));
    assert_eq!(scratch.usage().in_use, 0);
}

fn mask_bytes() -> u64 {
    ids::<1>([1], 1, 2, &flex()).dtype().size() as u64
}

/// What cannot be done is said, and the model is handed back.
#[test]
fn what_cannot_be_placed_is_refused() {
    let error = Scratch::create("/dev/shm").unwrap_err();
    assert!(matches!(error, ScratchError::InMemory { .. }), "{error}");
    assert!(error.to_string().contains("in memory"), "{error}");
    let error = Scratch::create("/nowhere").unwrap_err();
    assert!(matches!(error, ScratchError::Folder { .. }), "{error}");
    let scratch = scratch();
    let error = scratch.reserve(1 << 60).unwrap_err();
    assert!(
        matches!(error, ScratchError::Space { needed, free, .. } if needed == 1 << 60 && free > 0)
    );
    assert_eq!(scratch.usage().reserved, 0);

    let mut quantizer = Quantizer::new(Calibration::MinMax, QuantScheme::default());
    let quantized = layers().quantize_weights(&mut quantizer);
    let refused = scratch.place(quantized).unwrap_err();
    assert!(refused.to_string().contains("quantized"), "{refused}");
    assert_eq!(refused.into_model().len(), LAYERS);
    assert_eq!(scratch.usage().in_use, 0);

    // Burn's optimizers would read their states in f32.
    let model = MixedPrecision::bf16().cast(layers()).unwrap();
    let optim = AdamWConfig::new().build().in_scratch(&scratch).init();
    let refused = optim
        .with_gradient_release()
        .try_backward(LR, loss(&model, 0), model);
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("in_one_pass"), "{text}");
}
