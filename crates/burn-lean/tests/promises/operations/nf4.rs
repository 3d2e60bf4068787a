//! Frozen weights in four bits.

use burn::module::Lora;
use burn_lean::MixedPrecision;
use burn_lean::operations::nn;
use burn_lean::operations::{Nf4, Nf4State, Nf4Weight, linear_cross_entropy, swiglu_linear};
use serde::Deserialize;

use crate::harness::distance;
use crate::harness::prelude::*;
use crate::heap::{HEAP, peak_of, warm_threads};

/// What bitsandbytes has made.
#[derive(Deserialize)]
struct Reference {
    name: String,
    /// Where no formula gives it.
    input: Option<String>,
    dims: [usize; 2],
    numbers: String,
    scales: String,
    of_scales: String,
    dense: String,
}

fn references() -> Vec<Reference> {
    serde_json::from_str(include_str!("reference/nf4.json")).unwrap()
}

fn bytes(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

fn floats(text: &str) -> Vec<f32> {
    let bytes = bytes(text);
    let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
    bytes.chunks(4).map(float).collect()
}

/// The numbers of `reference/nf4.py`.
fn input(reference: &Reference) -> Tensor<2> {
    let (name, dims) = (reference.name.as_str(), reference.dims);
    if let Some(text) = &reference.input {
        return Tensor::from_data(TensorData::new(floats(text), dims), &flex());
    }
    let noise = |i: usize| ((i * 7919 + 13) % 2003) as f64 / 1001.5 - 1.0;
    let number = |i: usize| match name {
        "cubes" => noise(i) * noise(i) * noise(i),
        "zeros" => 0.0,
        "small" => 1e-30,
        "tiny" => 1e-40 * (i % 3) as f64,
        "spiky" if i % 1000 == 77 => 1e20,
        "spiky" => 1e-3 * noise(i),
        "uneven" => noise(i) * 10_f64.powi(i as i32 / 64 - 15),
        _ => noise(i),
    };
    let numbers: Vec<f32> = (0..dims[0] * dims[1]).map(|i| number(i) as f32).collect();
    let weight: Tensor<2> = Tensor::from_data(TensorData::new(numbers, dims), &flex());
    match name {
        "bf16" => weight.cast(DType::BF16),
        _ => weight,
    }
}

type Packed = Param<Tensor<2>>;

fn packed(weight: Tensor<2>) -> Packed {
    let nf4 = Nf4::new().with_group(ParamGroup::all());
    let [param] = nf4
        .pack(vec![Param::from_tensor(weight)])
        .unwrap()
        .try_into()
        .unwrap();
    param
}

fn state(param: &Packed) -> Nf4State {
    param.reparameterization::<Nf4Weight>().unwrap().state()
}

/// The state that bitsandbytes has made.
fn state_of(reference: &Reference) -> Nf4State {
    let mut of_scales = floats(&reference.of_scales);
    let nested_offset = of_scales.pop().unwrap();
    Nf4State {
        shape: reference.dims,
        weight: bytes(&reference.numbers),
        absmax: bytes(&reference.scales),
        nested_absmax: of_scales,
        nested_offset,
    }
}

/// PyTorch adds up the mean of the scales in f32, in another order on each processor. Where that is the
/// rounded mean, all bits are those of bitsandbytes, and else all but last bits of scales.
#[test]
fn what_is_packed_is_that_of_bitsandbytes() {
    let mut same = 0;
    for reference in references() {
        let name = &reference.name;
        let (found, expected) = (state(&packed(input(&reference))), state_of(&reference));
        assert!(found.weight == expected.weight, "{name}");
        if found.nested_offset == expected.nested_offset {
            assert_eq!(found, expected, "{name}");
            same += 1;
            continue;
        }
        let error = (found.nested_offset / expected.nested_offset - 1.0).abs();
        assert!(error < 1e-6, "{name}: {error:e}");
        let pairs = found.absmax.iter().zip(&expected.absmax);
        let farthest = pairs.map(|(a, b)| a.abs_diff(*b)).max();
        assert!(farthest <= Some(1), "{name}: {farthest:?}");
    }
    assert!(same >= 5, "{same} are the same");
}

#[test]
fn what_bitsandbytes_has_packed_is_unpacked() {
    for reference in references() {
        let Reference { name, dims, .. } = &reference;
        for device in devices() {
            let model = vec![Param::from_tensor(Tensor::<2>::zeros(*dims, &device))];
            let nf4 = Nf4::new().with_group(ParamGroup::all());
            let model = nf4.pack_from(model, |path| {
                assert_eq!(path, "0");
                Some(state_of(&reference))
            });
            let param = model.unwrap().pop().unwrap();
            assert_eq!(state(&param), state_of(&reference), "{name}");
            // Not every backend has bf16.
            let dense: Tensor<2> = Tensor::from_data(param.val().into_data(), &flex());
            let dense = match &name[..] {
                "bf16" => dense.cast(DType::BF16),
                _ => dense,
            };
            let dense: Vec<u32> = bits_of(dense).into_iter().step_by(7).collect();
            let expected = floats(&reference.dense).into_iter().map(f32::to_bits);
            assert!(
                dense == expected.collect::<Vec<_>>(),
                "{name} on {device:?}"
            );
        }
    }
}

fn layers(width: usize) -> (Embedding, Vec<Linear>) {
    let device = flex();
    let table = EmbeddingConfig::new(50, width).init(&device);
    let layer = |_| LinearConfig::new(width, width).init(&device);
    numbered((table, (0..3).map(layer).collect()))
}

type Lean = (nn::Embedding, Vec<nn::Linear>);

fn forward(model: &Lean, step: usize) -> Tensor<1> {
    let x = model.0.forward(ids([2, 9], step, 50, &flex()));
    let run = |x: Tensor<3>, layer: &nn::Linear| layer.forward(x).tanh();
    model.1.iter().fold(x, run).square().mean()
}

fn plainly((table, layers): &(Embedding, Vec<Linear>), step: usize) -> Tensor<1> {
    let x = table.forward(ids([2, 9], step, 50, &flex()));
    let run = |x: Tensor<3>, layer: &Linear| layer.forward(x).tanh();
    layers.iter().fold(x, run).square().mean()
}

fn lean(model: (Embedding, Vec<Linear>)) -> Lean {
    let (table, layers) = model;
    (table.into(), layers.into_iter().map(Into::into).collect())
}

/// A packed model, and Burn's adapters over the numbers that were packed.
fn both() -> (Lean, (Embedding, Vec<Linear>)) {
    let lora = || Lora::new(2, 4.0);
    let packed = Nf4::new()
        .with_group(ParamGroup::from_predicate("weight"))
        .with_lora(lora());
    let packed = packed.pack(layers(64)).unwrap();
    let (table, of_layers) = &packed;
    let dense = |weight: &Packed| {
        let packed = weight.reparameterization::<Nf4Weight>().unwrap();
        let lora = packed.lora.as_ref().unwrap().delta();
        // Of a factor of zeros.
        (weight.val() - lora).detach()
    };
    let mut burns = layers(64);
    let base = |weight: Packed, packed: &Packed| weight.map(|_| dense(packed).require_grad());
    burns.0.weight = base(burns.0.weight, &table.weight);
    for (layer, packed) in burns.1.iter_mut().zip(of_layers) {
        layer.weight = base(layer.weight.clone(), &packed.weight);
    }
    let burns = burns.apply_lora(lora());
    (
        lean(seeded(&flex(), |_| packed)),
        seeded(&flex(), |_| burns),
    )
}

/// The factors of a model: a packed weight has them beneath `nf4`.
fn factors<M: Module>(model: &M) -> Bits {
    let bits = bits(model).into_iter();
    bits.filter(|(path, _)| path.contains("lora."))
        .map(|(path, bits)| (path.replace("nf4.", ""), bits))
        .collect()
}

/// Beside Burn's adapters over the same numbers, dense: with release, in windows, with scopes.
#[test]
fn factors_are_trained_as_over_a_dense_base() {
    let (mut model, mut burns) = both();
    assert_eq!(factors(&model), factors(&burns));
    let before: Vec<_> = model.1.iter().map(|layer| state(&layer.weight)).collect();
    let (mut optim, mut burns_optim) = (momentum().with_gradient_release(), momentum());
    for step in 0..20 {
        if step % 3 == 0 {
            optim.accumulate(forward(&model, step), &model);
        }
        let in_scope = |model: &Lean| {
            let none: Vec<Tensor<1>> = Vec::new();
            checkpoint(model, none, move |model: &Lean, _| forward(model, step + 1))
        };
        let loss = match step % 2 {
            0 => forward(&model, step + 1),
            _ => in_scope(&model),
        };
        model = optim.backward(LR, loss, model);
        let mut sums = GradientsAccumulator::new();
        for step in (step..=step + 1).skip(usize::from(step % 3 != 0)) {
            let grads = plainly(&burns, step).backward();
            sums.accumulate(&burns, GradientsParams::from_grads(grads, &burns));
        }
        burns = burns_optim.step(LR, burns, sums.grads());
        let report = optim.last_step().unwrap();
        assert_eq!(report.count(Outcome::Released), 8, "in step {step}");
        assert_eq!(report.in_place(), 8);
        // Roundings of 20 steps.
        let distance = distance(&factors(&model), &factors(&burns));
        assert!(distance < 1e-5, "{distance:e} in step {step}");
    }
    let after: Vec<_> = model.1.iter().map(|layer| state(&layer.weight)).collect();
    assert_eq!(after, before);
}

/// What a program does with a model between two steps.
#[test]
fn it_stays_with_the_model() {
    let device = flex();
    let (model, _) = both();
    let value = |model: &Lean| bits_of(forward(model, 3).inner());
    let expected = value(&model);
    let bytes = model.clone().into_record().into_bytes().unwrap();
    println!("{} bytes in a record", bytes.len());
    type Change<'a> = &'a dyn Fn(Lean) -> Lean;
    let changes: [(&str, Change); 5] = [
        ("cloned", &|model| model.clone()),
        ("moved", &|model| model.fork(&device)),
        ("loaded", &|_| {
            let nf4 = Nf4::new()
                .with_group(ParamGroup::from_predicate("weight"))
                .with_lora(Lora::new(2, 4.0));
            let model = nf4.pack(lean(layers(64))).unwrap();
            let model = numbered_from(model, 50);
            model.load_record(ModuleRecord::from_bytes(bytes.clone()).unwrap())
        }),
        ("validated and trained on", &|model| model.valid().train()),
        ("frozen", &|model| model.freeze()),
    ];
    for (name, change) in changes {
        assert_eq!(value(&change(model.clone())), expected, "{name}");
    }
    let merged = model.clone().materialize();
    let difference = (forward(&merged, 3) - forward(&model, 3)).abs();
    assert!(difference.into_scalar::<f32>() < 1e-6);
    assert!(merged.1[0].weight.adapter().is_none());
    assert_panics(
        || forward(&model.clone().unfreeze(), 1),
        "cannot be trained",
    );
    let cast = MixedPrecision::bf16().cast(model.clone()).unwrap();
    assert_eq!(state(&cast.1[0].weight), state(&model.1[0].weight));
    let difference = (forward(&cast, 3).cast(DType::F32) - forward(&model, 3)).abs();
    assert!(difference.into_scalar::<f32>() < 1e-2);
}

#[test]
fn what_cannot_be_packed_is_refused() {
    let mut model = layers(64);
    let nan = |weight: Tensor<2>| weight.slice_fill([0..1, 0..1], f32::NAN);
    let weight = model.1[1].weight.clone();
    model.1[1].weight = weight.map(|weight| nan(weight.inner()).autodiff().require_grad());
    let error = Nf4::new().pack(model).unwrap_err();
    assert_eq!(
        error.to_string(),
        "1.1.weight has a number that is not finite"
    );
    let error = Nf4::new().pack_from(layers(64), |_| None).unwrap_err();
    assert_eq!(error.to_string(), "there is no packed state for 1.0.weight");
    let other = state_of(&references()[0]);
    let error = Nf4::new().pack_from(layers(64), |_| Some(other.clone()));
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("of a matrix [5, 16], or cut: the weight is [64, 64]"),
        "{text}"
    );
}

