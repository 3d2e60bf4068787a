//! Replicas of a model on several devices of one process.

use std::{collections::HashMap, sync::Arc, time::Duration};

use burn::{
    module::{Module, ParamId},
    optim::LearningRate,
    tensor::{
        backend::{
            Backend, DeviceId, DeviceOps,
            distributed::{CollectiveTensor, DistributedBackend, ReduceOperation},
        },
        ops::FloatTensor,
    },
};
use burn_gradient_release::{GradientReduction, PendingGradient, Recipients, ReductionError};
use lean_replicas::{ReplicaError, Replicas, Threads};

use crate::{DataParallel, data_parallel::Alone};

/// Trains replicas of a model data parallel on several devices of one process, each on a thread of
/// its own: the mean of each gradient is taken by Burn's own all-reduce (NCCL on CUDA), stepped
/// with and freed before the next one is complete. No gradient travels through host memory.
///
/// It is a [`GradientReduction`] for
/// [`ReleaseOptimizer::with_reduction`](burn_gradient_release::ReleaseOptimizer::with_reduction),
/// as [`DataParallel`] is, and takes the place of Burn's own: the parameters of the model are not
/// marked as distributed. While the devices reduce a gradient, backward computes the next. In which
/// order a mean is added up is up to the backend, as in Burn's `ddp`; the weights of all devices
/// are equal, if the backend gives the same mean to all of them.
///
/// With recomputed activations ([`Recompute`](burn_gradient_release::Recompute)), give all replicas
/// shares of the same shapes: they run backward part by part, and in the same parts.
///
/// Before a gradient is reduced, the threads compare what it is. Where one has gone another way, or
/// has panicked, all of them get an error.
///
/// ```no_run
/// # #[cfg(feature = "cuda")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::{sync::Arc, thread};
///
/// use burn::{
///     backend::{Autodiff, Cuda, cuda::CudaDevice},
///     module::Module,
///     nn::{Linear, LinearConfig},
///     optim::{AdamConfig, GradientsParams, Optimizer},
///     tensor::{Tensor, backend::DeviceOps},
/// };
/// use burn_gradient_release_data_parallel::DeviceParallel;
/// use burn_gradient_release::{GradientRelease, WithGradientRelease};
///
/// type B = GradientRelease<Autodiff<Cuda>>;
///
/// let devices = [CudaDevice::new(0), CudaDevice::new(1)];
/// let model: Linear<B> = LinearConfig::new(4, 2).init(&devices[0]);
/// let threads: Vec<_> = DeviceParallel::new(&devices)?
///     .into_iter()
///     .zip(devices)
///     .map(|(parallel, device)| {
///         let model = model.clone();
///         thread::spawn(move || {
///             let mut model = model.fork(&device);
///             parallel.verify(&model).expect("the models are equal");
///             let optim = AdamConfig::new().init().with_gradient_release();
///             let mut optim = optim.with_reduction(Arc::new(parallel));
///
///             model = optim.arm(1e-3, model);
///             let share = Tensor::<B, 2>::ones([8, 4], &device);
///             let grads = model.forward(share).mean().backward();
///             let grads = GradientsParams::from_grads(grads, &model);
///             optim.step(1e-3, model, grads)
///         })
///     })
///     .collect();
/// for thread in threads {
///     let _model = thread.join().expect("a replica has panicked");
/// }
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "cuda"))]
/// # fn main() {}
/// ```
#[derive(Clone, Debug)]
pub struct DeviceParallel {
    parallel: DataParallel,
    /// The devices of all replicas, by rank.
    device_ids: Arc<[DeviceId]>,
}

impl DeviceParallel {
    /// The replicas, one for each device, in the order of the devices. Move each into the thread
    /// that trains on its device: what is dropped while that thread panics tells the others.
    ///
    /// # Errors
    ///
    /// If a device is given twice.
    pub fn new<D: DeviceOps>(devices: &[D]) -> Result<Vec<Self>, ReplicaError> {
        let device_ids: Arc<[DeviceId]> = devices.iter().map(DeviceOps::id).collect();
        for (rank, id) in device_ids.iter().enumerate() {
            if device_ids[..rank].contains(id) {
                let device = id.to_string();
                return Err(ReplicaError::SameDevice { device });
            }
        }
        Threads::new(devices.len())
            .into_iter()
            .map(|thread| {
                Ok(Self {
                    parallel: DataParallel::new(Replicas::of_threads(thread)?),
                    device_ids: device_ids.clone(),
                })
            })
            .collect()
    }

    /// Sets how long to wait for the other threads (default 30 min).
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self {
            parallel: self.parallel.with_timeout(timeout),
            ..self
        }
    }

    /// The threads: this one's rank, and what they can agree on beside gradients.
    pub fn replicas(&self) -> &Replicas {
        self.parallel.replicas()
    }

    /// The model of the first replica, with the ids of its parameters, on all of them, each on its
    /// own device. Call it once the models are initialized, and before the optimizers are used.
    ///
    /// # Errors
    ///
    /// If the models differ in a parameter, its shape or its type.
    pub fn broadcast<B: Backend, M: Module<B>>(&self, model: M) -> Result<M, ReplicaError> {
        self.parallel.broadcast(model)
    }

    /// Compares the models of all replicas, as after each has got a fork of the same model: paths,
    /// shapes, types, ids and values.
    ///
    /// # Errors
    ///
    /// If they differ.
    pub fn verify<B: Backend, M: Module<B>>(&self, model: &M) -> Result<(), ReplicaError> {
        self.parallel.verify(model)
    }

    /// The device of this replica.
    fn own(&self) -> DeviceId {
        self.device_ids[self.replicas().rank()]
    }
}

impl<B: DistributedBackend> GradientReduction<B> for DeviceParallel {
    fn begin_part(&self) -> Result<(), ReductionError> {
        Ok(self.replicas().meet("a backward pass")?)
    }

    /// # Errors
    ///
    /// If the replicas do not agree on what is reduced, or the gradient is on another device than
    /// this replica's.
    fn begin(
        &self,
        param: ParamId,
        grad: FloatTensor<B>,
        _recipients: Recipients,
    ) -> Result<Box<dyn PendingGradient<B>>, ReductionError> {
        let found = B::float_device(&grad).id();
        let stray = (found != self.own()).then(|| found.to_string());
        // All of the replicas are told: the others would wait for this one.
        let place = stray.as_ref().map(|device| format!(" on {device}"));
        self.parallel
            .meet_at::<B>(param, &grad, place.as_deref().unwrap_or_default())?;
        if let Some(device) = stray {
            let own = self.own().to_string();
            return Err(ReplicaError::OtherDevice { device, own }.into());
        }
        if self.device_ids.len() == 1 {
            return Ok(Box::new(Alone::<B>(grad)));
        }
        let ids = self.device_ids.to_vec();
        let reduced = B::all_reduce(grad, ReduceOperation::Mean, ids);
        Ok(Box::new(Reducing(reduced)))
    }

    fn end_step(
        &self,
        learning_rate: LearningRate,
        other_rates: &HashMap<ParamId, LearningRate>,
    ) -> Result<(), ReductionError> {
        GradientReduction::<B>::end_step(&self.parallel, learning_rate, other_rates)
    }
}

/// A gradient that the devices reduce.
struct Reducing<B: DistributedBackend>(CollectiveTensor<B>);

impl<B: DistributedBackend> PendingGradient<B> for Reducing<B> {
    fn wait(self: Box<Self>) -> Result<Option<FloatTensor<B>>, ReductionError> {
        Ok(Some(self.0.resolve()))
    }
}
