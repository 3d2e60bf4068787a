//! Five bytes a parameter, from files and to files.

use std::collections::BTreeMap;
use std::path::Path;

use burn::store::RecordError;
use burn_lean::operations::nn;
use burn_lean::optim::{InFiveBytes, InOnePass, Lean};
use burn_lean::safetensors::{Weights, save, save_master_weights};
use burn_lean::{MixedPrecision, Refused, no_decay};
use burn_pack::Reader;

use crate::harness::prelude::*;
use crate::heap::{HEAP, peak_of};

type Layers = Vec<nn::Linear>;

fn layers(count: usize, width: usize) -> Layers {
    let layer = |_| nn::LinearConfig::new(width, width).init(&flex());
    (0..count).map(layer).collect()
}

fn loss(model: &Layers, step: usize) -> Tensor<1> {
    let width = model[0].weight.shape()[0];
    let x = numbers::<2>([4, width], step, &flex()).cast(model[0].weight.val().dtype());
    let x = model.iter().fold(x, |x, layer| layer.forward(x).tanh());
    x.cast(DType::F32).square().mean()
}

fn group(model: &Layers) -> ParamGroup {
    MixedPrecision::bf16().params(model).unwrap()
}

/// Tensors and scalars by name, with what they are: a record has them in any order.
type States = BTreeMap<String, (String, Vec<u8>)>;

fn read(reader: Reader) -> States {
    let scalars = reader.scalars().iter();
    let scalars = scalars.map(|(name, it)| (name.clone(), (format!("{it:?}"), Vec::new())));
    let paths = reader.metadata().iter();
    let paths = paths.map(|(name, path)| (name.clone(), (path.clone(), Vec::new())));
    let mut all: States = scalars.chain(paths).collect();
    for tensor in reader.into_tensors().unwrap() {
        let kind = format!("{:?} {:?}", tensor.dtype, tensor.shape);
        let bytes = tensor.to_bytes().unwrap().to_vec();
        all.insert(tensor.name, (kind, bytes));
    }
    all
}

fn states(record: OptimizerRecord) -> States {
    read(Reader::from_bytes(record.into_bytes().unwrap()).unwrap())
}

pub(crate) fn states_of_file(file: &Path) -> States {
    read(Reader::from_file(file).unwrap())
}

/// Names and types of files do not matter here.
fn same_name(name: &str) -> String {
    name.to_owned()
}

/// The same by way of records, which hold all bits twice.
#[test]
fn rounding_one_by_one_is_rounding_by_records() {
    for dtype in [DType::BF16, DType::F16] {
        let start = numbered(layers(2, 80));
        let five_bytes = AdamWConfig::new().in_five_bytes(7);
        let record = OptimizerRecord::default();
        let by_record = five_bytes.weights_from_f32(start.clone(), &group(&start), dtype, record);
        let (mut expected, record) = by_record.unwrap();
        let optim = five_bytes.clone().init().with_gradient_release();
        let mut plain = optim.load_record(record);

        let mut optim = five_bytes.clone().init().with_gradient_release();
        let mut model = optim
            .round_weights(start.clone(), &group(&start), dtype)
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        for step in 0..3 {
            assert_eq!(bits(&model), bits(&expected));
            assert!(states(optim.to_record()) == states(plain.to_record()));

            let file = folder.path().join("states.bpk");
            optim.save_states(&model, &file).unwrap();
            let saved = OptimizerRecord::load(file).unwrap();
            assert!(states(saved) == states(optim.to_record()));

            let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
            save_master_weights(&model, &optim, &one, same_name, |_, _| DType::F32).unwrap();
            let full = five_bytes
                .weights_to_f32(model.clone(), plain.to_record())
                .unwrap();
            save(&full, &other, same_name, |_, dtype| dtype).unwrap();
            assert!(std::fs::read(one).unwrap() == std::fs::read(other).unwrap());

            model = optim.backward(1e-3, loss(&model, step), model);
            expected = plain.backward(1e-3, loss(&expected, step), expected);
        }
    }
}

