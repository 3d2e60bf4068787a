//! Replicas of a model whose gradients are averaged before each step.

mod model;
mod states;

use std::num::NonZeroUsize;

use burn::Tensor;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ParamId};
use burn::optim::OptimizerRecord;
use burn::tensor::{DType, Device, Element, TensorData};
use burn_replicas::{Exchange, Pending, ReplicaError, Replicas, Summand, kind};

use self::states::States;
use crate::optimizer::ReleaseOptimizer;
use crate::reduction::{GradientReduction, PendingGradient, Recipients, ReductionError};

/// Trains replicas of a model data parallel: each replica runs backward over its share of a batch,
/// steps with the mean of each gradient over all replicas, and frees it before the next one is
/// complete.
///
/// It is a [`GradientReduction`] for
/// [`ReleaseOptimizer::with_reduction`](crate::ReleaseOptimizer::with_reduction). While a gradient
/// is in flight, backward computes the next. The weights of all replicas are equal, bit for bit:
/// the gradients are added up in the order of the ranks, and the sum is divided by their number.
/// Gradients of 16 bits are added up in 32 bits.
///
/// Gradients travel through host memory; on a GPU each is read when it is complete, which waits for
/// the device.
///
/// ```
/// use std::sync::Arc;
///
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::{AdamConfig, GradientsParams};
/// use burn::tensor::{Device, Tensor};
/// use burn_lean::{Alone, DataParallel, Replicas, WithGradientRelease};
///
/// // In each of the processes that `mpirun` has started: `Replicas::new(Mpi::initialize)`.
/// let replicas = Replicas::new(|| Ok(Alone))?;
/// let parallel = DataParallel::new(replicas);
///
/// let device = Device::flex().autodiff();
/// let model: Linear = LinearConfig::new(4, 2).init(&device);
/// let mut model = parallel.broadcast(model)?;
/// let optim = AdamConfig::new().init().with_gradient_release();
/// let mut optim = optim.with_reduction(Arc::new(parallel.clone()));
///
/// model = optim.arm(1e-3, model);
/// let share = parallel.replicas().share(32); // of the items of a whole batch
/// let batch = Tensor::<2>::ones([share.len(), 4], &device);
/// let grads = model.forward(batch).mean().backward();
/// let grads = GradientsParams::from_grads(grads, &model);
/// model = optim.step(1e-3, model, grads);
/// # let _ = model;
/// # Ok::<_, burn_lean::ReplicaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DataParallel {
    exchange: Exchange,
}

impl DataParallel {
    /// Every replica steps every parameter.
    pub fn new(replicas: Replicas) -> Self {
        Self {
            exchange: Exchange::new(replicas),
        }
    }

    /// Each parameter is stepped by one replica, which alone has its optimizer state, and sends the
    /// new weight to the others (ZeRO stage 1: Rajbhandari et al., 2020,
    /// <https://arxiv.org/abs/1910.02054>). The states of a replica take as much less memory as
    /// there are replicas.
    ///
    /// Save what [`gather_states`](Self::gather_states) puts together: the optimizer refuses a
    /// record of one replica's states. Each replica loads that record, and keeps its share.
    pub fn with_sharded_optimizer(mut self) -> Self {
        self.exchange = self.exchange.with_sharded_optimizer();
        self
    }

    /// Sets how many reductions may be in flight while backward computes the next gradient (default
    /// 1). Each takes the memory of a gradient.
    pub fn with_max_in_flight(mut self, gradients: NonZeroUsize) -> Self {
        self.exchange = self.exchange.with_max_in_flight(gradients);
        self
    }

    /// The processes.
    pub fn replicas(&self) -> &Replicas {
        self.exchange.replicas()
    }

    /// Sends the model of the first replica, with the ids of its parameters, to all of them. Call
    /// it once the model is initialized, and before the optimizer is used or loads a record.
    ///
    /// # Errors
    ///
    /// If the models differ in a parameter, its shape or its type, or one is armed.
    pub fn broadcast<M: Module>(&self, model: M) -> Result<M, ReplicaError> {
        let model = model::broadcast(self.replicas(), model)?;
        self.verify(&model)?;
        Ok(model)
    }

    /// Compares the models of all replicas, as after each has loaded the same checkpoint: paths,
    /// shapes, types, ids and values.
    ///
    /// # Errors
    ///
    /// If they differ, or one is armed.
    pub fn verify<M: Module>(&self, model: &M) -> Result<(), ReplicaError> {
        self.exchange.know(model::verify(self.replicas(), model)?);
        Ok(())
    }

    /// The optimizer's states, to be saved: on the first replica the states of all parameters, on
    /// another one its own states. The record of the first is Burn's, to be resumed by any number
    /// of replicas, or by plain Burn. All replicas call it.
    ///
    /// States travel parameter by parameter, in the host's memory and in their own type.
    ///
    /// # Errors
    ///
    /// If a replica does something else, or its optimizer has stepped parameters and not finished.
    pub fn gather_states(&self, optim: &ReleaseOptimizer) -> Result<OptimizerRecord, ReplicaError> {
        let failed = |reason: String| ReplicaError::States { reason };
        let own = optim.own_record();
        let own = own.map_err(|error| failed(error.to_string()))?;
        if !self.exchange.is_sharded() {
            return Ok(own);
        }
        let mut states = States::of(own)?;
        for (param, path, owner) in self.exchange.owners() {
            let is_owner = owner == self.replicas().rank();
            let bytes = match is_owner {
                true => states.of_param(param).into_bytes()?,
                false => Vec::new(),
            };
            let what = format!("the optimizer's state of {path}");
            let bytes = self.exchange.from_rank(owner, &what, bytes)?;
            if is_owner || self.replicas().is_first() {
                states.extend(States::of_bytes(bytes)?);
            }
        }
        states.into_record()
    }

