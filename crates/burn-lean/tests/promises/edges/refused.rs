//! Refused calls: nothing has changed, and the way out that the text names works. Those of clipping and
//! loss scaling are in `clipping`, those of replicas in `data_parallel`.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::{Backend, BackendTensor, DispatchTensor, DispatchTensorKind, Flex};
use burn::module::ParamId;

use crate::accumulation::bits_of as grad_bits;
use crate::harness::prelude::*;
use crate::harness::watched_adamw;
use crate::small::kind;

type Error = (Small, ReleaseError);

/// Given a model, and a loss of it from before its last step.
type Refuse = fn(&mut ReleaseOptimizer, Small, Tensor<1>) -> Error;

fn another() -> Small {
    numbered_from(small(), 900)
}

fn backward(optim: &mut ReleaseOptimizer, model: Small, loss: Tensor<1>) -> Error {
    optim
        .try_backward(LR, loss, model)
        .unwrap_err()
        .into_parts()
}

fn accumulate(optim: &mut ReleaseOptimizer, model: Small, loss: Tensor<1>) -> Error {
    let refused = optim.try_accumulate(loss, &model).unwrap_err();
    (model, refused.into())
}

fn measure(optim: &mut ReleaseOptimizer, model: Small, loss: Tensor<1>) -> Error {
    let refused = optim.try_measure(loss, &model).unwrap_err();
    (model, refused.into())
}

fn step(optim: &mut ReleaseOptimizer, model: Small, grads: GradientsParams) -> Error {
    optim.try_step(LR, model, grads).unwrap_err().into_parts()
}

fn two_passes(optim: &mut ReleaseOptimizer, model: Small) -> Error {
    let passes = optim.try_two_passes(LR, model, |model| model.loss(1));
    passes.unwrap_err().into_parts()
}

type Call = (&'static str, fn(&mut ReleaseOptimizer, Small) -> Error);

/// The calls that train, each refused.
fn calls() -> [Call; 5] {
    [
        ("backward", |optim, model| {
            let loss = model.loss(1);
            backward(optim, model, loss)
        }),
        ("accumulate", |optim, model| {
            let loss = model.loss(1);
            accumulate(optim, model, loss)
        }),
        ("measure", |optim, model| {
            let loss = model.loss(1);
            measure(optim, model, loss)
        }),
        ("step", |optim, model| {
            let grads = grads_of(&model, 1);
            step(optim, model, grads)
        }),
        ("two_passes", two_passes),
    ]
}

fn bad_rates(optim: &mut ReleaseOptimizer, mut model: Small, _: Tensor<1>) -> Error {
    let mut error = None;
    for rate in [f64::INFINITY, -1.0, f64::NAN] {
        let refused = optim.try_step(rate, model, GradientsParams::new());
        let (given, found) = refused.unwrap_err().into_parts();
        assert_error!(found, OutOfRange);
        let passes = optim.try_two_passes(rate, given, |model| model.loss(1));
        let (given, found) = passes.unwrap_err().into_parts();
        assert_error!(found, OutOfRange);
        let loss = given.loss(1);
        let refused = optim.try_backward(rate, loss, given).unwrap_err();
        error = Some(refused.error().clone());
        let (given, loss) = refused.into_given();
        assert!(loss.is_some());
        model = given;
    }
    (model, error.unwrap())
}

fn in_scope(optim: &mut ReleaseOptimizer, mut model: Small, _: Tensor<1>) -> Error {
    let mut error = None;
    for (_, call) in calls() {
        let taken = std::mem::replace(optim, adamw().with_gradient_release());
        let given = Mutex::new(Some((taken, model)));
        let out = Arc::new(Mutex::new(None));
        let put = out.clone();
        let layer: Linear = LinearConfig::new(4, 4).init(&flex());
        let x = numbers::<2>([3, 4], 1, &flex());
        let _ = checkpoint(&layer, x, move |layer: &Linear, x| {
            if let Some((mut optim, model)) = given.lock().unwrap().take() {
                let error = call(&mut optim, model);
                *put.lock().unwrap() = Some((optim, error));
            }
            layer.forward(x)
        });
        let (taken, (given_back, found)) = out.lock().unwrap().take().unwrap();
        assert_error!(found, InScope);
        (*optim, model, error) = (taken, given_back, Some(found));
    }
    (model, error.unwrap())
}

fn with_new_ids(model: Small) -> Small {
    struct NewIds;
    impl ModuleMapper for NewIds {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (_, value, mapper) = param.consume();
            Param::from_mapped_value(ParamId::new(), value, mapper)
        }
    }
    model.map(&mut NewIds)
}

