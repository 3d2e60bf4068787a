//! Several kinds of optimizer as one: what each steps is what it steps in plain Burn by itself, and
//! the one record passes to those of plain Burn and back.

use burn::backend::Flex;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdamW, GradientsParams, Muon, MuonConfig, Optimizer, Sgd, SgdConfig, SimpleOptimizer,
};
use burn::record::{
    BinBytesRecorder, BinFileRecorder, FullPrecisionSettings, NamedMpkBytesRecorder,
    NamedMpkFileRecorder, Record, Recorder,
};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_gradient_release::{Either, GroupOptions, ParamGroup, ReleaseOptimizer};

use super::parts::{adamw, having, part};
use crate::harness::models::{Mlp, MlpModel, Scenario, Size};
use crate::harness::run::{RATE, Start, armed_step};
use crate::harness::weights::readable;
use crate::harness::{Plain as P, Release as R, Weights};

type Model = MlpModel<P>;
type Adaptor<O> = OptimizerAdaptor<O, Model, P>;

type Both = Either<Muon<Flex>, AdamW>;
/// For three kinds, nested.
type Three = Either<Sgd<Flex>, Both>;
type Released = ReleaseOptimizer<Three, MlpModel<R>, R>;

fn sgd() -> Adaptor<Sgd<Flex>> {
    let momentum = MomentumConfig::new();
    SgdConfig::new().with_momentum(Some(momentum)).init()
}

/// Muon for matrices, but SGD for the last layer, and AdamW for the rest.
fn released() -> Released {
    let group = |text, optim| {
        let options = GroupOptions::new().with_simple_optimizer(optim);
        (ParamGroup::from_predicate(text), options)
    };
    let muon = MuonConfig::new().init::<P, Model>().optim().clone();
    let (matrices, muon) = group("weight", Three::Right(Both::Left(muon)));
    let (last, sgd) = group("layers.2.", Three::Left(sgd().optim().clone()));
    let rest = Both::Right(adamw::<P, Model>(0.1).optim().clone());
    Released::from(Three::Right(rest))
        .with_group(matrices, muon)
        .with_group(last, sgd)
}

/// The same with three optimizers of plain Burn.
struct ByHand {
    sgd: Adaptor<Sgd<Flex>>,
    muon: Adaptor<Muon<Flex>>,
    adamw: Adaptor<AdamW>,
}

impl ByHand {
    fn new() -> Self {
        Self {
            sgd: sgd(),
            muon: MuonConfig::new().init(),
            adamw: adamw(0.1),
        }
    }

    fn step(&mut self, model: Model, step: u64) -> Model {
        let loss = Mlp::loss::<P>(&model, Size::Small, step);
        let mut grads = GradientsParams::from_grads(loss.backward(), &model);
        let mut of = |text| part(&model, &mut grads, &having::<P, _>(&model, &[text]));
        let (last, matrices) = (of("layers.2."), of("weight"));
        let model = self.sgd.step(RATE, model, last);
        let model = self.muon.step(RATE, model, matrices);
        self.adamw.step(RATE, model, grads)
    }
}

/// A record as another backend reads it.
fn carry<A: Backend, B: Backend, Y: Record<B>>(record: impl Record<A>) -> Y {
    let bytes = BinBytesRecorder::<FullPrecisionSettings>::default();
    let saved = Recorder::<A>::record(&bytes, record, ()).expect("recorded");
    Recorder::<B>::load(&bytes, saved, &Default::default()).expect("loaded")
}

/// Through every recorder of Burn that carries optimizers.
fn carried<X: Record<R> + Clone>(record: &X) -> Vec<X> {
    let folder = tempfile::tempdir().expect("a temporary directory");
    macro_rules! through {
        ($recorder:ident, $args:expr) => {{
            let recorder = $recorder::<FullPrecisionSettings>::default();
            let saved = Recorder::<R>::record(&recorder, record.clone(), $args).expect("recorded");
            (recorder, saved)
        }};
    }
    let device = Default::default();
    let (bin, bytes) = through!(BinBytesRecorder, ());
    let from_bin = Recorder::<R>::load(&bin, bytes, &device);
    let (named, bytes) = through!(NamedMpkBytesRecorder, ());
    let from_named = Recorder::<R>::load(&named, bytes, &device);
    let (bin, ()) = through!(BinFileRecorder, folder.path().join("bin"));
    let from_bin_file = Recorder::<R>::load(&bin, folder.path().join("bin"), &device);
    let (named, ()) = through!(NamedMpkFileRecorder, folder.path().join("named"));
    let from_named_file = Recorder::<R>::load(&named, folder.path().join("named"), &device);
    [from_bin, from_named, from_bin_file, from_named_file]
        .map(|record| record.expect("loaded"))
        .into()
}

