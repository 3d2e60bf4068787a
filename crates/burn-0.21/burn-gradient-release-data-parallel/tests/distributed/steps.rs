//! Armed replicas take the steps of one process.

use std::{sync::Arc, thread, time::Duration};

use burn::{
    backend::Autodiff,
    module::Module,
    optim::{GradientsParams, Optimizer},
    tensor::{
        Tensor, TensorPrimitive,
        backend::{
            AutodiffBackend, DeviceOps,
            distributed::{DistributedBackend, ReduceOperation},
        },
    },
};
use burn_gradient_release::{Outcome, ReleaseAccumulator, checkpoint};

use crate::{
    B, adam, all_on_threads, armed,
    backend::{Place, Several, places},
    model::{Model, RATE, STEPS, one_process},
    replicas, step,
};

#[test]
fn weights_are_those_of_one_process_bit_for_bit() {
    for count in 1..4 {
        for scopes in [false, true] {
            let places = places(count);
            let found = all_on_threads(replicas(&places), |rank, (parallel, place)| {
                let mut model = parallel.broadcast(Model::<B>::new(&place)).unwrap();
                let mut optim = adam().with_reduction(Arc::new(parallel));
                let steps = 0..STEPS;
                let steps = steps.map(|number| {
                    let armed = optim.arm(RATE, model.clone());
                    let grads = armed.loss(rank, number, scopes).backward();
                    let grads = GradientsParams::from_grads(grads, &armed);
                    assert!(grads.is_empty());
                    model = optim.step(RATE, armed, grads);
                    assert_eq!(model.bias.device(), place);
                    let report = optim.last_step().unwrap();
                    assert_eq!(report.count(Outcome::Released), 3);
                    model.bits()
                });
                steps.collect::<Vec<_>>()
            });
            let expected = one_process(usize::from(count));
            for found in found {
                assert!(found == expected, "{count} replicas, scopes: {scopes}");
            }
        }
    }
}

#[test]
fn ordinary_gradients_are_reduced_in_the_step() {
    let found = all_on_threads(replicas(&places(2)), |rank, (parallel, place)| {
        let mut model = Model::<B>::new(&place).fork(&place);
        parallel.verify(&model).unwrap();
        let mut optim = adam().with_reduction(Arc::new(parallel));
        for number in 0..STEPS {
            model = step(&mut optim, model, rank, number);
        }
        model.bits()
    });
    for found in found {
        assert_eq!(found, one_process(2)[STEPS - 1]);
    }
}

/// burn-autodiff ends each backward pass with a look at the graphs of all threads. One that waits
/// for a gradient of this thread, in the middle of its own pass, must not be waited for.
#[test]
fn who_runs_backward_first_does_not_keep_the_others_from_coming() {
    let found = all_on_threads(replicas(&places(2)), |rank, (parallel, place)| {
        let mut model = parallel.broadcast(Model::<B>::new(&place)).unwrap();
        let mut optim = adam().with_reduction(Arc::new(parallel));
        let mut accumulator = ReleaseAccumulator::new();
        for number in 0..2 {
            model = accumulator.arm(model);
            let loss = model.loss(rank, number, false);
            if rank == 0 {
                thread::sleep(Duration::from_millis(300));
            }
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            accumulator.accumulate(&model, grads);
            model = optim.arm_accumulated(RATE, model, accumulator.grads());
            model = step(&mut optim, model, rank, 2 + number);
        }
        model.bits()
    });
    assert_eq!(found[0], found[1]);
}

/// The same within one backward pass, which is several where activations are recomputed.
#[test]
fn who_has_finished_a_part_does_not_keep_the_others_from_it() {
    for in_scope in [false, true] {
        let found = all_on_threads(replicas(&places(2)), |rank, (parallel, place)| {
            let (model, mut optim) = armed(parallel, &place);
            // Takes the first replica long to run backward, too.
            let long = |tensor: &Tensor<B, 2>| {
                let times = if rank == 0 { 1000 } else { 1 };
                (0..times).fold(tensor.clone(), |tensor, _| tensor * 1.0)
            };
            let product = |tensor: &Tensor<B, 2>, is_here: bool| match is_here {
                true => long(tensor).matmul(model.second.val()),
                false => long(tensor),
            };
            let x = Tensor::<B, 2>::ones([5, 6], &place).matmul(model.first.val());
            let x = checkpoint(|| product(&x, in_scope));
            let x = product(&x, !in_scope);
            let x = checkpoint(|| long(&x).powi_scalar(2));
            let grads = GradientsParams::from_grads(x.mean().backward(), &model);
            let model = optim.step(RATE, model, grads);
            assert_eq!(optim.last_step().unwrap().recomputed().segments, 2);
            model.bits()
        });
        assert_eq!(found[0], found[1]);
    }
}

#[test]
fn an_all_reduce_on_the_tape_is_that_of_burn() {
    type Burns = Autodiff<Several>;
    fn values<A: DistributedBackend + AutodiffBackend<Device = Place>>() -> Vec<[Vec<f32>; 2]> {
        let places = places(3);
        let ids: Vec<_> = places.iter().map(DeviceOps::id).collect();
        all_on_threads(places, |rank, place| {
            let x = Tensor::<A, 1>::from_data([1.0, -2.0, 0.5 + rank as f32], &place);
            let x = x.require_grad();
            let squares = (x.clone() * x.clone()).into_primitive().tensor();
            let reduced = A::all_reduce(squares, ReduceOperation::Mean, ids.clone()).resolve();
            let reduced = Tensor::<A, 1>::from_primitive(TensorPrimitive::Float(reduced));
            let loss = (reduced.clone() * (rank as f32 + 1.0) / 4.0).exp().sum();
            let gradient = x.grad(&loss.backward()).unwrap();
            [reduced.into_data(), gradient.into_data()].map(|data| data.to_vec().unwrap())
        })
    }
    assert_eq!(values::<B>(), values::<Burns>());
}