/// A model with its clone, whichever of them is frozen.
fn beside_a_clone(optim: &mut ReleaseOptimizer, mut model: Small, _: Tensor<1>) -> Error {
    let mut error = None;
    let pairs: [fn(Small) -> [Small; 2]; 3] = [
        |model| [model.clone(), model],
        |model| [model.clone(), model.no_grad()],
        |model| [model.clone().no_grad(), model],
    ];
    for pair in pairs {
        let pair = pair(model);
        let loss = pair.each_ref().map(|model| model.loss(1));
        let loss = loss.into_iter().find(Tensor::is_tracked).unwrap();
        let (pair, found) = optim.try_backward(LR, loss, pair).unwrap_err().into_parts();
        let trained = pair.into_iter().find(|model| model.tied.is_require_grad());
        (model, error) = (trained.unwrap(), Some(found));
    }
    // The way out.
    let copy = with_new_ids(model.clone()).no_grad();
    let loss = model.loss(1);
    let mut other = adamw().with_gradient_release();
    let (stepped, copy) = other.backward(LR, loss, (model.clone(), copy));
    assert_eq!(copy.values(), model.values());
    assert_ne!(stepped.values(), model.values());
    (model, error.unwrap())
}

fn another_loss(optim: &mut ReleaseOptimizer, model: Small, _: Tensor<1>) -> Error {
    let (model, error) = accumulate(optim, model, another().loss(1));
    assert_error!(error, NotInGraph);
    let (model, error) = measure(optim, model, another().loss(1));
    assert_error!(error, NotInGraph);
    backward(optim, model, another().loss(1))
}

fn detached(optim: &mut ReleaseOptimizer, model: Small, _: Tensor<1>) -> Error {
    let loss = model.loss(1).detach();
    let refused = optim.try_backward(LR, loss, model).unwrap_err();
    let error = refused.error().clone();
    let (model, loss) = refused.into_given();
    assert!(loss.is_some());
    (model, error)
}

fn frozen(optim: &mut ReleaseOptimizer, model: Small, _: Tensor<1>) -> Error {
    let frozen = model.clone().no_grad();
    let loss = frozen.loss(1);
    (model, backward(optim, frozen, loss).1)
}

#[test]
fn nothing_has_changed() {
    let table: [(&str, &str, Refuse); 7] = [
        ("NotInGraph", "the loss of another model", another_loss),
        ("NotInGraph", "before its last step", backward),
        ("NotInGraph", "detached", detached),
        ("NotInGraph", "everything is frozen", frozen),
        ("InScope", "outside of scopes", in_scope),
        ("DuplicateParam", "ids of its own", beside_a_clone),
        ("OutOfRange", "rate of first.weight is NaN", bad_rates),
    ];
    for (expected, text, refuse) in table {
        println!("{expected}: {text}");
        let (mut model, mut optim) = crate::small::started();
        let stale = model.loss(9);
        model = release_step(model, &mut optim, |model| model.loss(1));
        let plain = plain(&[0, 1]);
        let pending = model.loss(7);
        let (model, error) = refuse(&mut optim, model, stale);
        assert_eq!(kind(&error), expected, "{error}");
        assert!(error.to_string().contains(text), "{error}");
        assert!(!optim.has_sums());
        assert_eq!(optim.last_step().unwrap().count(Outcome::Released), PARAMS);
        // Its leaves are those of before.
        let grads = GradientsParams::from_grads(pending.backward(), &model);
        let expected = grad_bits(&grads_of(&plain.0, 7), &plain.0);
        assert_eq!(grad_bits(&grads, &model), expected);
        assert_goes_on(model, &mut optim, plain);
    }
}