#[test]
fn each_kind_steps_as_by_itself_and_checkpoints_pass_both_ways() {
    let start = Start::new::<Mlp>(Size::Small);
    let (mut plain, mut by_hand) = (start.model::<Mlp, P>(), ByHand::new());
    let (mut model, mut optim) = (start.model::<Mlp, R>(), released());
    for step in 0..20 {
        match step {
            // A state that came from a file is as good as one that was kept.
            5 => {
                let record = optim.to_record();
                for carried in carried(&record) {
                    let state = readable::<R, _>(record.clone());
                    assert_eq!(readable::<R, _>(carried.clone()), state);
                    optim = released().load_record(carried);
                }
            }
            // To three optimizers of plain Burn, each with the states of its own kind,
            10 => {
                let (sgd, both) = Either::split_records::<R>(optim.to_record());
                let (muon, adamw) = Either::split_records::<R>(both);
                assert_eq!((sgd.len(), muon.len(), adamw.len()), (2, 2, 2));
                let ByHand {
                    sgd: to_sgd,
                    muon: to_muon,
                    adamw: to_adamw,
                } = ByHand::new();
                by_hand = ByHand {
                    sgd: to_sgd.load_record(carry::<R, P, _>(sgd)),
                    muon: to_muon.load_record(carry::<R, P, _>(muon)),
                    adamw: to_adamw.load_record(carry::<R, P, _>(adamw)),
                };
            }
            // and back.
            15 => {
                let ByHand { sgd, muon, adamw } = &by_hand;
                let both = Either::join_records::<P>(muon.to_record(), adamw.to_record());
                let both = both.expect("of different parameters");
                let three = Either::join_records::<P>(sgd.to_record(), both);
                let three = three.expect("of different parameters");
                let state = readable::<P, _>(three.clone());
                assert_eq!(state, readable::<R, _>(optim.to_record()));
                optim = released().load_record(carry::<P, R, _>(three));
            }
            _ => {}
        }
        plain = by_hand.step(plain, step);
        let loss = |model: &_| Mlp::loss::<R>(model, Size::Small, step);
        model = armed_step(RATE, model, &mut optim, loss);
        Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), step);
    }
}

#[test]
fn a_parameter_in_both_records_is_refused() {
    let model = Start::new::<Mlp>(Size::Small).model::<Mlp, P>();
    let weight = model.layers[0].weight.id;
    let grads = || {
        let mut grads = Mlp::loss::<P>(&model, Size::Small, 0).backward();
        GradientsParams::from_params(&mut grads, &model, &[weight])
    };
    let ByHand {
        mut muon,
        mut adamw,
        ..
    } = ByHand::new();
    muon.step(RATE, model.clone(), grads());
    adamw.step(RATE, model.clone(), grads());
    let joined = Either::join_records::<P>(muon.to_record(), adamw.to_record());
    let error = joined.map(drop).expect_err("refused");
    assert_eq!(error.param, weight);
    assert!(error.to_string().contains(&weight.to_string()));
}

/// A state is never dropped without a word.
#[test]
#[should_panic(
    expected = "a parameter of shape [3] is to be stepped by the optimizer `Either::Left`, but its \
                state is of the optimizer `Either::Right`"
)]
fn a_state_of_the_other_kind() {
    type TwoSgd = Either<Sgd<Flex>, Sgd<Flex>>;
    let sgd = sgd().optim().clone();
    let [left, right] = [TwoSgd::Left(sgd.clone()), TwoSgd::Right(sgd)];
    let ones = || Tensor::<Flex, 1>::ones([3], &Default::default());
    let (_, state) = right.step(RATE, ones(), ones(), None);
    let _ = left.step(RATE, ones(), ones(), state);
}
