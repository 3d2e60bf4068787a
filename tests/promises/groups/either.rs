//! Two kinds of optimizer as one: what each steps is what it steps in plain Burn by itself, and
//! the one record passes to the two of plain Burn and back.

use burn::module::{Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::momentum::MomentumConfig;
use burn::optim::record::AdaptorRecord;
use burn::optim::{
    AdamW, AdamWConfig, GradientsParams, Muon, MuonConfig, Optimizer, Sgd, SgdConfig,
    SimpleOptimizer,
};
use burn::record::{
    BinBytesRecorder, BinFileRecorder, FullPrecisionSettings, NamedMpkBytesRecorder,
    NamedMpkFileRecorder, Recorder,
};
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn_gradient_release::Either;

use crate::harness::run::RATE;
use crate::harness::weights::readable;
use crate::harness::{Plain, Weights};

type P = Plain;
type Inner = <P as AutodiffBackend>::InnerBackend;
type Model = Linear<P>;
type Adaptor<O> = OptimizerAdaptor<O, Model, P>;
type Records<O> = <Adaptor<O> as Optimizer<Model, P>>::Record;

type Both = Either<Muon<Inner>, AdamW>;
type Three = Either<Sgd<Inner>, Both>;

const STEPS: usize = 10;

fn muon() -> Adaptor<Muon<Inner>> {
    MuonConfig::new().init()
}

fn adam_w() -> Adaptor<AdamW> {
    AdamWConfig::new().with_weight_decay(0.1).init()
}

fn sgd() -> Adaptor<Sgd<Inner>> {
    SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new()))
        .init()
}

fn model() -> Model {
    let device = Default::default();
    let model = LinearConfig::new(4, 3).init(&device);
    // Drawn now: the clone of a parameter that is not yet drawn draws its own numbers.
    let _ = weights(&model);
    model
}

/// The gradients of a step: of the weight, and of the bias.
fn gradients(model: &Model, step: usize) -> [GradientsParams; 2] {
    let x = Tensor::<P, 2>::full([2, 4], 0.3 + step as f64, &Default::default());
    let loss = (model.forward(x) - 1.0).square().mean();
    let mut grads = loss.backward();
    ids(model).map(|id| GradientsParams::from_params(&mut grads, model, &[id]))
}

fn ids(model: &Model) -> [ParamId; 2] {
    [model.weight.id, model.bias.as_ref().expect("has one").id]
}

/// The step of one parameter, as Burn's adaptor does it.
fn step_param<O: SimpleOptimizer<Inner>, const D: usize>(
    optim: &O,
    records: &mut Records<O>,
    param: Param<Tensor<P, D>>,
    mut grads: GradientsParams,
) -> Param<Tensor<P, D>> {
    let grad = grads.remove::<Inner, D>(param.id).expect("has a gradient");
    let id = param.id;
    let record: Option<AdaptorRecord<O, P>> = records.remove(&id);
    let state = record.map(|record| O::to_device(record.into_state::<D>(), &grad.device()));
    let (tensor, state) = optim.step(RATE, param.val().inner(), grad, state);
    records.insert(id, AdaptorRecord::from_state(state.expect("has a state")));
    Param::initialized(id, Tensor::from_inner(tensor).require_grad())
}

/// Steps the weight and the bias with what is given for each.
fn step<O: SimpleOptimizer<Inner>>(
    [of_weight, of_bias]: &[O; 2],
    records: &mut Records<O>,
    model: Model,
    number: usize,
) -> Model {
    let [weight, bias] = gradients(&model, number);
    Linear {
        weight: step_param(of_weight, records, model.weight, weight),
        bias: model
            .bias
            .map(|param| step_param(of_bias, records, param, bias)),
    }
}

fn both() -> [Both; 2] {
    let adam_w = adam_w().optim().clone();
    [Both::Left(muon().optim().clone()), Both::Right(adam_w)]
}

/// Two optimizers of plain Burn, one for the weight and one for the bias.
fn plain_step(
    of_weight: &mut Adaptor<Muon<Inner>>,
    of_bias: &mut Adaptor<AdamW>,
    model: Model,
    number: usize,
) -> Model {
    let [weight, bias] = gradients(&model, number);
    let model = of_weight.step(RATE, model, weight);
    of_bias.step(RATE, model, bias)
}

fn weights(model: &Model) -> Weights {
    Weights::of::<P, _>(model)
}

/// Saves with every recorder of Burn that carries optimizers.
fn carried(records: Records<Both>) -> Vec<Records<Both>> {
    let device = Default::default();
    let bin = BinBytesRecorder::<FullPrecisionSettings>::default();
    let bytes = Recorder::<P>::record(&bin, records.clone(), ()).expect("recorded");
    let from_bin = Recorder::<P>::load(&bin, bytes, &device).expect("loaded");

    let named = NamedMpkBytesRecorder::<FullPrecisionSettings>::default();
    let bytes = Recorder::<P>::record(&named, records.clone(), ()).expect("recorded");
    let from_named = Recorder::<P>::load(&named, bytes, &device).expect("loaded");

    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = NamedMpkFileRecorder::<FullPrecisionSettings>::default();
    let path = folder.path().join("named");
    Recorder::<P>::record(&file, records.clone(), path.clone()).expect("recorded");
    let from_file = Recorder::<P>::load(&file, path, &device).expect("loaded");

    let file = BinFileRecorder::<FullPrecisionSettings>::default();
    let path = folder.path().join("bin");
    Recorder::<P>::record(&file, records, path.clone()).expect("recorded");
    let from_bin_file = Recorder::<P>::load(&file, path, &device).expect("loaded");
    vec![from_bin, from_named, from_file, from_bin_file]
}