/// A loss of a part of the model: what is not in its graph keeps its leaf, as in plain Burn.
#[test]
fn parameters_outside_of_the_graph_keep_their_leaves() {
    let (model, mut optim) = crate::small::started();
    let (plain, mut plain_optim) = plain(&[0]);
    let of_tied = |model: &Small| model.tied.val().square().mean();
    let of_layer = |model: &Small| model.first.forward(numbers([3, 4], 1, &flex())).mean();
    let (pending, plain_pending) = (of_layer(&model), of_layer(&plain));
    let model = release_step(model, &mut optim, of_tied);
    assert_eq!(
        optim.last_step().unwrap().count(Outcome::Unused),
        PARAMS - 1
    );
    let plain = plain_step(plain, &mut plain_optim, of_tied);
    let model = optim.backward(LR, pending, model);
    let grads = GradientsParams::from_grads(plain_pending.backward(), &plain);
    let plain = plain_optim.step(LR, plain, grads);
    assert_goes_on(model, &mut optim, (plain, plain_optim));
}

fn interrupted(stepped: usize) -> ReleaseError {
    let of = PARAMS;
    ReleaseError::Interrupted { stepped, of }
}

/// The model is gone, and the optimizer refuses everything until a record is loaded.
#[test]
fn an_optimizer_that_panics_in_a_step() {
    for stepped in 0..PARAMS {
        for is_ordinary in [false, true] {
            let (model, states) = plain(&[0]);
            let count = Arc::new(AtomicUsize::new(0));
            let counted = count.clone();
            let optim = watched_adamw(move || {
                assert!(
                    counted.fetch_add(1, Relaxed) != stepped,
                    "the optimizer stops"
                );
            });
            let optim = optim.load_record(states.to_record());
            let mut optim = optim.with_gradient_release();
            let saved = model.clone();
            if stepped % 2 == 1 {
                // The sums go with the step.
                optim.accumulate(model.loss(9), &model);
            }
            let run = || match is_ordinary {
                true => optim.step(LR, model.clone(), grads_of(&model, 1)),
                false => optim.backward(LR, model.loss(1), model),
            };
            assert_panics(run, "the optimizer stops");
            let error = interrupted(stepped);
            for (name, call) in calls() {
                let (_, found) = call(&mut optim, saved.clone());
                assert_eq!(found, error, "{name}");
            }
            assert_eq!(optim.try_to_record().err().unwrap(), error);
            assert_eq!(optim.try_gradient_record().err().unwrap(), error);
            let refused = optim.try_into_optimizer().err().unwrap();
            assert_error!(refused.error(), Interrupted, "load the last checkpoint");
            let mut optim = refused.into_model().load_record(states.to_record());
            assert_goes_on(saved.clone(), &mut optim, (saved, states));
        }
    }
}

#[test]
fn settings_that_burns_optimizer_lacks() {
    type Set = fn(ReleaseOptimizer) -> ReleaseOptimizer;
    let settings: [Set; 5] = [
        |optim| optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1e9 }),
        |optim| optim.with_loss_scaler(LossScalerConfig::new().init()),
        |optim| optim.with_non_finite_stop(),
        |optim| optim.with_f32_gradients(),
        |mut optim| {
            let model = small();
            optim.accumulate(model.loss(5), &model);
            optim
        },
    ];
    for set in settings {
        let (model, optim) = crate::small::started();
        let refused = set(optim).try_into_optimizer().err().unwrap();
        assert_error!(refused.error(), NotBurns, "load `to_record` into it");
        let optim = adamw().load_record(refused.into_model().to_record());
        assert_goes_on(model, &mut optim.with_gradient_release(), plain(&[0]));
    }
}

/// A user's own operation, of which the parameter is both parents.
#[derive(Debug)]
struct Registers {
    times: usize,
}

impl<B: Backend> Backward<B, 2> for Registers {
    type State = ();

    fn backward(self, ops: Ops<(), 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        assert!(self.times > 0, "the operation stops");
        let grad = grads.consume::<B>(&ops.node);
        let [parent, _] = ops.parents;
        for _ in 0..self.times {
            let parent = parent.as_ref().expect("it is tracked");
            grads.register::<B>(parent.id, grad.clone());
        }
    }
}

