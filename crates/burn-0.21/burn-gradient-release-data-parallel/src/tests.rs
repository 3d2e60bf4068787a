use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::sleep,
    time::Duration,
};

use burn::{
    backend::{Autodiff, Flex, flex::FlexDevice},
    module::{AutodiffModule, Module, Param, ParamId},
    nn::{BatchNorm, BatchNormConfig, Initializer, Linear, LinearConfig},
    optim::{Adam, AdamConfig, GradientsParams, Optimizer},
    record::{BinBytesRecorder, FullPrecisionSettings, Recorder},
    tensor::{DType, Tensor, TensorData, TensorPrimitive, backend::Backend},
};
use burn_gradient_release::{
    GradientReduction, GradientRelease, GroupOptions, ParamGroup, Recipients, ReleaseOptimizer,
    WithGradientRelease,
};

use lean_replicas::Threads;

use crate::{DataParallel, Replicas};

#[derive(Module, Debug)]
struct Model<B: Backend> {
    small: Param<Tensor<B, 1>>,
    large: Param<Tensor<B, 2>>,
}

fn model(rank: usize, rows: usize) -> Model<Flex> {
    let fill = |size| vec![rank as f32 + 0.5; size];
    let tensor = |data| Tensor::from_data(data, &FlexDevice);
    Model {
        small: Param::initialized(ParamId::new(), tensor(TensorData::new(fill(3), [3]))),
        large: Param::initialized(
            ParamId::new(),
            Tensor::from_data(TensorData::new(fill(4 * rows), [rows, 4]), &FlexDevice),
        ),
    }
}

/// Numbers whose sum depends on the order in which they are added up.
fn gradient(rank: usize, size: usize) -> Vec<f32> {
    let number = |index: usize| ((index * 7919 + rank * 104_729) % 1009) as f32;
    (0..size)
        .map(|index| (number(index) - 500.0) * 10f32.powi((index % 7) as i32 - 3 + rank as i32))
        .collect()
}

fn reduce(
    parallel: &DataParallel,
    param: ParamId,
    data: TensorData,
    recipients: Recipients,
) -> Result<Option<TensorData>, String> {
    let dtype = data.dtype;
    let tensor = Tensor::<Flex, 2>::from_data(data, (&FlexDevice, dtype));
    let tensor = tensor.into_primitive().tensor();
    let reduction: &dyn GradientReduction<Flex> = parallel;
    let pending = reduction.begin(param, tensor, recipients);
    let mean = pending.and_then(|pending| pending.wait());
    let mean = mean.map_err(|error| error.to_string())?;
    let data = |mean| Tensor::<Flex, 2>::from_primitive(TensorPrimitive::Float(mean)).into_data();
    Ok(mean.map(data))
}

#[test]
fn means_are_added_up_in_the_order_of_the_ranks() {
    // More than a segment, and a part that is not full.
    let rows = 700_001;
    for size in 1..5 {
        let means = Threads::run(size, |replicas| {
            let rank = replicas.rank();
            let parallel = DataParallel::new(replicas);
            let model = parallel.broadcast(model(rank, rows)).unwrap();
            let data = TensorData::new(gradient(rank, 4 * rows), [rows, 4]);
            reduce(&parallel, model.large.id, data, Recipients::Owner).unwrap()
        });
        let gradients: Vec<_> = (0..size).map(|rank| gradient(rank, 4 * rows)).collect();
        let mean = |index: usize| {
            let mut of_all = gradients.iter().map(|gradient| gradient[index]);
            let first = of_all.next().unwrap();
            of_all.fold(first, |sum, number| sum + number) / size as f32
        };
        let expected: Vec<u32> = (0..4 * rows).map(|index| mean(index).to_bits()).collect();
        for found in means {
            let found = found.unwrap().into_vec::<f32>().unwrap();
            let found: Vec<u32> = found.into_iter().map(f32::to_bits).collect();
            assert!(found == expected, "{size} replicas");
        }
    }
}

#[test]
fn every_type_keeps_its_type() {
    for dtype in [DType::F64, DType::F16, DType::BF16] {
        let means = Threads::run(3, |replicas| {
            let rank = replicas.rank();
            let parallel = DataParallel::new(replicas);
            let model = parallel.broadcast(model(rank, 1)).unwrap();
            let values = [1.0, 2.0, 1e-3, 256.0].map(|value: f64| value * (rank + 1) as f64);
            let data = TensorData::new(values.to_vec(), [1, 4]).convert_dtype(dtype);
            reduce(&parallel, model.large.id, data, Recipients::All).unwrap()
        });
        let expected = TensorData::new(vec![2.0, 4.0, 2e-3, 512.0], [1, 4]).convert_dtype(dtype);
        for mean in means {
            let mean = mean.unwrap();
            assert_eq!(mean.dtype, dtype);
            let tolerance = burn::tensor::Tolerance::<f64>::relative(2e-3);
            mean.assert_approx_eq::<f64>(&expected, tolerance);
        }
    }
}

