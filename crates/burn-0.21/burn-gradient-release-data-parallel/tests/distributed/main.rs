//! Replicas on several devices of one process, with Burn's feature `distributed`: a backend of the
//! tests has devices on the processor, and an all-reduce over them.

mod all_reduce;
mod backend;
mod burns_own;
mod model;
mod ops;
mod refused;
mod steps;

use std::{panic::resume_unwind, sync::Arc, thread, time::Duration};

use burn::{
    backend::Autodiff,
    optim::{Adam, AdamConfig, GradientsParams, Optimizer},
};
use burn_gradient_release::{GradientRelease, ReleaseOptimizer, WithGradientRelease};
use burn_gradient_release_data_parallel::DeviceParallel;

use backend::{Place, Several};
use model::{Model, RATE};

type B = GradientRelease<Autodiff<Several>>;
type Optim = ReleaseOptimizer<Adam, Model<B>, B>;

fn adam() -> Optim {
    AdamConfig::new().init().with_gradient_release()
}

/// Runs `work` on a thread for each; what each returns, in their order.
fn on_threads<T: Send, R: Send>(
    each: impl IntoIterator<Item = T>,
    work: impl Fn(usize, T) -> R + Sync,
) -> Vec<thread::Result<R>> {
    thread::scope(|scope| {
        let work = &work;
        let each = each.into_iter().enumerate();
        let threads: Vec<_> = each
            .map(|(rank, one)| scope.spawn(move || work(rank, one)))
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    })
}

/// The same, where none of them panics.
fn all_on_threads<T: Send, R: Send>(
    each: impl IntoIterator<Item = T>,
    work: impl Fn(usize, T) -> R + Sync,
) -> Vec<R> {
    let done = on_threads(each, work).into_iter();
    done.map(|done| done.unwrap_or_else(|panic| resume_unwind(panic)))
        .collect()
}

/// The replicas on these devices, which do not wait long for one another.
fn replicas(places: &[Place]) -> impl Iterator<Item = (DeviceParallel, Place)> {
    let replicas = DeviceParallel::new(places).unwrap().into_iter();
    let hurried = replicas.map(|replica| replica.with_timeout(Duration::from_secs(10)));
    hurried.zip(places.to_vec())
}

/// A replica that has the model of all, armed, and its optimizer.
fn armed(parallel: DeviceParallel, place: &Place) -> (Model<B>, Optim) {
    let model = parallel.broadcast(Model::<B>::new(place)).unwrap();
    let mut optim = adam().with_reduction(Arc::new(parallel));
    (optim.arm(RATE, model), optim)
}

/// Runs backward from the loss of a replica, and finishes the step.
fn step(optim: &mut Optim, model: Model<B>, replica: usize, number: usize) -> Model<B> {
    let grads = model.loss(replica, number, false).backward();
    let grads = GradientsParams::from_grads(grads, &model);
    optim.step(RATE, model, grads)
}