/// The tensor, whose gradient is registered so often though it is used twice.
fn registered<const D: usize>(tensor: Tensor<D>, times: usize) -> Tensor<D> {
    let DispatchTensor { kind, autodiff } = tensor.into_dispatch();
    let DispatchTensorKind::Autodiff(kind) = kind else {
        panic!("it is tracked");
    };
    let DispatchTensorKind::Flex(BackendTensor::Autodiff(tensor)) = *kind else {
        panic!("it is on Flex");
    };
    let parents = [tensor.node(), tensor.node()];
    let step = Backward::<Flex, 2>::prepare::<NoCheckpointing>(Registers { times }, parents);
    let value = step.compute_bound().stateless(tensor.into_primitive());
    let kind = DispatchTensorKind::Flex(BackendTensor::Autodiff(value));
    Tensor::from_dispatch(DispatchTensor {
        kind: DispatchTensorKind::Autodiff(Box::new(kind)),
        autodiff,
    })
}

fn loss_with(model: &Small, times: usize) -> Tensor<1> {
    model.loss(1) + registered(model.first.weight.val(), times).square().mean()
}

#[test]
fn operations_that_register_less_often() {
    for (times, at_end) in [(1, 1), (2, 0)] {
        let (model, mut optim) = crate::small::started();
        let (plain, mut plain_optim) = plain(&[0]);
        let plain = plain_step(plain, &mut plain_optim, |model| loss_with(model, times));
        let model = release_step(model, &mut optim, |model| loss_with(model, times));
        let report = optim.last_step().unwrap();
        assert_eq!(report.count(Outcome::AtEnd), at_end);
        assert_eq!(report.count(Outcome::Released), PARAMS - at_end);
        assert_goes_on(model, &mut optim, (plain, plain_optim));
    }
}

#[test]
fn operations_that_register_more_often() {
    let (model, states) = plain(&[0]);
    let mut optim = states.clone().with_gradient_release();
    let saved = model.clone();
    let loss = loss_with(&model, 4);
    let refused = optim.try_backward(LR, loss, model).unwrap_err();
    assert_error!(
        refused.error(),
        Tape,
        "first.weight more often than it uses"
    );
    assert!(refused.into_given().1.is_none());
    // Nothing else than a record is taken, if something was stepped.
    let mut optim = optim.load_record(states.to_record());
    optim
        .try_accumulate(loss_with(&saved, 4), &saved)
        .unwrap_err();
    optim.take_sums(&saved);
    assert_goes_on(saved.clone(), &mut optim, (saved, states));
}

/// An operation of the model that panics in backward, before any parameter is stepped or after some: in a
/// pass that steps none, nothing has happened. Sums of half a micro-batch are not stepped with.
#[test]
fn backward_that_panics() {
    let (saved, states) = plain(&[0]);
    let first = |model: &Small| registered(model.loss(1), 0);
    let amid = |model: &Small| {
        let x = registered(numbers::<2>([3, 4], 1, &flex()).matmul(model.tied.val()), 0);
        let x = model.second.forward(gelu(model.first.forward(x)));
        x.square().mean()
    };
    let losses: [&dyn Fn(&Small) -> Tensor<1>; 2] = [&first, &amid];
    for (loss, steps) in losses.into_iter().zip([false, true]) {
        let mut optim = states.clone().with_gradient_release();
        let failing = loss(&saved);
        assert_panics(|| optim.measure(failing, &saved), "the operation stops");
        assert_goes_on(saved.clone(), &mut optim, (saved.clone(), states.clone()));

        let mut optim = optim.load_record(states.to_record());
        let failing = loss(&saved);
        assert_panics(|| optim.accumulate(failing, &saved), "the operation stops");
        let refused = optim.try_to_record();
        assert_eq!(refused.is_err(), steps);
        let mut optim = optim.load_record(states.to_record());
        let (model, failing) = (saved.clone(), loss(&saved));
        assert_panics(|| optim.backward(LR, failing, model), "the operation stops");
        match optim.try_to_record() {
            Ok(_) => assert!(!steps),
            Err(ReleaseError::Interrupted { stepped, .. }) => assert!(steps && stepped > 0),
            Err(error) => panic!("{error}"),
        }
    }
}
