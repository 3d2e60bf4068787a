//! Each replica has a part of the optimizer's states.

use std::sync::Arc;

use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
use burn_gradient_release_data_parallel::DataParallel;

use super::reference::{mean_grads, share};
use crate::harness::prelude::*;
use crate::harness::ranks::ranks;

type S = Transformer;

const STEPS: u64 = 6;

/// A record goes from plain Burn to sharded replicas, and from them to plain Burn.
#[test]
fn records_are_those_of_plain_burn() {
    ranks(
        [2, 4],
        "mpi::sharding::records_are_those_of_plain_burn",
        |replicas| {
            let (rank, size) = (replicas.rank(), replicas.size());
            let parallel = DataParallel::new(replicas).with_sharded_optimizer();
            let drawn = Start::new::<S>(Size::Small).model::<S, R>();
            let mut model = parallel.broadcast(drawn).unwrap();
            let start = Start::from_bytes(Size::Small, save(model.clone()));
            let mut plain = start.model::<S, P>();
            let mut plain_optim = AdamConfig::new().init::<P, <S as Scenario>::Model<P>>();
            let step_plain = |plain, optim: &mut _, step| {
                let grads = mean_grads::<S>(&plain, Size::Small, size, step, 1);
                Optimizer::step(optim, RATE, plain, grads)
            };
            for step in 0..STEPS {
                plain = step_plain(plain, &mut plain_optim, step);
            }
            let recorder = BinBytesRecorder::<FullPrecisionSettings>::new();
            let record = Recorder::<P>::record(&recorder, plain_optim.to_record(), ()).unwrap();
            let record = Recorder::<R>::load(&recorder, record, &Default::default()).unwrap();
            model = model.load_record(
                Start::from_bytes(Size::Small, save(plain.clone()))
                    .model::<S, R>()
                    .into_record(),
            );

            let optim = AdamConfig::new().init::<R, <S as Scenario>::Model<R>>();
            let optim = optim.with_gradient_release();
            let mut optim = optim
                .with_reduction(Arc::new(parallel.clone()))
                .load_record(record);
            let all = optim.to_record().len();
            for step in STEPS..2 * STEPS {
                plain = step_plain(plain, &mut plain_optim, step);
                model = optim.arm(RATE, model);
                let grads = gradients(
                    &model,
                    <S as Scenario>::loss::<R>(&model, Size::Small, share(step, rank, size)),
                );
                model = optim.step(RATE, model, grads);
                let weights = Weights::of(&model);
                weights.assert_same(&Weights::of(&plain), format!("rank {rank}, step {step}"));
                let own = optim.to_record().len();
                assert!(own > 0 && own < all, "{own} of {all} states");
                // In the middle of the run, too: the next arming drops them again.
                parallel.gather_states(&mut optim).unwrap();
                if parallel.replicas().is_first() {
                    let expected = readable::<P, _>(plain_optim.to_record());
                    assert_eq!(readable::<R, _>(optim.to_record()), expected);
                }
            }
        },
    );
}
