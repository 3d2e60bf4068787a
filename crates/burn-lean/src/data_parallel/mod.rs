//! Replicas of a model whose gradients are averaged before each step.

mod model;
#[cfg(feature = "train")]
mod saved;
mod states;

use std::num::NonZeroUsize;
use std::path::Path;

use burn::Tensor;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ParamId};
#[cfg(feature = "train")]
use burn::optim::ModuleOptimizer;
use burn::optim::OptimizerRecord;
use burn::tensor::{DType, Device, Element, TensorData};
use lean_replicas::{Exchange, Pending, ReplicaError, Replicas, Summand, kind};

pub use self::states::SaveStatesError;
use self::states::{States, failed};
use crate::error::ReleaseError;
use crate::optimizer::ReleaseOptimizer;
use crate::reduction::{GradientReduction, PendingGradient, Recipients, ReductionError};
use crate::wide::wide;

/// Trains replicas of a model data parallel: each replica runs backward over its share of a batch,
/// steps with the mean of each gradient over all replicas, and frees it before the next one is
/// complete.
///
/// It is a [`GradientReduction`] for
/// [`ReleaseOptimizer::with_reduction`](crate::ReleaseOptimizer::with_reduction). While a gradient
/// is in flight, backward computes the next. The weights of all replicas are equal, bit for bit:
/// the gradients are added up in the order of the ranks, and the sum is divided by their number. On
/// a GPU, clipping and optimizers that compute sums may differ in the last bits. Gradients of 16
/// bits are added up in 32 bits.
///
/// It may serve several models, each with an optimizer of its own.
///
/// Gradients travel through host memory; on a GPU each is read when it is complete, which waits for
/// the device.
///
/// ```
/// use std::sync::Arc;
///
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::AdamConfig;
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
/// let share = parallel.replicas().share(32); // of the items of a whole batch
/// let batch = Tensor::<2>::ones([share.len(), 4], &device);
/// let loss = model.forward(batch).mean();
/// model = optim.backward(1e-3, loss, model);
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

    /// Each parameter is stepped by one replica, which alone has its optimizer state and sends the
    /// new weight to the others (ZeRO stage 1: Rajbhandari et al., 2020,
    /// <https://arxiv.org/abs/1910.02054>). The memory for states is divided by the number of
    /// replicas.
    ///
    /// Save them with [`save_states`](Self::save_states), or what
    /// [`gather_states`](Self::gather_states) puts together: the optimizer refuses a record of one
    /// replica's states. Each replica loads that record, and keeps its share.
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

    /// The replicas.
    pub fn replicas(&self) -> &Replicas {
        self.exchange.replicas()
    }

    /// Sends the model of the first replica, with the ids of its parameters, to all of them. Call
    /// it once the model is initialized, and before the optimizer is used or loads a record.
    ///
    /// Running statistics (`BatchNorm`) also come from the first replica, with their pending
    /// updates. In training each replica updates its own, by its share of a batch:
    /// [`share_running_states`](Self::share_running_states) makes them equal again.
    ///
    /// # Errors
    ///
    /// If the models differ in a parameter, its shape, its type or whether it is trained.
    pub fn broadcast<M: Module>(&self, model: M) -> Result<M, ReplicaError> {
        let model = model::broadcast(self.replicas(), model, false)?;
        self.exchange.know(model::known(&model));
        Ok(model)
    }

    /// Gives all replicas the running statistics (`BatchNorm`) of the first one, and whatever else
    /// is not trained, as before a validation or a checkpoint. Trained parameters have to be equal.
    /// On a GPU, where sums may differ in the last bits, they also come from the first replica.
    ///
    /// # Errors
    ///
    /// If the models differ in what is trained, or elsewhere in a shape or a type.
    pub fn share_running_states<M: Module>(&self, model: M) -> Result<M, ReplicaError> {
        model::broadcast(self.replicas(), model, true)
    }

    /// Compares the models of all replicas, as after each has loaded the same checkpoint: paths,
    /// shapes, types, values, and the ids of what is trained.
    ///
    /// # Errors
    ///
    /// If they differ.
    pub fn verify<M: Module>(&self, model: &M) -> Result<(), ReplicaError> {
        model::verify(self.replicas(), model)?;
        self.exchange.know(model::known(model));
        Ok(())
    }

    /// The optimizer's states, to be saved: on the first replica those of all parameters, `None`
    /// elsewhere. The record is Burn's, to be resumed by any number of replicas, or by plain Burn.
    /// All replicas call it.
    ///
    /// States travel parameter by parameter, in the host's memory and in their own type. While the
    /// first replica puts the record together, it needs twice the memory of the record.
    /// [`save_states`](Self::save_states) needs the memory of one parameter.
    ///
    /// # Errors
    ///
    /// If a replica makes another call, or its optimizer has stepped parameters and not finished.
    pub fn gather_states(
        &self,
        optim: &ReleaseOptimizer,
    ) -> Result<Option<OptimizerRecord>, ReplicaError> {
        if !self.exchange.is_sharded() {
            let record = || optim.own_record().map_err(refused);
            return self.replicas().is_first().then(record).transpose();
        }
        let optim = optim.own_optimizer().map_err(refused)?;
        Ok(states::gathered(&self.exchange, optim, |writer| {
            let bytes = writer.into_bytes().map_err(|error| error.to_string())?;
            OptimizerRecord::from_bytes(bytes).map_err(|error| error.to_string())
        })?)
    }

    /// Like [`gather_states`](Self::gather_states) of sharded states: an optimizer to be saved.
    #[cfg(feature = "train")]
    pub(crate) fn gather_optimizer(
        &self,
        optim: &ReleaseOptimizer,
    ) -> Result<Option<ModuleOptimizer>, ReplicaError> {
        let optim = optim.own_optimizer().map_err(refused)?;
        let states = states::gathered(&self.exchange, optim, |writer| {
            States::read(writer.into_bytes().map_err(failed)?)
        })?;
        states.map(States::into_optimizer).transpose()
    }

    /// Writes the optimizer's states to a file: those of all parameters, by the first replica, as
    /// [`OptimizerRecord::save`] does. Any number of replicas resumes them, and so does plain Burn.
    /// All replicas call it, each with some path.
    ///
    /// If states are sharded, a replica holds its share, and copies of one parameter's at a time. On
    /// all replicas the call ends when the file is complete, so that each can load it.
    ///
    /// # Errors
    ///
    /// - [`Replicas`](SaveStatesError::Replicas), if a replica makes another call, or its optimizer
    ///   has stepped parameters and not finished;
    /// - [`File`](SaveStatesError::File) on all replicas, if the first could not write the file. They
    ///   go on together.
    pub fn save_states(
        &self,
        optim: &ReleaseOptimizer,
        file: impl AsRef<Path>,
    ) -> Result<(), SaveStatesError> {
        let written = self.write_states(optim, file.as_ref());
        let failure = written.as_ref().err().map(ToString::to_string);
        let what = "the optimizer's states are saved";
        let failure = self.replicas().anybody_says(what, failure);
        // Its own error says more.
        written?;
        match failure? {
            Some(reason) => Err(SaveStatesError::File { reason }),
            None => Ok(()),
        }
    }

    fn write_states(&self, optim: &ReleaseOptimizer, file: &Path) -> Result<(), SaveStatesError> {
        if self.exchange.is_sharded() {
            let optim = optim.own_optimizer().map_err(refused)?;
            states::gathered(&self.exchange, optim, |writer| writer.write_to_file(file))?;
        } else if self.replicas().is_first() {
            let saved = optim.own_record().map_err(refused)?.save(file);
            saved.map_err(|error| SaveStatesError::File {
                reason: error.to_string(),
            })?;
        }
        Ok(())
    }

    /// Continues from states that [`save_states`](Self::save_states), or Burn, has written to a
    /// file. All replicas call it, once they have compared the model.
    ///
    /// It is [`load_record`](ReleaseOptimizer::load_record) for a file: if states are sharded, a
    /// replica keeps those of its share alone in memory. Before any of them loads its file, the
    /// replicas compare what they have read.
    ///
    /// # Errors
    ///
    /// If the file of a replica cannot be read, has states of a parameter that is in no model that the
    /// replicas have compared, or differs from that of another one.
    pub fn load_states(
        &self,
        optim: ReleaseOptimizer,
        file: impl AsRef<Path>,
    ) -> Result<ReleaseOptimizer, ReplicaError> {
        let read = self.read_states(file.as_ref());
        if self.replicas().size() > 1 {
            let failure = read.as_ref().err().map(|error| match error {
                ReplicaError::States { reason } => reason.clone(),
                error => error.to_string(),
            });
            let what = "the optimizer's states are read";
            let failure = self.replicas().anybody_says(what, failure)?;
            if let (Ok(_), Some(reason)) = (&read, failure) {
                return Err(ReplicaError::States { reason });
            }
        }
        let (states, digest) = read?;
        if let Some(digest) = digest {
            let what = format!("the optimizer's states to load, digest {digest:016x}");
            self.replicas().meet(&what)?;
        }
        if !self.exchange.is_sharded() {
            let record = OptimizerRecord::load(file).map_err(failed)?;
            return Ok(optim.load_record(record));
        }
        let own = self.own(states)?.into_record()?;
        Ok(optim.load_own(own))
    }

    /// The states in a file, all of parameters that are known, and what tells them from others.
    fn read_states(&self, file: &Path) -> Result<(States, Option<u64>), ReplicaError> {
        let states = States::of_file(file)?;
        for param in states.params() {
            self.exchange.owner(param)?;
        }
        let is_compared = self.replicas().size() > 1;
        let digest = is_compared.then(|| states.digest()).transpose()?;
        Ok((states, digest))
    }

    /// The states of the parameters that this replica steps.
    fn own(&self, mut states: States) -> Result<States, ReplicaError> {
        for param in states.params() {
            if !self.exchange.is_owner(param)? {
                states.remove(param);
            }
        }
        Ok(states)
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
            Recipients::All => lean_replicas::Recipients::All,
            Recipients::Owner => lean_replicas::Recipients::Owner,
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
        // In f32, as the sums of micro-batches may be: of another replica, or of this one.
        let dtype = wide(grad.dtype());
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
            // The mean stays in f32, and is rounded once, when the parameter is stepped.
            DType::F32 => {
                let data = data.convert_dtype(dtype);
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
        Ok(self.own(States::of(record)?)?.into_record()?)
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
    is_needed: bool,
}

impl PendingGradient for OnItsWay {
    fn wait(self: Box<Self>) -> Result<Option<Tensor<1>>, ReductionError> {
        let mean = self.pending.wait()?;
        let mean = self.is_needed.then_some(mean);
        Ok(mean.map(|mean| {
            let dtype = mean.dtype();
            Tensor::from_data(mean, (&self.device, dtype))
        }))
    }
}

/// Why an optimizer has no states to save.
fn refused(error: ReleaseError) -> ReplicaError {
    ReplicaError::States {
        reason: error.to_string(),
    }
}

/// A gradient without other replicas.
struct Whole(Tensor<1>);

impl PendingGradient for Whole {
    fn wait(self: Box<Self>) -> Result<Option<Tensor<1>>, ReductionError> {
        Ok(Some(self.0))
    }
}
