//! Gradients that are no numbers.

use crate::harness::prelude::*;

type Adam = ReleaseOptimizer<burn::optim::Adam, MlpModel<R>, R>;

const LAYERS: usize = 3;
const ARMED: usize = 2 * LAYERS;

fn optim() -> Adam {
    AdamConfig::new().init().with_gradient_release()
}

/// The loss, with a gradient that is no number in the weight of one layer, and in no other.
fn planted(model: &MlpModel<R>, layer: usize, factor: f64) -> Tensor<R, 1> {
    let nan = model.layers[layer].weight.val().sum() * factor;
    Mlp::loss::<R>(model, Size::Small, 0) + nan
}

fn path(layer: usize) -> String {
    format!("layers.{layer}.weight")
}

#[test]
fn in_one_pass_nothing_is_stepped_after_it() {
    let start = Start::new::<Mlp>(Size::Small);
    for (layer, factor) in (0..LAYERS).flat_map(|layer| [(layer, f64::NAN), (layer, f64::INFINITY)])
    {
        let mut optim = optim().with_non_finite_stop();
        let mut model = start.model::<Mlp, R>();
        let before = Weights::of(&model);
        model = optim.arm(RATE, model);
        let grads = gradients(&model, planted(&model, layer, factor));
        let refused = optim.try_step(RATE, model, grads).unwrap_err();
        let ReleaseError::NonFinite {
            path: found,
            stepped,
            armed,
        } = refused.error().clone()
        else {
            panic!("{:?}", refused.error());
        };
        // Backward comes from the last layer; the bias of a layer has its gradient before the
        // weight or right after it.
        assert_eq!((found, armed), (path(layer), ARMED));
        let after = LAYERS - 1 - layer;
        let expected = 2 * after..=2 * after + 1;
        assert!(expected.contains(&stepped), "{stepped} were stepped");
        let (model, _) = refused.into_given();
        let changed = Weights::of(&model).changed(&before);
        assert_eq!(changed, stepped, "what was stepped, and no more");

        if stepped > 0 {
            let error = optim.try_arm(RATE, model).unwrap_err();
            let text = error.error().to_string();
            assert!(text.contains("load the last checkpoint"), "{text}");
        } else {
            // Nothing has happened: another batch can follow.
            let model = optim.disarm(model);
            let loss = |model: &_| Mlp::loss::<R>(model, Size::Small, 1);
            let model = armed_step(RATE, model, &mut optim, loss);
            Weights::of(&model).assert_moved(&before, "after the refusal");
        }
    }
}

/// The sum of earlier micro-batches is looked at before the step, too.
#[test]
fn sums_are_looked_at() {
    let vector = |_| Param::from_tensor(Tensor::<R, 1>::zeros([3], &Default::default()));
    let mut v: Vec<_> = (0..2).map(vector).collect();
    let sgd = SgdConfig::new().init::<R, Vec<Param<Tensor<R, 1>>>>();
    let mut optim = sgd.with_gradient_release().with_non_finite_stop();
    let sums = |v: &Vec<Param<Tensor<R, 1>>>| {
        let loss = v[0].val().sum() + v[1].val().sum() * f64::NAN;
        GradientsParams::from_grads(loss.backward(), v)
    };
    let mut accumulator = ReleaseAccumulator::new();
    v = accumulator.arm(v);
    accumulator.accumulate(&v, sums(&v));
    v = optim.arm_accumulated(RATE, v, accumulator.grads());
    let grads = GradientsParams::from_grads(v[0].val().sum().backward(), &v);
    refused!(optim.try_step(RATE, v, grads),
        ReleaseError::NonFinite { path, stepped: 1, armed: 2 } if path == "1");

    // Where nothing was stepped, the next batch is not armed over the loss of the sums.
    v = (0..2).map(vector).collect();
    let sgd = SgdConfig::new().init().with_gradient_release();
    let mut optim = sgd.with_non_finite_stop();
    let mut given = sums(&v);
    v = optim.arm_accumulated(RATE, v, std::mem::take(&mut given));
    drop((v[0].val().sum() * f64::NAN).backward());
    (v, _) = refused!(optim.try_arm(RATE, v),
        ReleaseError::NonFinite { path, stepped: 0, armed: 2 } if path == "0");
    (v, _) = refused!(optim.try_arm_to_measure(v, given),
        ReleaseError::NonFinite { path, stepped: 0, armed: 2 } if path == "0");
    v = optim.disarm(v);
    v = armed_step(RATE, v, &mut optim, |v| v[0].val().sum());
    let expected = TensorData::from([-RATE as f32; 3]);
    v[0].val().into_data().assert_eq(&expected, true);
}