/// A weight that is unpacked in parts, of which the last one is smaller.
#[test]
fn parts_of_a_weight() {
    let device = flex();
    let layer: Linear = numbered(LinearConfig::new(1024, 1500).init(&device));
    let packed = Nf4::new().pack(layer).unwrap();
    let mut dense = packed.clone();
    dense.weight = Param::from_tensor(packed.weight.val().detach());
    let run = |layer: nn::Linear| {
        let x = numbers::<2>([3, 1024], 1, &device).require_grad();
        let y = layer.forward(x.clone());
        let value = bits_of(y.clone().inner());
        let grads = (y * numbers([3, 1500], 2, &device)).sum().backward();
        [value, bits_of(x.grad(&grads).unwrap())].map(|bits| (String::new(), bits))
    };
    let [found, expected] = [packed, dense].map(|layer| run(layer.into()).to_vec());
    // Sums of 1500 products, in another order.
    assert!(distance(&found, &expected) < 1e-4);
}

/// Operations that read some of the rows of a packed weight, and some of its columns: rows that are no whole
/// number of blocks, for several parts of the hidden layer.
#[test]
fn operations_over_a_packed_weight() {
    const ROWS: usize = 1500;
    const WIDTH: usize = 401;
    let device = flex();
    let layer: Linear = numbered(LinearConfig::new(WIDTH, 40).init(&device));
    let packed = Nf4::new().pack(layer).unwrap();
    let dense = Param::from_tensor(packed.weight.val().detach());
    let leaf = |at| numbers::<2>([ROWS, WIDTH], at, &device).require_grad();
    let (gate, up) = (leaf(1), leaf(2));
    let run = |weight: &Packed| {
        let y = swiglu_linear(gate.clone(), up.clone(), weight, None);
        let value = bits_of(y.clone().inner());
        let grads = (y * numbers([ROWS, 40], 3, &device)).sum().backward();
        let of = |x: &Tensor<2>| bits_of(x.grad(&grads).unwrap());
        let mut all = vec![value, of(&gate), of(&up)];
        let loss = CrossEntropyLossConfig::new().init(&device);
        let targets = ids([ROWS], 1, 40, &device);
        let loss = linear_cross_entropy(&loss, gate.clone(), weight, None, targets);
        all.push(bits_of(loss.clone().inner()));
        all.push(bits_of(gate.grad(&loss.backward()).unwrap()));
        all
    };
    for (at, (found, expected)) in run(&packed.weight).into_iter().zip(run(&dense)).enumerate() {
        let [found, expected] = [found, expected].map(|bits| vec![(String::new(), bits)]);
        // Sums of 401 products, in another order.
        let distance = distance(&found, &expected);
        assert!(distance < 2e-6, "tensor {at}: {distance:e}");
    }
}

