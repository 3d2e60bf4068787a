//! Wrong orders of calls: refused with an error that says so, and with the model handed back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{
    AdamConfig, GradientsParams, LearningRate, Optimizer, Sgd, SgdConfig, SgdState, SimpleOptimizer,
};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn::tensor::ops::Device;
use burn_gradient_release::{
    Recompute, Refused, ReleaseError, ReleaseOptimizer, WithGradientRelease,
};

use super::{
    Bench, Inner, Model, P, PARAMETERS, R, armed_step, bench, gradients, loss, start, weights,
};
use crate::harness::models::Mlp;
use crate::harness::run::{self, RATE};
use crate::harness::{Hooked, Weights, noise};

/// The model and the error of a call that has to be refused.
#[track_caller]
fn refused<M: Module<R>, G>(result: Result<M, Refused<M, G>>) -> (M, ReleaseError) {
    match result {
        Ok(_) => panic!("should have been refused"),
        Err(refused) => {
            let said = refused.to_string();
            assert_eq!(said, refused.error().to_string());
            refused.into_parts()
        }
    }
}

#[test]
fn a_second_backward_is_refused() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(1);
    let model = optim.arm(RATE, model);
    let (first, second) = (loss(&model, 0), loss(&model, 1));
    let _ = first.backward();
    let grads = GradientsParams::from_grads(second.backward(), &model);

    let (model, error) = refused(optim.try_step(RATE, model, grads));
    assert!(
        matches!(error, ReleaseError::AlreadyStepped { .. }),
        "{error:?}"
    );
    assert_eq!(Weights::of::<R, _>(&model).len(), PARAMETERS);
    weights(&model).assert_same(&expected.steps[0], "stepped once, by the first backward");
}

#[test]
fn another_rate_than_the_armed_one_is_refused() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(2);
    let model = optim.arm(RATE, model);
    let grads = gradients(&model, 0);
    let (model, error) = refused(optim.try_step(2.0 * RATE, model, grads));
    assert!(
        matches!(error, ReleaseError::LearningRate { armed, given }
            if armed == RATE && given == 2.0 * RATE),
        "{error:?}"
    );
    // Nothing is lost: the step can be finished at the rate it was made with.
    let model = optim.step(RATE, model, GradientsParams::new());
    weights(&model).assert_same(&expected.steps[0], "finished after a refusal");
    let model = armed_step(&mut optim, model, 1);
    weights(&model).assert_same(&expected.steps[1], "the step after");
}

#[test]
fn the_panicking_twin_says_the_same() {
    let Bench {
        model, mut optim, ..
    } = bench(1);
    let model = optim.arm(RATE, model);
    let grads = gradients(&model, 0);
    let caught = catch_unwind(AssertUnwindSafe(|| optim.step(2.0 * RATE, model, grads)));
    let payload = caught.expect_err("step panics where try_step refuses");
    let text = payload
        .downcast_ref::<String>()
        .expect("panics with a text");
    let expected = ReleaseError::LearningRate {
        armed: RATE,
        given: 2.0 * RATE,
    }
    .to_string();
    assert!(
        text.contains(&expected),
        "{text:?} does not contain {expected:?}"
    );
}

/// Loops that clone the model for `step` get the stepped weights; the original, which would be
/// neither old nor new, says so when it is read.
#[test]
fn a_copy_of_the_armed_model_may_finish_the_step() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(2);
    let model = optim.arm(RATE, model);
    let copy = model.clone();
    let grads = gradients(&model, 0);
    let copy = optim.step(RATE, copy, grads);
    weights(&copy).assert_same(&expected.steps[0], "the copy");
    let caught = catch_unwind(AssertUnwindSafe(|| weights(&model)));
    assert!(
        caught.is_err(),
        "the original is given up, not silently old"
    );
    let copy = armed_step(&mut optim, copy, 1);
    weights(&copy).assert_same(&expected.steps[1], "the copy goes on");
}