#[test]
fn only_owners_get_gradients_that_only_they_need() {
    let found = Threads::run(2, |replicas| {
        let rank = replicas.rank();
        let parallel = DataParallel::new(replicas).with_sharded_optimizer();
        let model = parallel.broadcast(model(rank, 2)).unwrap();
        let data = || TensorData::new(vec![rank as f32 + 1.0; 8], [2, 4]);
        let reduction: &dyn GradientReduction<Flex> = &parallel;
        let is_owner = reduction.is_owner(model.large.id);
        assert_ne!(is_owner, reduction.is_owner(model.small.id));
        let mean = reduce(&parallel, model.large.id, data(), Recipients::Owner).unwrap();
        assert_eq!(mean.is_some(), is_owner);
        let wanted = reduce(&parallel, model.large.id, data(), Recipients::All).unwrap();
        assert_eq!(wanted.unwrap().to_vec::<f32>().unwrap(), [1.5; 8]);
        let weight = Tensor::<Flex, 2>::full([2, 4], rank as f32 + 7.0, &FlexDevice);
        let weight = weight.into_primitive().tensor();
        let weight = reduction.weight_from_owner(model.large.id, weight).unwrap();
        let weight = Tensor::<Flex, 2>::from_primitive(TensorPrimitive::Float(weight));
        (is_owner, weight.into_data().to_vec::<f32>().unwrap()[0])
    });
    let owner = found.iter().position(|(is_owner, _)| *is_owner).unwrap();
    assert!(
        found
            .iter()
            .all(|(_, weight)| *weight == owner as f32 + 7.0)
    );
}

#[test]
fn a_model_is_that_of_the_first_replica() {
    let models = Threads::run(3, |replicas| {
        let rank = replicas.rank();
        let parallel = DataParallel::new(replicas);
        let model = parallel.broadcast(model(rank, 5)).unwrap();
        let values = model.large.val().into_data().to_vec::<f32>().unwrap();
        (model.small.id, model.large.id, values)
    });
    assert_eq!(models[0].2, [0.5; 20]);
    assert!(models.iter().all(|model| *model == models[0]));
}

/// The errors of the replicas.
fn errors(work: impl Fn(DataParallel) -> Result<(), String> + Sync) -> Vec<String> {
    Threads::run(2, |replicas| work(DataParallel::new(replicas)).unwrap_err())
}

#[test]
fn models_that_differ_are_named() {
    let shapes = errors(|parallel| {
        let rank = parallel.replicas().rank();
        let broadcast = parallel.broadcast(model(rank, 2 + rank));
        broadcast.map(drop).map_err(|error| error.to_string())
    });
    assert_eq!(
        shapes,
        [0, 1].map(|rank| format!(
            "rank {rank} of 2: the replicas do not do the same: rank 0: parameter large \
             [2, 4] F32, not trained; rank 1: parameter large [3, 4] F32, not trained"
        ))
    );
    let values = errors(|parallel| {
        let rank = parallel.replicas().rank();
        let model = parallel.broadcast(model(rank, 2)).unwrap();
        let model = match rank {
            0 => model,
            _ => Model {
                large: model.large.map(|tensor| tensor + 1.0),
                ..model
            },
        };
        let verified = parallel.verify(&model);
        verified.map_err(|error| error.to_string())
    });
    for error in values {
        assert!(
            error.contains("rank 1: parameter large [2, 4] F32, digest "),
            "{error}"
        );
    }
}

#[test]
fn replicas_that_go_another_way_are_named_for_good() {
    let found = errors(|parallel| {
        let rank = parallel.replicas().rank();
        let model = parallel.broadcast(model(rank, 2)).unwrap();
        let reduction: &dyn GradientReduction<Flex> = &parallel;
        reduction.end_step(1e-3, &HashMap::new()).unwrap();
        let data = TensorData::new(gradient(rank, 8), [2, 4]);
        let param = [model.large.id, model.small.id][rank];
        let error = reduce(&parallel, param, data, Recipients::All).unwrap_err();
        // What comes after it is the same.
        assert_eq!(
            reduction
                .end_step(1e-3, &HashMap::new())
                .unwrap_err()
                .to_string(),
            error
        );
        Err(error)
    });
    for (rank, error) in found.into_iter().enumerate() {
        assert_eq!(
            error,
            format!(
                "rank {rank} of 2: the replicas do not do the same: rank 0: the gradient of large \
                 [2, 4] F32 in step 2; rank 1: the gradient of small [2, 4] F32 in step 2"
            )
        );
    }
    let rates = errors(|parallel| {
        let rate = [1e-3, 2e-3][parallel.replicas().rank()];
        let reduction: &dyn GradientReduction<Flex> = &parallel;
        reduction
            .end_step(rate, &HashMap::new())
            .map_err(|error| error.to_string())
    });
    for error in rates {
        assert!(
            error.ends_with(
                "rank 0: the end of step 1 with rate 1e-3; rank 1: the end of step 1 with rate 2e-3"
            ),
            "{error}"
        );
    }
}

