//! Trains a small network on all GPUs of the machine, in one process: a replica on each, on a
//! thread of its own.
//!
//! ```sh
//! cargo run --release -p burn-gradient-release-data-parallel --features cuda,distributed --example devices
//! ```

use std::{error::Error, sync::Arc, thread};

use burn::{
    backend::{Autodiff, Cuda, cuda::CudaDevice},
    module::Module,
    nn::{Linear, LinearConfig},
    optim::{AdamConfig, GradientsParams, Optimizer},
    tensor::{
        Distribution, Tensor, activation,
        backend::{Backend, DeviceOps},
    },
};
use burn_gradient_release::{GradientRelease, WithGradientRelease};
use burn_gradient_release_data_parallel::DeviceParallel;

type B = GradientRelease<Autodiff<Cuda>>;

const BATCH: usize = 256;
const STEPS: usize = 100;
const RATE: f64 = 1e-3;

#[derive(Module, Debug)]
struct Network<B: Backend> {
    hidden: Linear<B>,
    output: Linear<B>,
}

impl<B: Backend> Network<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            hidden: LinearConfig::new(64, 512).init(device),
            output: LinearConfig::new(512, 1).init(device),
        }
    }

    /// `[batch, 64]` to `[batch, 1]`.
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.output
            .forward(activation::gelu(self.hidden.forward(x)))
    }
}

fn train(parallel: DeviceParallel, model: Network<B>, device: &CudaDevice) -> Result<f32, String> {
    let replicas = parallel.replicas().clone();
    let mut model = model.fork(device);
    parallel.verify(&model).map_err(|error| error.to_string())?;
    let optim = AdamConfig::new().init().with_gradient_release();
    let mut optim = optim.with_reduction(Arc::new(parallel));
    let mut last = f32::NAN;
    for step in 0..STEPS {
        model = optim.arm(RATE, model);
        let share = [BATCH / replicas.size(), 64];
        let x = Tensor::<B, 2>::random(share, Distribution::Default, device);
        let target = x.clone().powi_scalar(2).mean_dim(1);
        let loss = (model.forward(x) - target).powi_scalar(2).mean();
        if replicas.is_first() && step % 10 == 9 {
            last = loss.clone().into_scalar();
            println!("step {}: {last}", step + 1);
        }
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(RATE, model, grads);
    }
    Ok(last)
}

fn main() -> Result<(), Box<dyn Error>> {
    let count = B::device_count(CudaDevice::default().id().type_id);
    let devices: Vec<_> = (0..count).map(CudaDevice::new).collect();
    let Some(first) = devices.first() else {
        return Err("there is no GPU".into());
    };
    let model = Network::<B>::new(first);
    let replicas = DeviceParallel::new(&devices)?.into_iter().zip(&devices);
    thread::scope(|scope| {
        let threads: Vec<_> = replicas
            .map(|(parallel, device)| {
                let model = model.clone();
                scope.spawn(move || train(parallel, model, device))
            })
            .collect();
        for thread in threads {
            thread.join().map_err(|_| "a replica has panicked")??;
        }
        Ok(())
    })
}