#[test]
fn an_unrelated_model_is_refused() {
    let Bench {
        model, mut optim, ..
    } = bench(1);
    let model = optim.arm(RATE, model);
    let grads = gradients(&model, 0);
    let other = start::<Mlp>().model::<Mlp, R>();
    let (_, error) = refused(optim.try_step(RATE, other, grads));
    assert!(
        matches!(error, ReleaseError::WrongModel { .. }),
        "{error:?}"
    );
    drop(model);
}

#[test]
fn arming_twice_without_backward_is_fine() {
    let Bench {
        mut model,
        mut optim,
        expected,
    } = bench(3);
    for step in 0..3 {
        model = optim.arm(RATE, model);
        assert!(optim.is_armed());
        model = armed_step(&mut optim, model, step);
        assert!(!optim.is_armed());
        weights(&model).assert_same(&expected.steps[step as usize], step);
    }
}

#[test]
fn arming_again_takes_the_new_rate() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(1);
    let model = optim.arm(5.0 * RATE, model);
    let model = armed_step(&mut optim, model, 0);
    weights(&model).assert_same(&expected.steps[0], "the second rate counts");
    assert_eq!(
        optim.last_step().expect("a step was taken").learning_rate(),
        RATE
    );
}

/// A model between its backward and its step.
fn half_way() -> (Bench, GradientsParams) {
    let mut bench = bench(2);
    bench.model = bench.optim.arm(RATE, bench.model);
    let grads = gradients(&bench.model, 0);
    (bench, grads)
}

#[track_caller]
fn assert_unfinished(error: &ReleaseError) {
    assert!(
        matches!(error, ReleaseError::Unfinished { stepped, armed }
            if (*stepped, *armed) == (PARAMETERS, PARAMETERS)),
        "{error:?}"
    );
}

#[test]
fn arming_between_backward_and_step_is_refused() {
    let (mut bench, grads) = half_way();
    let (model, error) = refused(bench.optim.try_arm(RATE, bench.model));
    assert_unfinished(&error);
    let model = bench.optim.step(RATE, model, grads);
    weights(&model).assert_same(&bench.expected.steps[0], "the step still finishes");
}

#[test]
fn disarming_between_backward_and_step_is_refused() {
    let (mut bench, grads) = half_way();
    let (model, error) = refused(bench.optim.try_disarm(bench.model));
    assert_unfinished(&error);
    let model = bench.optim.step(RATE, model, grads);
    weights(&model).assert_same(&bench.expected.steps[0], "the step still finishes");
}

#[test]
fn a_record_between_backward_and_step_is_refused() {
    let (mut bench, grads) = half_way();
    assert_unfinished(&bench.optim.try_to_record().err().expect("refused"));
    bench.model = bench.optim.step(RATE, bench.model, grads);
    assert_eq!(bench.optim.to_record().len(), PARAMETERS);
}

#[test]
fn removal_between_backward_and_step_is_refused() {
    let (bench, _) = half_way();
    assert_unfinished(&bench.optim.try_into_adaptor().err().expect("refused"));
}

/// Two parameters with one id, as cloning a `Param` makes them.
#[derive(Module, Debug)]
struct Twins<B: Backend> {
    one: Param<Tensor<B, 2>>,
    two: Param<Tensor<B, 2>>,
}

#[test]
fn two_parameters_with_one_id_are_refused() {
    let one: Param<Tensor<R, 2>> = Param::from_tensor(noise(1, [2, 2], &Default::default()));
    let shared: ParamId = one.id;
    let twins = Twins {
        two: one.clone(),
        one,
    };
    let before = Weights::of::<R, _>(&twins);
    let mut optim: ReleaseOptimizer<_, Twins<R>, R> =
        AdamConfig::new().init().with_gradient_release();
    let (twins, error) = refused(optim.try_arm(RATE, twins));
    assert!(
        matches!(error, ReleaseError::DuplicateParam { param } if param == shared),
        "{error:?}"
    );
    Weights::of::<R, _>(&twins).assert_same(&before, "handed back as it was");
    assert!(!optim.is_armed());
}

