//! Several kinds of optimizer as one: what each steps is what it steps in plain Burn by itself, and
//! the one record passes to those of plain Burn.

use burn::optim::{AdamW, Muon, MuonConfig};
use burn::record::Record;
use burn_gradient_release::Either;

use super::parts::{adamw, part};
use crate::harness::prelude::*;
use crate::harness::weights::through_recorders;

type Model = MlpModel<P>;
type Adaptor<O> = OptimizerAdaptor<O, Model, P>;

type Both = Either<Muon<Flex>, AdamW>;
/// For three kinds, nested.
type Three = Either<Sgd<Flex>, Both>;
type Released = ReleaseOptimizer<Three, MlpModel<R>, R>;
type States = <Released as Optimizer<MlpModel<R>, R>>::Record;

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
        let mut grads = gradients(&model, Mlp::loss::<P>(&model, Size::Small, step));
        let mut of = |text| part(&model, &mut grads, &[text]);
        let (last, matrices) = (of("layers.2."), of("weight"));
        let model = self.sgd.step(RATE, model, last);
        let model = self.muon.step(RATE, model, matrices);
        self.adamw.step(RATE, model, grads)
    }
}

/// A record as another backend reads it.
fn carry<A: Backend, B: Backend, Y: Record<B>>(record: impl Record<A> + Clone) -> Y {
    let [carried, ..] = through_recorders::<A, B, _, Y>(|| record.clone());
    carried
}

#[test]
fn each_kind_steps_as_by_itself_and_its_checkpoint_passes_to_plain_burn() {
    let start = Start::new::<Mlp>(Size::Small);
    let (mut plain, mut by_hand) = (start.model::<Mlp, P>(), ByHand::new());
    let (mut model, mut optim) = (start.model::<Mlp, R>(), released());
    for step in 0..20 {
        match step {
            // A state that came from a file is as good as one that was kept.
            5 => {
                let record = optim.to_record();
                for carried in through_recorders::<R, R, _, States>(|| record.clone()) {
                    let state = readable::<R, _>(record.clone());
                    assert_eq!(readable::<R, _>(carried.clone()), state);
                    optim = released().load_record(carried);
                }
            }
            // To three optimizers of plain Burn, each with the states of its own kind.
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
            _ => {}
        }
        plain = by_hand.step(plain, step);
        let loss = |model: &_| Mlp::loss::<R>(model, Size::Small, step);
        model = armed_step(RATE, model, &mut optim, loss);
        Weights::of(&model).assert_same(&Weights::of(&plain), step);
    }
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
