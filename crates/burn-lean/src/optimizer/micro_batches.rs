//! Gradients summed over the micro-batches of a window.

use std::collections::HashSet;

use burn::Tensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::GradientsParams;
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::Device;

use super::model::Sums;
use super::{ReleaseOptimizer, try_backward};
#[cfg(feature = "train")]
use crate::backend::{added, in_f32};
use crate::error::{Refused, ReleaseError, expect};
use crate::path::params_of;

impl ReleaseOptimizer {
    /// Sums gradients in half precision in f32: in bf16, a gradient of less than a 256th of the sum is
    /// lost. Four bytes a parameter, where sums take two without this; of gradients in f32 the sums are
    /// the same. The optimizer gets the sum rounded to the type of the weight, or in f32 [if it computes
    /// so](Self::with_f32_gradients).
    pub fn with_f32_sums(mut self) -> Self {
        self.sums_in_f32 = true;
        self
    }

    pub(super) fn sums_are_in_f32(&self) -> bool {
        self.sums_in_f32 || self.stepper().pipeline.gives_f32
    }

    /// Runs backward from the loss of a micro-batch, and adds each gradient to its sum the moment it is
    /// complete. [`backward`](Self::backward) of the last micro-batch steps with the sums, and
    /// [`step`](Self::step) without another one. No weight changes before.
    ///
    /// The sums are those of Burn's [`GradientsAccumulator`](burn::optim::GradientsAccumulator),
    /// bit for bit. They and one gradient exist at once, where Burn holds two full sets. Leave out
    /// a micro-batch that should not count, such as one whose loss is not finite.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::optim::AdamConfig;
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use burn_lean::WithGradientRelease;
    ///
    /// let device = Device::flex().autodiff();
    /// let mut model: Linear = LinearConfig::new(4, 2).init(&device);
    /// let mut optim = AdamConfig::new().init().with_gradient_release();
    ///
    /// for micro_batch in 1..=8 {
    ///     let batch = Tensor::<2>::random([8, 4], Distribution::Default, &device);
    ///     let loss = model.forward(batch).square().mean();
    ///     if micro_batch % 4 > 0 {
    ///         optim.accumulate(loss, &model);
    ///     } else {
    ///         model = optim.backward(1e-3, loss, model);
    ///     }
    /// }
    /// ```
    pub fn accumulate<M: Module, const D: usize>(&mut self, loss: Tensor<D>, model: &M) {
        expect(self.try_accumulate(loss, model).map_err(ReleaseError::from));
    }

    /// [`accumulate`](Self::accumulate), handing back the loss where it refuses before backward.
    ///
    /// # Errors
    ///
    /// A [`ReleaseError`]. No weight has changed. If the loss is not handed back, the sums have a part
    /// of its gradients: begin the window anew, after [`take_sums`](Self::take_sums).
    pub fn try_accumulate<M: Module, const D: usize>(
        &mut self,
        loss: Tensor<D>,
        model: &M,
    ) -> Result<(), Refused<(), Option<Tensor<D>>>> {
        try_backward(loss, self.accumulating(model)).map(|_| ())
    }

    /// Adds gradients that exist already to the sums of the window.
    #[cfg(feature = "train")]
    pub(crate) fn accumulate_grads<M: Module>(&mut self, model: &M, mut grads: GradientsParams) {
        let is_wide = self.sums_are_in_f32();
        for param in params_of(model) {
            let Some(grad) = param.take_grad(&mut grads) else {
                continue;
            };
            let grad = if is_wide { in_f32(grad) } else { grad };
            if let Some(sum) = added(self.sums.remove(&param.id), Some(grad)) {
                self.sums.insert(param.id, sum);
            }
        }
    }

    /// Whether there are gradients of micro-batches that were not stepped with.
    pub fn has_sums(&self) -> bool {
        !self.sums.is_empty()
    }

    /// Ends the window without a step, and returns its sums.
    pub fn take_sums<M: Module>(&mut self, model: &M) -> GradientsParams {
        let mut sums = GradientsParams::new();
        for param in params_of(model) {
            if let Some(sum) = self.sums.remove(&param.id) {
                param.put_grad(&mut sums, sum);
            }
        }
        self.sums.clear();
        self.stepper_mut().pipeline.forget_measured();
        sums
    }

    /// The sums of a window that has not ended, each with the path of its parameter. Save them with
    /// the records of model and optimizer, and [load](Self::load_sums) them before the next
    /// micro-batch. It is empty between two windows.
    pub fn sums_to_record<M: Module>(&self, model: &M) -> ModuleRecord {
        expect(self.try_sums_to_record(model))
    }

