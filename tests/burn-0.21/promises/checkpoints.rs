//! Checkpoints pass freely between plain Burn and release, both ways, by every recorder of Burn;
//! and so do those of recorded optimizers and of optimizers in one pass.

use burn::module::list_param_ids;
use burn_gradient_release::ReleaseBackend;
use burn_gradient_release_optim::{InOnePass, Lean};
use burn_gradient_release_timeline::{RecordSteps, Recorded};
use serde_json::Value;

use crate::harness::prelude::*;
use crate::harness::weights::through_recorders;

type OnRecord = Plain<Recorded<Flex>>;
type Model<B> = MlpModel<B>;

/// Steps before the checkpoint, and all.
const BEFORE: u64 = 4;
const STEPS: u64 = 10;

/// A new optimizer, and how it takes a step.
struct Side<B: AutodiffBackend, O> {
    fresh: fn() -> O,
    step: fn(&mut O, Model<B>, u64) -> Model<B>,
}

fn loss<B: AutodiffBackend>(model: &Model<B>, step: u64) -> Tensor<B, 1> {
    Mlp::loss::<B>(model, Size::Small, step)
}

fn ordinary<B: AutodiffBackend, O: Optimizer<Model<B>, B>>(fresh: fn() -> O) -> Side<B, O> {
    Side {
        fresh,
        step: |optim, model, step| {
            let loss = loss(&model, step);
            ordinary_step(RATE, model, optim, loss)
        },
    }
}

fn armed<B: ReleaseBackend, O: SimpleOptimizer<B::InnerBackend> + 'static>(
    fresh: fn() -> ReleaseOptimizer<O, Model<B>, B>,
) -> Side<B, ReleaseOptimizer<O, Model<B>, B>> {
    Side {
        fresh,
        step: |optim, model, step| armed_step(RATE, model, optim, |model| loss(model, step)),
    }
}

/// Plain Burn's run without interruption.
struct Reference {
    start: Start,
    /// After each step.
    weights: Vec<Weights>,
    states: Vec<Value>,
}

impl Reference {
    fn new() -> Self {
        let start = Start::new::<Mlp>(Size::Small);
        let mut model = start.model::<Mlp, P>();
        let mut optim = AdamConfig::new().init();
        let (mut weights, mut states) = (Vec::new(), Vec::new());
        for step in 0..STEPS {
            let loss = loss(&model, step);
            model = ordinary_step(RATE, model, &mut optim, loss);
            weights.push(Weights::of(&model));
            states.push(readable::<P, _>(Optimizer::<_, P>::to_record(&optim)));
        }
        Self {
            start,
            weights,
            states,
        }
    }

    /// Trains on one side, hands the checkpoint to the other, and compares.
    fn hand_over<A, From, B, To>(&self, from: &Side<A, From>, to: &Side<B, To>)
    where
        A: AutodiffBackend,
        From: Optimizer<Model<A>, A>,
        B: AutodiffBackend,
        To: Optimizer<Model<B>, B>,
    {
        let mut model = self.start.model::<Mlp, A>();
        let mut optim = (from.fresh)();
        for step in 0..BEFORE {
            model = (from.step)(&mut optim, model, step);
        }
        let ids = list_param_ids(&model);
        let state = readable::<A, _>(optim.to_record());
        assert_eq!(state, self.states[BEFORE as usize - 1]);

        let models = through_recorders::<A, B, _, _>(|| model.clone().into_record());
        let optims = through_recorders::<A, B, _, To::Record>(|| optim.to_record());
        for (recorder, (model, optim)) in models.into_iter().zip(optims).enumerate() {
            let context = format!("recorder {recorder}");
            // Into a model of its own, whose ids come from the record.
            let fresh = Start::new::<Mlp>(Size::Small).model::<Mlp, B>();
            let mut model = fresh.load_record(model);
            assert_eq!(list_param_ids(&model), ids, "{context}");
            let mut optim = (to.fresh)().load_record(optim);
            let carried = readable::<B, _>(optim.to_record());
            assert_eq!(carried, state, "{context}: carried without loss");
            for step in BEFORE..STEPS {
                model = (to.step)(&mut optim, model, step);
                let context = format!("{context}, after step {step}");
                let (weights, state) = (&self.weights[step as usize], &self.states[step as usize]);
                Weights::of(&model).assert_same(weights, &context);
                assert_eq!(readable::<B, _>(optim.to_record()), *state, "{context}");
            }
        }
    }
}

#[test]
fn by_every_recorder() {
    let reference = Reference::new();
    let plain = ordinary::<P, _>(|| AdamConfig::new().init());
    let release = armed::<R, _>(|| AdamConfig::new().init().with_gradient_release());
    reference.hand_over(&plain, &release);
    reference.hand_over(&release, &plain);
    reference.hand_over(&release, &release);
    let on_record = ordinary::<OnRecord, _>(|| AdamConfig::new().init().recorded());
    reference.hand_over(&plain, &on_record);
    reference.hand_over(&on_record, &plain);
    let in_one_pass = armed::<R, _>(|| {
        AdamConfig::new()
            .in_one_pass()
            .init()
            .with_gradient_release()
    });
    reference.hand_over(&plain, &in_one_pass);
    reference.hand_over(&in_one_pass, &plain);
}
