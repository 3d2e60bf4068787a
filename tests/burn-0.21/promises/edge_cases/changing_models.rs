//! Models whose parameters change between steps: frozen, unfrozen, added.

use burn::nn::Linear;
use burn::optim::AdamConfig;
use burn::tensor::backend::AutodiffBackend;

use super::{Mlp, MlpModel, P, R, RATE, Start, adam, armed_step, loss, start, weights};
use crate::harness::Weights;
use crate::harness::run::{assert_all_released, ordinary_step, trainable};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    /// The first layer is frozen in three steps of nine.
    Freeze,
    /// A layer of other weights is added before every second step.
    Add,
}

impl Change {
    fn before<B: AutodiffBackend>(
        self,
        step: u64,
        mut model: MlpModel<B>,
        other: &Start,
    ) -> MlpModel<B> {
        match self {
            Self::Freeze if step.is_multiple_of(3) => {
                let first = model.layers.remove(0);
                let is_trained = step != 3;
                let first = Linear {
                    weight: first.weight.set_require_grad(is_trained),
                    bias: first.bias.map(|bias| bias.set_require_grad(is_trained)),
                };
                model.layers.insert(0, first);
            }
            Self::Add if step % 2 == 1 && step < 6 => {
                let mut layers = other.model::<Mlp, B>().layers;
                model.layers.push(layers.swap_remove(step as usize / 2));
            }
            _ => {}
        }
        model
    }
}

#[test]
fn layers_are_frozen_unfrozen_and_added_between_steps() {
    for change in [Change::Freeze, Change::Add] {
        // Layers that are added have the same ids on both backends.
        let (start, other) = (start::<Mlp>(), start::<Mlp>());
        let mut plain = start.model::<Mlp, P>();
        let mut plain_optim = AdamConfig::new().init();
        let mut model = start.model::<Mlp, R>();
        let mut optim = adam();
        for step in 0..9 {
            plain = change.before(step, plain, &other);
            model = change.before(step, model, &other);
            let before = Weights::of::<R, _>(&model.layers[0]);
            plain = ordinary_step(RATE, plain.clone(), &mut plain_optim, loss(&plain, step));
            model = armed_step(&mut optim, model, step);

            let context = format!("{change:?}, step {step}");
            weights(&model).assert_same(&Weights::of::<P, _>(&plain), &context);
            let report = optim.last_step().expect("a step was taken");
            assert_all_released(&report, trainable::<R, _>(&model));
            let is_frozen = change == Change::Freeze && (3..6).contains(&step);
            let after = Weights::of::<R, _>(&model.layers[0]);
            assert_eq!(after.same(&before), is_frozen, "{context}");
        }
    }
}