    fn send<E: Summand + Element>(
        &self,
        param: ParamId,
        kind: &str,
        data: TensorData,
        recipients: Recipients,
    ) -> Result<(Pending<TensorData>, bool), ReplicaError> {
        let values: Vec<E> = data.try_into_vec().expect("the type was looked at");
        let recipients = match recipients {
            Recipients::All => burn_replicas::Recipients::All,
            Recipients::Owner => burn_replicas::Recipients::Owner,
        };
        let made = |mean: Vec<E>| {
            let numbers = mean.len();
            TensorData::new(mean, [numbers])
        };
        self.exchange
            .mean(param.val(), kind, values, recipients, made)
    }
}

impl GradientReduction for DataParallel {
    fn begin(
        &self,
        param: ParamId,
        grad: Tensor<1>,
        recipients: Recipients,
    ) -> Result<Box<dyn PendingGradient>, ReductionError> {
        let dtype = grad.dtype();
        let kind = kind(&grad.dims(), dtype);
        // An unknown parameter is refused, with any number of replicas.
        let what = self.exchange.describe("gradient", param.val(), &kind)?;
        if self.replicas().size() == 1 {
            return Ok(Box::new(Whole(grad)));
        }
        let device = grad.device();
        let data = grad.try_into_data()?;
        let (pending, is_needed) = match dtype {
            DType::F64 => self.send::<f64>(param, &kind, data, recipients)?,
            DType::F32 => self.send::<f32>(param, &kind, data, recipients)?,
            DType::F16 | DType::BF16 => {
                let data = data.convert_dtype(DType::F32);
                self.send::<f32>(param, &kind, data, recipients)?
            }
            dtype => {
                let dtype = format!("{dtype:?}");
                return Err(ReplicaError::DType { what, dtype }.into());
            }
        };
        Ok(Box::new(OnItsWay {
            pending,
            device,
            dtype,
            is_needed,
        }))
    }

    fn order(&self) -> Option<Vec<ParamId>> {
        let order = self.exchange.order()?.into_iter();
        Some(order.map(ParamId::from).collect())
    }

    fn completed(&self, order: Vec<ParamId>) {
        let order = order.into_iter().map(|param| param.val());
        self.exchange.completed(order.collect());
    }

    fn max_in_flight(&self) -> NonZeroUsize {
        self.exchange.max_in_flight()
    }

    fn is_sharded(&self) -> bool {
        self.exchange.is_sharded()
    }

    fn is_owner(&self, param: ParamId) -> bool {
        // `begin` has refused unknown parameters.
        self.exchange.is_owner(param.val()).unwrap_or(true)
    }

    fn weight_from_owner(
        &self,
        param: ParamId,
        weight: Tensor<1>,
    ) -> Result<Tensor<1>, ReductionError> {
        let (device, dtype, dims) = (weight.device(), weight.dtype(), weight.dims());
        let bytes = dims[0] * dtype.size();
        let own = || Ok::<_, ReductionError>(weight.try_into_data()?.as_bytes().to_vec());
        let bytes =
            self.exchange
                .weight_from_owner(param.val(), &kind(&dims, dtype), bytes, own)?;
        let data = TensorData::from_bytes_vec(bytes, dims, dtype);
        Ok(Tensor::from_data(data, (&device, dtype)))
    }

    fn own_states(&self, record: OptimizerRecord) -> Result<OptimizerRecord, ReductionError> {
        let mut states = States::of(record)?;
        for param in states.params() {
            if !self.exchange.is_owner(param)? {
                states.of_param(param);
            }
        }
        Ok(states.into_record()?)
    }

    fn end_step(&self, rates: &ModuleLearningRate) -> Result<(), ReductionError> {
        let rates = self.exchange.rates(|param, path| {
            let rate = rates.lr_from_param(ParamId::from(param), Some(path));
            format!("{rate:e}")
        });
        Ok(self.exchange.end_step(&rates)?)
    }
}

struct OnItsWay {
    pending: Pending<TensorData>,
    device: Device,
    dtype: DType,
    is_needed: bool,
}

impl PendingGradient for OnItsWay {
    fn wait(self: Box<Self>) -> Result<Option<Tensor<1>>, ReductionError> {
        let mean = self.pending.wait()?;
        let options = (&self.device, self.dtype);
        let mean = self.is_needed.then(|| mean.convert_dtype(self.dtype));
        Ok(mean.map(|mean| Tensor::from_data(mean, options)))
    }
}

/// The gradient of a single replica.
struct Whole(Tensor<1>);

impl PendingGradient for Whole {
    fn wait(self: Box<Self>) -> Result<Option<Tensor<1>>, ReductionError> {
        Ok(Some(self.0))
    }
}
