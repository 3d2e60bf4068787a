//! The sums of a window in a record, to go on in the middle of it.

use std::collections::HashSet;

use burn::Tensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::GradientsParams;
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::Device;

use super::ReleaseAccumulator;
use crate::error::{ReleaseError, expect};
use crate::path::params_of;

impl ReleaseAccumulator {
    /// The sums of a window that is not over, each under the path of its parameter: to save beside
    /// the records of model and optimizer, and to [go on](Self::load_record) with the next
    /// micro-batch. It is empty between two windows.
    pub fn to_record<M: Module>(&self, model: &M) -> ModuleRecord {
        expect(self.try_to_record(model))
    }

    /// [`to_record`](Self::to_record), refusing sums that are not whole.
    ///
    /// # Errors
    ///
    /// - [`NotAccumulated`](ReleaseError::NotAccumulated): a micro-batch has begun and was not ended;
    /// - [`WrongModel`](ReleaseError::WrongModel): a parameter that has a sum is not in the model.
    pub fn try_to_record<M: Module>(&self, model: &M) -> Result<ModuleRecord, ReleaseError> {
        self.check_ended()?;
        self.check_no_sum_is_left()?;
        let sums = self.sums();
        let mut mapper = WithSums {
            sums,
            params: HashSet::new(),
        };
        let model = model.valid().map(&mut mapper);
        match mapper.params.len() == sums.len() {
            true => {
                let params = mapper.params.into_iter().collect();
                Ok(model.into_record_group(ParamGroup::from_ids(params)))
            }
            false => Err(ReleaseError::WrongModel {
                path: "a parameter".into(),
            }),
        }
    }

    /// Goes on with the sums of a record, in place of those that are here. The record of the model is
    /// loaded before.
    ///
    /// ```
    /// use burn::module::Module;
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::optim::GradientsParams;
    /// use burn::tensor::{Device, Tensor};
    /// use burn_lean::ReleaseAccumulator;
    ///
    /// let device = Device::flex().autodiff();
    /// let mut model: Linear = LinearConfig::new(4, 2).init(&device);
    /// let mut accumulator = ReleaseAccumulator::new();
    /// model = accumulator.arm(model);
    /// let grads = model.forward(Tensor::<2>::ones([8, 4], &device)).mean().backward();
    /// accumulator.accumulate(&model, GradientsParams::from_grads(grads, &model));
    ///
    /// let (sums, weights) = (accumulator.to_record(&model), model.clone().into_record());
    /// // In another process:
    /// let model: Linear = LinearConfig::new(4, 2).init(&device);
    /// let model = model.load_record(weights);
    /// let mut accumulator = ReleaseAccumulator::new().load_record(&model, sums)?;
    /// assert_eq!(accumulator.grads().len(), 2);
    /// # Ok::<(), burn::store::RecordError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the record has a parameter that the model lacks or does not train, or one of another shape.
    /// The sums that were here are dropped in that case, too.
    pub fn load_record<M: Module>(
        mut self,
        model: &M,
        record: ModuleRecord,
    ) -> Result<Self, RecordError> {
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
            sums: GradientsParams::new(),
        };
        model.visit(&mut loaded);
        if loaded.sums.len() != in_record {
            return Err(RecordError::Validation(
                "the record has sums of parameters that the model does not train: unfreeze them, load \
                 the sums, and freeze them again"
                    .into(),
            ));
        }
        self.restart(loaded.sums);
        Ok(self)
    }
}

/// Puts the sums into the place of the weights.
struct WithSums<'a> {
    sums: &'a GradientsParams,
    params: HashSet<ParamId>,
}

impl ModuleMapper for WithSums<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.sums.get::<D>(param.id) {
            Some(sum) => {
                self.params.insert(param.id);
                Param::initialized(param.id, sum)
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
    sums: GradientsParams,
}

impl ModuleVisitor for Loaded {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let to_load = self.params.next().expect("as many as were mapped");
        if let Some(id) = to_load.filter(|_| param.is_initialized()) {
            self.sums.register::<D>(id, param.val());
        }
    }
}
