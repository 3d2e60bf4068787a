//! Replicas of a model whose gradients are averaged before each step.

use std::{collections::HashMap, num::NonZeroUsize};

use burn::{
    module::{AutodiffModule, Module, ParamId},
    optim::{LearningRate, SimpleOptimizer},
    tensor::{
        BasicOps, DType, Device, Element, Tensor, TensorData, TensorMetadata, TensorPrimitive,
        backend::Backend, ops::FloatTensor,
    },
};
use burn_gradient_release::{
    GradientReduction, PendingGradient, Recipients, ReductionError, ReleaseBackend, ReleaseError,
    ReleaseOptimizer,
};
use lean_replicas::{Exchange, Pending, ReplicaError, Replicas, Summand, kind};

use crate::{model, states};

/// Trains replicas of a model data parallel: each replica runs backward over its share of a batch,
/// steps with the mean of each gradient over all replicas, and frees it before the next one is
/// complete.
///
/// It is a [`GradientReduction`] for [`ReleaseOptimizer::with_reduction`]. While a gradient is on
/// its way, backward computes the next. The weights of all replicas are equal, bit for bit: the
/// gradients are added up in the order of the ranks, and the sum is divided by their number. On a
/// GPU, clipping and optimizers that compute sums may differ in the last bits. Gradients of 16 bits
/// are added up in 32 bits.
///
/// Gradients travel through host memory; on a GPU each is read when it is complete, which waits for
/// the device.
///
/// ```
/// use std::sync::Arc;
///
/// use burn::{
///     backend::{Autodiff, Flex},
///     nn::{Linear, LinearConfig},
///     optim::{AdamConfig, GradientsParams, Optimizer},
///     tensor::Tensor,
/// };
/// use burn_gradient_release_data_parallel::{Alone, DataParallel, Replicas};
/// use burn_gradient_release::{GradientRelease, WithGradientRelease};
///
/// type B = GradientRelease<Autodiff<Flex>>;
///
/// // In each of the processes that `mpirun` has started: `Replicas::new(Mpi::initialize)`.
/// let replicas = Replicas::new(|| Ok(Alone))?;
/// let parallel = DataParallel::new(replicas);
///
/// let device = Default::default();
/// let model: Linear<B> = LinearConfig::new(4, 2).init(&device);
/// let mut model = parallel.broadcast(model)?;
/// let optim = AdamConfig::new().init().with_gradient_release();
/// let mut optim = optim.with_reduction(Arc::new(parallel.clone()));
///
/// model = optim.arm(1e-3, model);
/// let share = Tensor::<B, 2>::ones([8, 4], &device);
/// let grads = model.forward(share).mean().backward();
/// let grads = GradientsParams::from_grads(grads, &model);
/// model = optim.step(1e-3, model, grads);
/// # let _ = model;
/// # Ok::<_, burn_gradient_release_data_parallel::ReplicaError>(())
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
    /// A record of the optimizer has the states of this replica alone; put them together with
    /// [`gather_states`](Self::gather_states).
    pub fn with_sharded_optimizer(mut self) -> Self {
        self.exchange = self.exchange.with_sharded_optimizer();
        self
    }

    /// Sets how many reductions may be in flight while backward computes the next gradient (default
    /// 1). Each of them takes its memory.
    pub fn with_max_in_flight(mut self, gradients: NonZeroUsize) -> Self {
        self.exchange = self.exchange.with_max_in_flight(gradients);
        self
    }

    /// The processes.
    pub fn replicas(&self) -> &Replicas {
        self.exchange.replicas()
    }

    /// The model of the first replica, with the ids of its parameters, on all of them. Call it once
    /// the model is initialized, and before the optimizer is used.
    ///
    /// Running statistics (`BatchNorm`) are those of the first replica, too, updates that are
    /// pending included. In training each replica updates its own:
    /// [`share_running_states`](Self::share_running_states) makes them equal again.
    ///
    /// # Errors
    ///
    /// If the models differ in a parameter, its shape, its type or whether it is trained.
    pub fn broadcast<B: Backend, M: Module<B>>(&self, model: M) -> Result<M, ReplicaError> {
        let model = model::broadcast(self.replicas(), model, true)?;
        self.exchange.know(model::known(&model));
        Ok(model)
    }

    /// Gives all replicas the running statistics (`BatchNorm`) of the first one, as before a validation
    /// or a checkpoint: each has updated its own, by its share of a batch. Copies of a model share them.
    ///
    /// # Errors
    ///
    /// If the models differ in one of them, its shape or its type.
    pub fn share_running_states<B: Backend, M: Module<B>>(
        &self,
        model: &M,
    ) -> Result<(), ReplicaError> {
        model::broadcast(self.replicas(), model.clone(), false).map(drop)
    }

    /// Compares the models of all replicas, as after each has loaded the same checkpoint: paths,
    /// shapes, types, values, and the ids of what is trained.
    ///
    /// # Errors
    ///
    /// If they differ.
    pub fn verify<B: Backend, M: Module<B>>(&self, model: &M) -> Result<(), ReplicaError> {
        model::verify(self.replicas(), model)?;
        self.exchange.know(model::known(model));
        Ok(())
    }

    /// Gives the optimizer of the first replica the states that the others have, so that its record
    /// is that of all parameters: Burn's, to be resumed by any number of replicas, or by plain
    /// Burn. Without [sharding](Self::with_sharded_optimizer) it has them already. The next arming
    /// drops them again.
    ///
    /// # Errors
    ///
    /// If a replica does something else, or its optimizer has stepped parameters and not finished.
    pub fn gather_states<O, M, B>(
        &self,
        optim: &mut ReleaseOptimizer<O, M, B>,
    ) -> Result<(), ReplicaError>
    where
        O: SimpleOptimizer<B::InnerBackend> + 'static,
        M: AutodiffModule<B>,
        B: ReleaseBackend,
    {
        if !self.exchange.is_sharded() {
            return Ok(());
        }
        let failed = |error: ReleaseError| ReplicaError::States {
            reason: error.to_string(),
        };
        let mut states = optim.try_to_record().map_err(failed)?;
        states::gather::<B, _, _>(&self.exchange, &mut states)?;
        match self.replicas().is_first() {
            true => optim.try_add_states(states).map_err(failed),
            false => Ok(()),
        }
    }

    /// Lets the first replica `save`, which all of them call. If it makes a record of its optimizer
    /// meanwhile, that record is Burn's, with the states of all parameters: the others send theirs
    /// then, one parameter after the other. If it makes none, nothing is sent.
    ///
    /// The optimizer itself keeps its share, as [`gather_states`](Self::gather_states) does not. The
    /// others return when `save` has: what it has written, they can load.
    ///
    /// # Errors
    ///
    /// If a replica does something else, or its optimizer has stepped parameters and not finished.
    pub fn save_on_first<O, M, B>(
        &self,
        optim: &mut ReleaseOptimizer<O, M, B>,
        save: impl FnOnce(),
    ) -> Result<(), ReplicaError>
    where
        O: SimpleOptimizer<B::InnerBackend> + 'static,
        M: AutodiffModule<B>,
        B: ReleaseBackend,
    {
        const MAKES_RECORD: &str = "whether the first replica makes a record";
        let is_first = self.replicas().is_first();
        if !self.exchange.is_sharded() {
            if is_first {
                save();
            }
        } else if is_first {
            let exchange = self.exchange.clone();
            optim.complete_next_record(move |states| {
                exchange.replicas().first_says(MAKES_RECORD, true)?;
                Ok(states::gather::<B, _, _>(&exchange, states)?)
            });
            save();
            if optim.forget_completion() {
                self.replicas().first_says(MAKES_RECORD, false)?;
            }
        } else if self.replicas().first_says(MAKES_RECORD, false)? {
            let states = optim.try_to_record();
            let mut states = states.map_err(|error| ReplicaError::States {
                reason: error.to_string(),
            })?;
            states::gather::<B, _, _>(&self.exchange, &mut states)?;
        }
        self.replicas().meet("the first replica has saved")
    }

    /// The tensors of all replicas, concatenated along their first dimension in the order of the
    /// ranks, on the first replica; the others keep theirs. Off the tape, unless there is one replica.
    ///
    /// # Errors
    ///
    /// If a replica does something else, as its `what` says, or its tensor has items of another
    /// shape or type.
    pub fn gather<B: Backend, const D: usize, K: BasicOps<B>>(
        &self,
        what: &str,
        tensor: Tensor<B, D, K>,
    ) -> Result<Tensor<B, D, K>, ReplicaError> {
        if self.replicas().size() == 1 {
            return Ok(tensor);
        }
        let device = tensor.device();
        let data = tensor.into_data();
        let (mut shape, dtype) = (data.shape.clone(), data.dtype);
        let rest = shape.as_slice().iter().skip(1).product::<usize>() * dtype.size();
        let of_item = kind(shape.as_slice().get(1..).unwrap_or_default(), dtype);
        let what = format!("{what}, items of {of_item}");
        let all = self.exchange.gather(&what, data.bytes.to_vec())?.concat();
        if !self.replicas().is_first() {
            return Ok(Tensor::from_data(data, (&device, dtype)));
        }
        if let Some(items) = all.len().checked_div(rest) {
            shape[0] = items;
        }
        let data = TensorData::from_bytes_vec(all, shape, dtype);
        Ok(Tensor::from_data(data, (&device, dtype)))
    }

    /// A few numbers of each replica, in the order of the ranks, on the first one; nothing on the
    /// others.
    ///
    /// # Errors
    ///
    /// If a replica does something else, as its `what` says, or has more or fewer numbers.
    pub fn gather_numbers<const N: usize>(
        &self,
        what: &str,
        numbers: [f64; N],
    ) -> Result<Vec<[f64; N]>, ReplicaError> {
        let own = numbers.iter().flat_map(|number| number.to_ne_bytes());
        let what = format!("{what}, as many as {N}");
        let all = self.exchange.gather(&what, own.collect())?.into_iter();
        let number = |bytes: &[u8]| f64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        let of_rank = |bytes: Vec<u8>| {
            let mut numbers = bytes.chunks_exact(size_of::<f64>()).map(number);
            std::array::from_fn(|_| numbers.next().expect("as many as were sent"))
        };
        Ok(all.filter(|bytes| !bytes.is_empty()).map(of_rank).collect())
    }

    /// Waits until all replicas have this gradient.
    #[cfg(feature = "distributed")]
    pub(crate) fn meet_at<B: Backend>(
        &self,
        param: ParamId,
        grad: &FloatTensor<B>,
        place: &str,
    ) -> Result<(), ReplicaError> {
        let kind = kind_of::<B>(grad);
        let what = self.exchange.describe("gradient", param.val(), &kind)?;
        self.replicas().meet(&format!("{what}{place}"))
    }

    #[cfg(feature = "distributed")]
    pub(crate) fn with_timeout(mut self, timeout: std::time::Duration) -> Self {
        self.exchange = self.exchange.with_timeout(timeout);
        self
    }

    fn send<E: Summand + Element>(
        &self,
        param: ParamId,
        kind: &str,
        data: TensorData,
        recipients: Recipients,
    ) -> Result<(Pending<TensorData>, bool), ReplicaError> {
        let shape = data.shape.clone();
        let values: Vec<E> = data.into_vec().expect("the type was looked at");
        let recipients = match recipients {
            Recipients::All => lean_replicas::Recipients::All,
            Recipients::Owner => lean_replicas::Recipients::Owner,
        };
        let made = |mean| TensorData::new(mean, shape);
        self.exchange
            .mean(param.val(), kind, values, recipients, made)
    }
}