/// Clipping by the global norm has no coefficient for it, so that it is refused there without being
/// asked to.
#[test]
fn in_two_passes_and_ordinary_steps_nothing_is_stepped_at_all() {
    let start = Start::new::<Mlp>(Size::Small);
    let rows = [(true, false), (true, true), (false, true)];
    for (layer, (stops, clips)) in (0..LAYERS).flat_map(|layer| rows.map(|row| (layer, row))) {
        let mut optim = optim();
        if stops {
            optim = optim.with_non_finite_stop();
        }
        if clips {
            optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 });
        }
        let model = start.model::<Mlp, R>();
        let before = Weights::of(&model);
        let bad = |model: &_| planted(model, layer, f64::NAN);
        let stepped = optim.try_two_passes(RATE, model, GradientsParams::new(), bad);
        let (mut model, _) = refused!(stepped,
            ReleaseError::NonFinite { path: found, stepped: 0, armed: ARMED }
                if *found == path(layer));
        Weights::of(&model).assert_same(&before, "two passes");

        if stops {
            let grads = gradients(&model, bad(&model));
            let refused = optim.try_step(RATE, model, grads).unwrap_err();
            let text = refused.error().to_string();
            let expected = format!("the gradient of {} is not", path(layer));
            assert!(text.starts_with(&expected), "{text}");
            assert!(!text.contains("disarm"), "nothing is armed: {text}");
            let (given, grads) = refused.into_given();
            assert!(!grads.is_empty());
            Weights::of(&given).assert_same(&before, "ordinary");
            model = given;
        }
        let good = |model: &_| Mlp::loss::<R>(model, Size::Small, 0);
        let (model, _) = optim.two_passes(RATE, model, good);
        Weights::of(&model).assert_moved(&before, "after the refusals");
    }
}

/// Plain Burn's weights, where nothing is wrong; with recomputed activations, too.
#[test]
fn looking_changes_nothing() {
    type S = Transformer;
    let start = Start::new::<S>(Size::Small);
    let recipe = AdamConfig::new();
    let plain = run::plain::<S, _, P>(&start, &recipe, 5);
    for recompute in [Recompute::None, Recompute::Automatic] {
        let optim = recipe.init::<R, _>().with_gradient_release();
        let optim = optim.with_recompute(recompute);
        let mut optim = optim.with_non_finite_stop().with_grad_norm();
        let model = start.model::<S, R>();
        let parameters = trainable::<R, _>(&model);
        let loss = |model: &_, step| S::loss::<R>(model, Size::Small, step);
        let (given, reports) = run::armed(model, &mut optim, 5, &loss);
        assert_same_steps(&given.steps, &plain.steps, format!("{recompute:?}"));
        assert_run_released(&reports, parameters);
        assert!(reports.iter().all(|report| report.grad_norm().is_some()));
    }
    let model = Start::new::<Mlp>(Size::Small).model::<Mlp, R>();
    let mut optim = optim();
    armed_step(RATE, model, &mut optim, |model| planted(model, 0, 1.0));
    let norm = optim.last_step().unwrap().grad_norm();
    assert_eq!(norm, None, "nobody has asked for it");
}

/// Not a finite weight, but a finite gradient: that is not what is looked for.
#[test]
fn weights_are_not_looked_at() {
    let nan = Tensor::<R, 1>::full([3], f32::NAN, &Default::default());
    let optim = AdamConfig::new().init().with_gradient_release();
    let mut optim = optim.with_non_finite_stop();
    let model = vec![Param::from_tensor(nan)];
    armed_step(RATE, model, &mut optim, |model| model[0].val().sum());
    assert_eq!(optim.last_step().unwrap().count(Outcome::Released), 1);
}