/// Fails at the fourth of six parameters.
fn interrupted() -> (Model, ReleaseOptimizer<Hooked, Model, R>, run::Trajectory) {
    let start = start::<Mlp>();
    let expected = run::plain::<Mlp, _, P>(&start, &AdamConfig::new(), 2);
    let mut optim: ReleaseOptimizer<_, Model, R> =
        OptimizerAdaptor::from(Hooked::failing_at(4)).with_gradient_release();
    let model = optim.arm(RATE, start.model::<Mlp, R>());
    let caught = catch_unwind(AssertUnwindSafe(|| loss(&model, 0).backward()));
    assert!(caught.is_err(), "the failure is not swallowed");
    (model, optim, expected)
}

#[track_caller]
fn assert_interrupted(error: &ReleaseError) {
    assert!(
        matches!(
            error,
            ReleaseError::Interrupted {
                stepped: 3,
                armed: PARAMETERS
            }
        ),
        "{error:?}"
    );
    assert!(
        error.to_string().contains("checkpoint"),
        "names the way back: {error}"
    );
}

#[test]
fn a_panic_half_way_is_told_at_the_next_step() {
    let (model, mut optim, expected) = interrupted();
    let (model, error) = refused(optim.try_step(RATE, model, GradientsParams::new()));
    assert_interrupted(&error);
    // Last to first: the last layer and the bias below are new, the weight below was lost.
    let after = &expected.steps[0];
    let last = Weights::of::<R, _>(&model.layers[2]);
    assert!(last.distance_within(after, 4) == 0.0, "stepped");
    let first = Weights::of::<R, _>(&model.layers[0]);
    assert!(
        first.distance_within(&expected.first, 0) == 0.0,
        "not stepped"
    );
    let lost = catch_unwind(AssertUnwindSafe(|| weights(&model))).expect_err("one value is lost");
    let text = lost.downcast_ref::<String>().expect("panics with a text");
    assert!(text.contains("checkpoint"), "{text}");
}

#[test]
fn a_panic_half_way_is_told_at_the_next_arming() {
    let (model, mut optim, _) = interrupted();
    let (_, error) = refused(optim.try_arm(RATE, model));
    assert_interrupted(&error);
}

#[test]
fn a_panic_half_way_is_told_when_a_record_is_asked_for() {
    let (_, optim, _) = interrupted();
    assert_interrupted(&optim.try_to_record().err().expect("refused"));
}

#[test]
fn a_panic_inside_an_ordinary_step_is_told_too() {
    let start = start::<Mlp>();
    let model = start.model::<Mlp, R>();
    let mut optim: ReleaseOptimizer<_, Model, R> =
        OptimizerAdaptor::from(Hooked::failing_at(4)).with_gradient_release();
    let grads = gradients(&model, 0);
    let caught = catch_unwind(AssertUnwindSafe(|| optim.step(RATE, model, grads)));
    assert!(caught.is_err(), "the failure is not swallowed");
    let error = optim.try_to_record().err().expect("the states are mixed");
    assert!(
        matches!(error, ReleaseError::Interrupted { .. }),
        "{error:?}"
    );
}

#[test]
fn a_checkpoint_is_the_way_back_after_a_panic() {
    let (model, optim, expected) = interrupted();
    // The checkpoint of before the first step: first weights and an empty record. The failure was
    // the fourth call only, so the optimizer itself is sound again.
    let before = start::<Mlp>().model::<Mlp, R>();
    drop(model);
    let mut optim = optim.load_record(Default::default());
    let mut model = before;
    for step in 0..2 {
        model = optim
            .try_arm(RATE, model)
            .expect("a loaded record starts afresh");
        let grads = gradients(&model, step);
        model = optim.try_step(RATE, model, grads).expect("a whole step");
        // The ids are new, the numbers are not.
        assert_eq!(
            weights(&model).distance(&expected.steps[step as usize]),
            0.0
        );
    }
}

/// Steps as SGD, and looks at the armed model meanwhile.
#[derive(Clone)]
struct Onlooker {
    sgd: Sgd<Inner>,
    armed: Arc<Mutex<Option<Arc<Linear<R>>>>>,
}