#[test]
fn unknown_parameters_and_other_types_are_refused() {
    let parallel = DataParallel::new(Replicas::new(|| Ok(crate::Alone)).unwrap());
    let data = TensorData::new(vec![1f32; 8], [2, 4]);
    let error = reduce(&parallel, ParamId::new(), data, Recipients::All).unwrap_err();
    assert!(
        error.contains("is in no model that the replicas have compared"),
        "{error}"
    );
}

type Release = GradientRelease<Autodiff<Flex>>;
type Optim = ReleaseOptimizer<Adam, Linear<Release>, Release>;

/// A model that has taken a step, and its optimizer.
fn stepped(parallel: &DataParallel) -> (Linear<Release>, Optim) {
    let model: Linear<Release> = LinearConfig::new(4, 2).init(&FlexDevice);
    let model = parallel.broadcast(model).unwrap();
    let optim = AdamConfig::new().init().with_gradient_release();
    let optim = optim.with_reduction(Arc::new(parallel.clone()));
    step(model, optim)
}

fn step(model: Linear<Release>, mut optim: Optim) -> (Linear<Release>, Optim) {
    let model = optim.arm(1e-3, model);
    let batch = Tensor::<Release, 2>::ones([8, 4], &FlexDevice);
    let grads = model.forward(batch).powi_scalar(2).mean().backward();
    let grads = GradientsParams::from_grads(grads, &model);
    (optim.step(1e-3, model, grads), optim)
}

/// Their base rate is the same.
#[test]
fn rates_of_groups_that_differ_are_named() {
    let found = errors(|parallel| {
        let factor = [0.5, 0.25][parallel.replicas().rank()];
        let (model, optim) = stepped(&parallel);
        let options = GroupOptions::new().with_lr_factor(factor);
        let optim = optim.with_group(ParamGroup::from_path("weight"), options);
        let panic = catch_unwind(AssertUnwindSafe(|| step(model, optim)));
        let text = panic.err().map(|panic| panic.downcast::<String>());
        Err(*text.expect("the replicas differ").expect("a text"))
    });
    for error in found {
        let differences = "rank 0: the end of step 2 with rate 5e-4, 1e-3 from bias; rank 1: the end of \
                           step 2 with rate 2.5e-4, 1e-3 from bias";
        assert!(error.ends_with(differences), "{error}");
    }
}

#[test]
fn states_are_sent_if_the_first_replica_makes_a_record() {
    for saves in [true, false] {
        let found = Threads::run(2, |replicas| {
            let parallel = DataParallel::new(replicas).with_sharded_optimizer();
            let (model, mut optim) = stepped(&parallel);
            let own = optim.to_record().len();
            let mut saved = None;
            let same_optimizer = Optim::handle_of(&optim);
            let save = || {
                if saves {
                    saved = Some(same_optimizer.unwrap().to_record().len());
                }
            };
            parallel.save_on_first(&mut optim, save).unwrap();
            let after = optim.to_record().len();
            // All of them are at the same, and go on.
            step(model, optim);
            (own, saved, after)
        });
        let saved = saves.then_some(2);
        assert_eq!(found, [(1, saved, 1), (1, None, 1)]);
    }
}

/// With a record, without one, and where each replica has all states.
#[test]
fn replicas_return_when_the_first_has_saved() {
    for (is_sharded, makes_record) in [(true, true), (true, false), (false, false)] {
        let is_saved = AtomicBool::new(false);
        Threads::run(2, |replicas| {
            let mut parallel = DataParallel::new(replicas);
            if is_sharded {
                parallel = parallel.with_sharded_optimizer();
            }
            let (_, mut optim) = stepped(&parallel);
            let same_optimizer = Optim::handle_of(&optim).unwrap();
            let save = || {
                if makes_record {
                    same_optimizer.to_record();
                }
                // The others have nothing else to wait for.
                sleep(Duration::from_millis(50));
                is_saved.store(true, Ordering::SeqCst);
            };
            parallel.save_on_first(&mut optim, save).unwrap();
            assert!(is_saved.load(Ordering::SeqCst));
        });
    }
}