#[test]
fn an_optimizer_without_such_bits_is_refused() {
    let start = numbered(layers(2, 8));
    let text = |refused: Refused<Layers, (), ReleaseError>| {
        let (model, error) = refused.into_parts();
        assert_eq!(bits(&model), bits(&start));
        error.to_string()
    };
    let mut optim = AdamWConfig::new()
        .in_one_pass()
        .init()
        .with_gradient_release();
    let refused = optim.round_weights(start.clone(), &group(&start), DType::BF16);
    let refused = text(refused.unwrap_err());
    assert!(
        refused.starts_with("0.weight cannot be stepped: its optimizer"),
        "{refused}"
    );
    assert!(optim.to_record().is_empty());
    let mut optim = AdamWConfig::new()
        .in_five_bytes(7)
        .init()
        .with_gradient_release();
    let refused = optim.round_weights(start.clone(), &group(&start), DType::F64);
    assert!(text(refused.unwrap_err()).contains("steps no weights in F64"));

    // Its weights are written as they are, and its states stay.
    let mut optim = AdamWConfig::new().init().with_gradient_release();
    let model = optim.backward(1e-3, loss(&start, 0), start.clone());
    let before = states(optim.to_record());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weights.safetensors");
    save_master_weights(&model, &optim, &file, same_name, |_, dtype| dtype).unwrap();
    let again = Weights::open(&file)
        .unwrap()
        .load(start.clone(), same_name)
        .unwrap();
    assert_eq!(bits(&again), bits(&model));
    assert!(states(optim.to_record()) == before);

    let nowhere = optim.save_states(&model, folder.path().join("no/folder.bpk"));
    assert!(matches!(nowhere, Err(RecordError::Io(_))));
}

/// A hundred layers: each takes a hundredth of the model.
#[test]
fn reading_and_writing_five_bytes_takes_a_layer_more() {
    let folder = tempfile::tempdir().unwrap();
    let [file, again, states] = ["a", "b", "c"].map(|name| folder.path().join(name));
    save(&numbered(layers(100, 288)), &file, same_name, |_, dtype| {
        dtype
    })
    .unwrap();
    let layer = 288 * 288;
    alone(|| {
        let before = HEAP.current_usage();
        let ((model, mut optim), peak) = peak_of(|| {
            let weights = Weights::open(&file).unwrap();
            let model = weights.load(layers(100, 288), same_name).unwrap();
            let five_bytes = AdamWConfig::new().in_five_bytes(7);
            let optim = five_bytes.clone().init().with_gradient_release();
            // No group reads weights.
            let mut optim = optim.with_group(no_decay(&model), five_bytes, None);
            let group = group(&model);
            let model = optim.round_weights(model, &group, DType::BF16).unwrap();
            (model, optim)
        });
        let taken = HEAP.current_usage() - before;
        let ratio = peak as f64 / taken as f64;
        println!(
            "reading: {ratio:.3} of {:.2} bytes a weight",
            taken as f64 / (100 * layer) as f64
        );
        assert!(ratio < 1.05, "{ratio}");
        assert!(taken < 320 * layer, "{taken}");

        let model = optim.backward(1e-3, loss(&model, 0), model);
        let save = || save_master_weights(&model, &optim, &again, same_name, |_, _| DType::F32);
        let ((), weights) = peak_of(|| save().unwrap());
        let ((), states) = peak_of(|| optim.save_states(&model, &states).unwrap());
        let (_, at_once) = peak_of(|| optim.to_record());
        let in_layers = |peak: usize| peak as f64 / (5.06 * layer as f64);
        let [weights, states, at_once] = [weights, states, at_once].map(in_layers);
        println!("writing: weights {weights:.2}, states {states:.2}, a record {at_once:.2} layers");
        assert!(weights < 2.0 && states < 3.0 && at_once > 50.0);
    });
}