    /// [`sums_to_record`](Self::sums_to_record), refusing another model.
    ///
    /// # Errors
    ///
    /// [`WrongModel`](ReleaseError::WrongModel): a parameter that has a sum is not in the model.
    pub fn try_sums_to_record<M: Module>(&self, model: &M) -> Result<ModuleRecord, ReleaseError> {
        let mut mapper = WithSums {
            sums: &self.sums,
            params: HashSet::new(),
        };
        let model = model.valid().map(&mut mapper);
        match self.sums.keys().find(|id| !mapper.params.contains(id)) {
            Some(id) => Err(ReleaseError::WrongModel {
                path: id.to_string(),
            }),
            None => {
                let params = mapper.params.into_iter().collect();
                Ok(model.into_record_group(ParamGroup::from_ids(params)))
            }
        }
    }

    /// Continues with the sums of a record. They replace the sums that the optimizer has. The
    /// record of the model is loaded before.
    ///
    /// ```
    /// use burn::module::Module;
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::optim::SgdConfig;
    /// use burn::tensor::{Device, Tensor};
    /// use burn_lean::WithGradientRelease;
    ///
    /// let device = Device::flex().autodiff();
    /// let model: Linear = LinearConfig::new(4, 2).init(&device);
    /// let mut optim = SgdConfig::new().init().with_gradient_release();
    /// let loss = model.forward(Tensor::<2>::ones([8, 4], &device)).mean();
    /// optim.accumulate(loss, &model);
    ///
    /// let (sums, weights) = (optim.sums_to_record(&model), model.into_record());
    /// // In another process:
    /// let model: Linear = LinearConfig::new(4, 2).init(&device);
    /// let model = model.load_record(weights);
    /// let mut optim = SgdConfig::new().init().with_gradient_release();
    /// optim.load_sums(&model, sums)?;
    /// assert!(optim.has_sums());
    /// # Ok::<(), burn::store::RecordError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the record has a parameter that the model lacks or does not train, or one of another shape.
    /// The sums that are here stay.
    pub fn load_sums<M: Module>(
        &mut self,
        model: &M,
        record: ModuleRecord,
    ) -> Result<(), RecordError> {
        let params = params_of(model).into_iter();
        let mut to_load = ToLoad {
            trained: params
                .filter(|param| param.is_trained)
                .map(|param| param.id)
                .collect(),
            params: Vec::new(),
        };
        let model = model.valid().map(&mut to_load);
        let in_record = record.len();
        let model = model.try_load_record(record.allow_partial(true))?;
        let mut loaded = Loaded {
            params: to_load.params.into_iter(),
            sums: Sums::new(),
        };
        model.visit(&mut loaded);
        if loaded.sums.len() != in_record {
            return Err(RecordError::Validation(
                "the record has sums of parameters that the model does not train: unfreeze them, load \
                 the sums, and freeze them again"
                    .into(),
            ));
        }
        self.sums = loaded.sums;
        let pipeline = &mut self.stepper_mut().pipeline;
        pipeline.forget_measured();
        pipeline.begin_window();
        Ok(())
    }
}

/// Puts the sums into the place of the weights.
struct WithSums<'a> {
    sums: &'a Sums,
    params: HashSet<ParamId>,
}

impl ModuleMapper for WithSums<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.sums.get(&param.id) {
            Some(sum) => {
                self.params.insert(param.id);
                Param::initialized(param.id, Tensor::from_dispatch(sum.clone()))
            }
            None => param,
        }
    }
}

/// Leaves trained parameters without a value, so that those that are loaded are told from the others.
struct ToLoad {
    trained: HashSet<ParamId>,
    /// In the order of the model: those without a value.
    params: Vec<Option<ParamId>>,
}

impl ModuleMapper for ToLoad {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = Some(param.id).filter(|id| self.trained.contains(id));
        self.params.push(id);
        let Some(id) = id else { return param };
        let (device, shape, dtype) = (param.lazy_device(), param.lazy_shape(), param.val().dtype());
        let dims = shape.dims::<D>();
        // A record that is cast to the types of the model reads the value that it replaces.
        let unread = move |device: &Device, _| Tensor::zeros(dims, (device, dtype));
        Param::uninitialized(id, unread, device, false, shape)
    }
}

/// Takes what was loaded.
struct Loaded {
    /// As the model has them, in its order; the record has ids of its own.
    params: std::vec::IntoIter<Option<ParamId>>,
    sums: Sums,
}

impl ModuleVisitor for Loaded {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let to_load = self.params.next().expect("as many as were mapped");
        if let Some(id) = to_load.filter(|_| param.is_initialized()) {
            self.sums.insert(id, param.val().into_dispatch());
        }
    }
}