/// Weights that nobody has read are drawn one at a time, also where adapters are attached: 16 layers of
/// 1024 would be 64 MiB.
#[test]
fn memory_of_packing() {
    alone(|| {
        let layer = |_| -> Linear { LinearConfig::new(1024, 1024).init(&flex()) };
        let layers: Vec<Linear> = (0..16).map(layer).collect();
        let nf4 = Nf4::new().with_lora(Lora::new(16, 16.0));
        let (model, peak) = peak_of(|| nf4.pack(layers).unwrap());
        println!("peak {peak}");
        assert!(peak < 16 << 20, "{peak}");
        assert!(model[15].weight.reparameterization::<Nf4Weight>().is_some());
    });
}

/// Eight layers of 1024: half a byte a number, and a part of a weight at a time.
#[test]
fn memory_of_a_step() {
    const LAYERS: usize = 8;
    const WIDTH: usize = 1024;
    const INPUT: usize = 4 * 256 * WIDTH;
    const PART: usize = 4 * WIDTH * WIDTH;
    alone(|| {
        warm_threads();
        let before = HEAP.current_usage();
        let layer = |_| -> nn::Linear {
            let nf4 = Nf4::new().with_lora(Lora::new(16, 16.0));
            let layer = numbered(LinearConfig::new(WIDTH, WIDTH).init(&flex()));
            nf4.pack(layer).unwrap().into()
        };
        let model: Vec<nn::Linear> = (0..LAYERS).map(layer).collect();
        let of_model = HEAP.current_usage() - before;
        let packed = LAYERS * WIDTH * WIDTH * 4127 / 8000;
        let factors = LAYERS * 2 * 4 * 16 * WIDTH;
        let small = LAYERS * (8 << 10) + LAYERS * 4 * 256 * 16;
        assert!(
            of_model < packed + factors + LAYERS * 4 * WIDTH + small,
            "{of_model}"
        );
        let x = numbers([256, WIDTH], 1, &flex());
        let before = HEAP.current_usage();
        let loss = model.iter().fold(x, |x, layer| layer.forward(x)).sum();
        let kept = HEAP.current_usage() - before;
        HEAP.reset_peak_usage();
        let grads = loss.backward();
        let peak = HEAP.peak_usage() - before;
        drop(grads);
        println!("{of_model} of the model, {kept} kept, peak {peak}");
        assert!(kept <= LAYERS * INPUT + small, "{kept}");
        assert!(peak <= kept + 3 * INPUT + PART + factors + small, "{peak}");
    });
}
