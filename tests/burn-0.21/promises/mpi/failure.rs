//! A replica that goes another way, or ends. (One that is killed: `data_parallel::failure` of burn-lean,
//! by the same communicator.)

use std::sync::Arc;

use burn_gradient_release_data_parallel::{DataParallel, Replicas};

use crate::harness::prelude::*;
use crate::harness::ranks::failing_ranks;

#[derive(Module, Debug)]
struct Pair<B: Backend> {
    one: Linear<B>,
    other: Linear<B>,
}

/// Trains; `used` says by rank and step which layers, and nothing where the replica leaves.
fn train(replicas: Replicas, used: fn(usize, u64) -> Option<[bool; 2]>) {
    let rank = replicas.rank();
    let parallel = DataParallel::new(replicas);
    let device = Default::default();
    let linear = || LinearConfig::new(4, 4).init(&device);
    let pair = Pair::<R> {
        one: linear(),
        other: linear(),
    };
    let mut model = parallel.broadcast(pair).unwrap();
    let optim = AdamConfig::new().init().with_gradient_release();
    let mut optim = optim.with_reduction(Arc::new(parallel));
    for step in 0..50 {
        let Some([one, other]) = used(rank, step) else {
            return;
        };
        model = optim.arm(1e-3, model);
        let x: Tensor<R, 2> = noise(step, [2, 4], &device);
        let mut loss = Tensor::<R, 1>::zeros([1], &device);
        if one {
            loss = loss + model.one.forward(x.clone()).square().mean();
        }
        if other {
            loss = loss + model.other.forward(x).square().mean();
        }
        let grads = gradients(&model, loss);
        model = optim.step(1e-3, model, grads);
    }
}

/// A test for each way: what it runs in other processes is chosen by its name. All of them end, and
/// say these texts.
macro_rules! fails {
    ($($test:ident: $used:expr, $said:expr;)*) => {$(
        #[test]
        fn $test() {
            let test = concat!("mpi::failure::", stringify!($test));
            let Some(said) = failing_ranks(3, test, |replicas| train(replicas, $used)) else {
                return;
            };
            for part in $said {
                assert!(said.contains(part), "{part}\n{said}");
            }
        }
    )*};
}

fails! {
    another_path_through_the_model_is_named_on_every_rank:
        |rank, step| Some([true, (rank, step) != (1, 3)]),
        ["rank 0, 2: the gradient of other.", "rank 1: the gradient of one.", "in step 4"];
    a_gradient_less_is_named:
        |rank, step| Some([(rank, step) != (2, 3), true]),
        ["in step 4", "rank 2: the end of step 4 with rate 1e-3"];
    a_panic_ends_all:
        |rank, step| {
            assert!((rank, step) != (1, 5), "told to fail");
            Some([true; 2])
        },
        ["told to fail"];
    leaving_early_is_named:
        |rank, _| (rank != 1).then_some([true; 2]),
        ["rank 1: the end of the training"];
}