#[test]
fn each_steps_as_by_itself() {
    let first = weights(&model());
    let (mut plain, mut muon, mut adam_w) = (model(), muon(), adam_w());
    // The same ids, by which the states are kept.
    let mut given = plain.clone();
    let mut records = Records::<Both>::default();
    for number in 0..STEPS {
        plain = plain_step(&mut muon, &mut adam_w, plain, number);
        given = step(&both(), &mut records, given, number);
        weights(&given).assert_same(&weights(&plain), format!("step {number}"));
        // A state that came from a file is as good as one that was kept.
        if number == STEPS / 2 {
            let state = readable::<P, _>(records.clone());
            for carried in carried(records.clone()) {
                assert_eq!(readable::<P, _>(carried.clone()), state);
                records = carried;
            }
        }
    }
    weights(&given).assert_moved(&first, "ten steps");
}

#[test]
fn checkpoints_pass_to_two_optimizers_of_burn_and_back() {
    let mut model = model();
    let mut records = Records::<Both>::default();
    for number in 0..STEPS {
        model = step(&both(), &mut records, model, number);
    }

    let mut expected = model.clone();
    let mut expected_records = records.clone();
    let (weight, bias) = Either::split_records::<P>(records);
    assert_eq!((weight.len(), bias.len()), (1, 1));
    let mut muon = muon().load_record(weight);
    let mut adam_w = adam_w().load_record(bias);
    for number in STEPS..2 * STEPS {
        model = plain_step(&mut muon, &mut adam_w, model, number);
        expected = step(&both(), &mut expected_records, expected, number);
        weights(&model).assert_same(&weights(&expected), format!("step {number}"));
    }

    let joined = Either::join_records::<P>(muon.to_record(), adam_w.to_record());
    let joined = joined.expect("of different parameters");
    assert_eq!(
        readable::<P, _>(joined.clone()),
        readable::<P, _>(expected_records)
    );
    let mut records = joined;
    for number in 2 * STEPS..3 * STEPS {
        model = step(&both(), &mut records, model, number);
        expected = plain_step(&mut muon, &mut adam_w, expected, number);
        weights(&model).assert_same(&weights(&expected), format!("step {number}"));
    }
}

#[test]
fn nested_for_three_kinds() {
    let three = || {
        let [muon, _] = both();
        [Three::Right(muon), Three::Left(sgd().optim().clone())]
    };
    let (mut plain, mut muon, mut sgd) = (model(), muon(), sgd());
    let mut given = plain.clone();
    let mut records = Records::<Three>::default();
    for number in 0..STEPS {
        let [weight, bias] = gradients(&plain, number);
        plain = muon.step(RATE, plain, weight);
        plain = sgd.step(RATE, plain, bias);
        given = step(&three(), &mut records, given, number);
        weights(&given).assert_same(&weights(&plain), format!("step {number}"));
    }
    let (of_sgd, of_both) = Either::split_records::<P>(records.clone());
    let (of_muon, of_adam_w) = Either::split_records::<P>(of_both.clone());
    assert!(of_adam_w.is_empty());
    assert_eq!(
        readable::<P, _>(of_muon),
        readable::<P, _>(muon.to_record())
    );
    assert_eq!(
        readable::<P, _>(of_sgd.clone()),
        readable::<P, _>(sgd.to_record())
    );
    let joined: Records<Three> = Either::join_records::<P>(of_sgd, of_both).expect("apart");
    assert_eq!(readable::<P, _>(joined), readable::<P, _>(records));
}

#[test]
fn a_parameter_in_both_records_is_refused() {
    let mut records = Records::<Both>::default();
    let model = step(&both(), &mut records, model(), 0);
    let (weight, _) = Either::split_records::<P>(records);
    let mut other = adam_w();
    let [of_weight, _] = gradients(&model, 1);
    let _ = other.step(RATE, model.clone(), of_weight);
    let joined = Either::join_records::<P>(weight, other.to_record());
    let error = joined.map(drop).expect_err("refused");
    assert_eq!(error.param, model.weight.id);
    assert!(error.to_string().contains(&model.weight.id.to_string()));
}

/// A state is never dropped without a word.
#[test]
#[should_panic(
    expected = "a parameter of shape [3] is to be stepped by the optimizer `Either::Left`, but its \
                state is of the optimizer `Either::Right`"
)]
fn a_state_of_the_other_kind() {
    type TwoSgd = Either<Sgd<Inner>, Sgd<Inner>>;
    let sgd = sgd().optim().clone();
    let [left, right] = [TwoSgd::Left(sgd.clone()), TwoSgd::Right(sgd)];
    let mut records = Records::<TwoSgd>::default();
    let model = step(&[left.clone(), right], &mut records, model(), 0);
    let _ = step(&[left.clone(), left], &mut records, model, 1);
}