impl SimpleOptimizer<Inner> for Onlooker {
    type State<const D: usize> = SgdState<Inner, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<Inner, D>,
        grad: Tensor<Inner, D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<Inner, D>, Option<Self::State<D>>) {
        let armed = self.armed.lock().expect("nobody panics with it").clone();
        if let Some(armed) = armed {
            drop(armed.weight.val());
        }
        self.sgd.step(lr, tensor, grad, state)
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device<Inner>) -> Self::State<D> {
        <Sgd<Inner> as SimpleOptimizer<Inner>>::to_device(state, device)
    }
}

/// It waited for itself before.
#[test]
fn an_optimizer_that_reads_the_parameter_it_steps_is_refused() {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let run = AssertUnwindSafe(|| {
            let armed = Arc::<Mutex<Option<Arc<Linear<R>>>>>::default();
            let onlooker = Onlooker {
                sgd: SgdConfig::new().init::<R, Linear<R>>().optim().clone(),
                armed: armed.clone(),
            };
            let adaptor = OptimizerAdaptor::<Onlooker, Linear<R>, R>::from(onlooker);
            let mut optim = adaptor.with_gradient_release();
            let device = Default::default();
            let model = optim.arm(RATE, LinearConfig::new(4, 4).init(&device));
            let model = Arc::new(model);
            *armed.lock().expect("nobody panics with it") = Some(model.clone());
            let loss = model.forward(noise::<R, 2>(0, [2, 4], &device)).sum();
            drop(loss.backward());
        });
        let text = catch_unwind(run).map_err(|payload| payload.downcast_ref::<String>().cloned());
        // Nobody listens any more if it took too long.
        let _ = done.send(text.err().flatten());
    });
    let text = is_done
        .recv_timeout(Duration::from_secs(120))
        .expect("the step waits for itself");
    let text = text.expect("it was refused with a text");
    assert!(text.contains("while it steps"), "{text}");
    assert!(
        text.contains("a clone of the model taken before `arm`"),
        "{text}"
    );
}

#[test]
fn a_rate_that_is_none_is_refused() {
    for rate in [f64::NAN, f64::INFINITY, -RATE] {
        let Bench {
            model,
            mut optim,
            expected,
        } = bench(1);
        let is_refused = |error: &ReleaseError| {
            assert!(matches!(error, ReleaseError::OutOfRange { .. }), "{error}");
        };
        let (model, error) = refused(optim.try_arm(rate, model));
        is_refused(&error);
        let grads = gradients(&model, 0);
        let refused = optim.try_step(rate, model, grads).unwrap_err();
        is_refused(refused.error());
        let (model, grads) = refused.into_given();
        let model = optim.step(RATE, model, grads);
        weights(&model).assert_same(&expected.steps[0], "the step before");
    }
}

/// The step before it is taken; the one with it is refused, and not left out without a word.
#[test]
fn a_schedule_that_comes_to_no_rate_is_refused() {
    #[derive(Clone)]
    struct Ends(bool);

    impl burn::lr_scheduler::LrScheduler for Ends {
        type Record<B: Backend> = bool;

        fn step(&mut self) -> LearningRate {
            match std::mem::replace(&mut self.0, true) {
                false => RATE,
                true => f64::NAN,
            }
        }

        fn to_record<B: Backend>(&self) -> bool {
            self.0
        }

        fn load_record<B: Backend>(self, has_ended: bool) -> Self {
            Self(has_ended)
        }
    }

    let Bench {
        model,
        optim,
        expected,
    } = bench(1);
    let mut optim = optim.with_lr_scheduler(Ends(false));
    let model = optim.arm(RATE, model);
    let grads = gradients(&model, 0);
    let model = optim.step(RATE, model, grads);
    weights(&model).assert_same(&expected.steps[0], "the step before");
    let grads = gradients(&model, 1);
    let (model, error) = refused(optim.try_step(f64::NAN, model, grads));
    assert!(matches!(error, ReleaseError::OutOfRange { .. }), "{error}");
    weights(&model).assert_same(&expected.steps[0], "the step before");
}

#[test]
#[should_panic(expected = "a budget of 0 bytes keeps no activation")]
fn a_budget_of_nothing_is_refused() {
    let optim = SgdConfig::new().init::<R, Model>();
    let _ = optim
        .with_gradient_release()
        .with_recompute(Recompute::Budget(0));
}