impl<B: Backend> GradientReduction<B> for DataParallel {
    fn begin(
        &self,
        param: ParamId,
        grad: FloatTensor<B>,
        recipients: Recipients,
    ) -> Result<Box<dyn PendingGradient<B>>, ReductionError> {
        let kind = kind_of::<B>(&grad);
        // A parameter that is not known is refused, however many replicas there are.
        let what = self.exchange.describe("gradient", param.val(), &kind)?;
        if self.replicas().size() == 1 {
            return Ok(Box::new(Alone::<B>(grad)));
        }
        let device = B::float_device(&grad);
        let dtype = grad.dtype();
        let data = read::<B>(grad)?;
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
        Ok(Box::new(OnItsWay::<B> {
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

    fn is_owner(&self, param: ParamId) -> bool {
        // The state of a parameter that is not known is not dropped before `begin` says so.
        self.exchange.is_owner(param.val()).unwrap_or(true)
    }

    fn weight_from_owner(
        &self,
        param: ParamId,
        weight: FloatTensor<B>,
    ) -> Result<FloatTensor<B>, ReductionError> {
        if !self.exchange.is_sharded() {
            return Ok(weight);
        }
        let kind = kind_of::<B>(&weight);
        let device = B::float_device(&weight);
        let (shape, dtype) = (weight.shape(), weight.dtype());
        let bytes = shape.num_elements() * dtype.size();
        let own = || Ok::<_, ReductionError>(read::<B>(weight)?.bytes.to_vec());
        let weight = self
            .exchange
            .weight_from_owner(param.val(), &kind, bytes, own)?;
        let data = TensorData::from_bytes_vec(weight, shape, dtype);
        Ok(B::float_from_data(data, &device))
    }

    fn end_step(
        &self,
        learning_rate: LearningRate,
        other_rates: &HashMap<ParamId, LearningRate>,
    ) -> Result<(), ReductionError> {
        let mut rates = format!("{learning_rate:e}");
        if !other_rates.is_empty() {
            let rate = |param, _: &str| {
                let rate = other_rates.get(&ParamId::from(param));
                format!("{:e}", rate.unwrap_or(&learning_rate))
            };
            rates = self.exchange.rates(rate);
        }
        Ok(self.exchange.end_step(&rates)?)
    }
}

fn kind_of<B: Backend>(tensor: &FloatTensor<B>) -> String {
    kind(tensor.shape().as_slice(), tensor.dtype())
}

struct OnItsWay<B: Backend> {
    pending: Pending<TensorData>,
    device: Device<B>,
    dtype: DType,
    is_needed: bool,
}

impl<B: Backend> PendingGradient<B> for OnItsWay<B> {
    fn wait(self: Box<Self>) -> Result<Option<FloatTensor<B>>, ReductionError> {
        let mean = self.pending.wait()?.convert_dtype(self.dtype);
        let mean = self.is_needed.then_some(mean);
        Ok(mean.map(|mean| B::float_from_data(mean, &self.device)))
    }
}

/// A gradient that has no others.
pub(crate) struct Alone<B: Backend>(pub(crate) FloatTensor<B>);

impl<B: Backend> PendingGradient<B> for Alone<B> {
    fn wait(self: Box<Self>) -> Result<Option<FloatTensor<B>>, ReductionError> {
        Ok(Some(self.0))
    }
}

fn read<B: Backend>(tensor: FloatTensor<B>) -> Result<TensorData, ReductionError> {
    let tensor = Tensor::<B, 1>::from_primitive(TensorPrimitive::Float(tensor));
    Ok(tensor.try_into_data()?)
}