/// States of the call before do not stay: no arming has dropped them.
#[test]
fn states_are_gathered_again_after_ordinary_steps() {
    type Record = <Optim as Optimizer<Linear<Release>, Release>>::Record;
    let gathered = |is_sharded: bool| {
        let of_ranks = Threads::run(2, |replicas| {
            let mut parallel = DataParallel::new(replicas);
            if is_sharded {
                parallel = parallel.with_sharded_optimizer();
            }
            let config = LinearConfig::new(4, 2);
            let config = config.with_initializer(Initializer::Constant { value: 0.5 });
            let mut model: Linear<Release> = parallel.broadcast(config.init(&FlexDevice)).unwrap();
            let optim: Optim = AdamConfig::new().init().with_gradient_release();
            let mut optim = optim.with_reduction(Arc::new(parallel.clone()));
            for _ in 0..2 {
                let batch = Tensor::<Release, 2>::ones([8, 4], &FlexDevice);
                let grads = model.forward(batch).powi_scalar(2).mean().backward();
                let grads = GradientsParams::from_grads(grads, &model);
                model = optim.step(1e-3, model, grads);
                parallel.gather_states(&mut optim).unwrap();
            }
            let mut record = optim.to_record();
            [model.weight.id, model.bias.unwrap().id].map(|id| {
                let mut state = Record::default();
                state.extend(record.remove(&id).map(|state| (ParamId::from(0), state)));
                let recorder = BinBytesRecorder::<FullPrecisionSettings>::new();
                Recorder::<Release>::record(&recorder, state, ()).unwrap()
            })
        });
        of_ranks[0].clone()
    };
    assert_eq!(gathered(true), gathered(false));
}

#[test]
fn tensors_with_items_of_another_shape_are_not_gathered() {
    let found = Threads::run(2, |replicas| {
        let parallel = DataParallel::new(replicas);
        let rank = parallel.replicas().rank();
        let outputs = |rows, columns| Tensor::<Flex, 2>::ones([rows, columns], &FlexDevice);
        let same = parallel.gather("outputs", outputs(1 + rank, 3)).unwrap();
        let other = parallel.gather("outputs", outputs(2, 3 * (1 + rank)));
        (same.dims(), other.unwrap_err().to_string())
    });
    assert_eq!(found[0].0, [3, 3]);
    let differences = "rank 0: outputs, items of [3] F32; rank 1: outputs, items of [6] F32";
    assert!(found[0].1.ends_with(differences), "{}", found[0].1);
}

/// Each replica initialized its own model, and has an update that is pending.
#[test]
fn running_statistics_are_those_of_the_first_replica() {
    type B = Autodiff<Flex>;
    Threads::run(3, |replicas| {
        let rank = replicas.rank();
        let parallel = DataParallel::new(replicas);
        let norm: BatchNorm<B> = BatchNormConfig::new(2).init(&FlexDevice);
        for mean in [10.0, 20.0] {
            let batch = Tensor::<B, 2>::full([4, 2], mean + rank as f64, &FlexDevice);
            norm.forward(batch);
        }
        let norm = parallel.broadcast(norm).unwrap();
        let found = norm.valid().running_mean.value().into_data();
        // A tenth of each new mean, which is that of the first replica.
        let expected = 0.9 * (0.1 * 10.0) + 0.1 * 20.0_f32;
        let is_near = |found: f32| (found - expected).abs() < 1e-6;
        assert!(found.iter::<f32>().all(is_near), "{rank}: {found:?}");
    });
}

/// A parameter that nobody has read yet: a second initialization would draw other numbers than plain
/// Burn's only one.
#[test]
fn a_parameter_is_initialized_once() {
    let drawn = Arc::new(AtomicUsize::new(0));
    let counter = drawn.clone();
    let initialize = move |device: &FlexDevice, _| {
        let number = counter.fetch_add(1, Ordering::Relaxed);
        Tensor::<Flex, 1>::full([2], number as f32, device)
    };
    let param = Param::uninitialized(ParamId::new(), initialize, FlexDevice, false, [2].into());
    let parallel = DataParallel::new(Replicas::new(|| Ok(crate::Alone)).unwrap());
    let param = parallel.broadcast(param).unwrap();
    assert_eq!(param.val().into_data().to_vec::<f32>().unwrap(), [0.0; 2]);
    assert_eq!(drawn.load(Ordering::Relaxed), 1);
}
