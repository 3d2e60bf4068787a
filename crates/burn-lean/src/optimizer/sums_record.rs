//! The sums of a window in a record, to go on in the middle of it.

use burn::Tensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::GradientsParams;
use burn::store::{ModuleRecord, RecordError};

use super::ReleaseAccumulator;
use crate::error::{ReleaseError, expect};

impl ReleaseAccumulator {
    /// The sums of a window that is not over, each under the path of its parameter: to save beside
    /// the records of model and optimizer, and to [go on](Self::load_record) with the next
    /// micro-batch. It is empty between two windows.
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that [`try_to_record`](Self::try_to_record) returns.
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
        let sums = self.sums();
        let mut mapper = WithSums {
            sums,
            params: Vec::new(),
        };
        let model = model.valid().map(&mut mapper);
        match mapper.params.len() == sums.len() {
            true => Ok(model.into_record_group(ParamGroup::from_ids(mapper.params))),
            false => Err(ReleaseError::WrongModel {
                path: "a parameter".into(),
            }),
        }
    }

    /// Goes on with the sums of a record, in place of those that are here. The record of the model is
    /// loaded before.
    ///
    /// ```
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
    /// If the record has a parameter that the model lacks, or one of another shape.
    pub fn load_record<M: Module>(
        mut self,
        model: &M,
        record: ModuleRecord,
    ) -> Result<Self, RecordError> {
        let mut to_load = ToLoad::default();
        let model = model.valid().map(&mut to_load);
        let model = model.try_load_record(record.allow_partial(true))?;
        let mut loaded = Loaded {
            params: to_load.params.into_iter(),
            sums: GradientsParams::new(),
        };
        model.visit(&mut loaded);
        self.restart(loaded.sums);
        Ok(self)
    }
}

/// Puts the sums into the place of the weights.
struct WithSums<'a> {
    sums: &'a GradientsParams,
    params: Vec<ParamId>,
}

impl ModuleMapper for WithSums<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.sums.get::<D>(param.id) {
            Some(sum) => {
                self.params.push(param.id);
                Param::initialized(param.id, sum)
            }
            None => param,
        }
    }
}

/// Leaves parameters without a value, so that those that are loaded are told from the others.
#[derive(Default)]
struct ToLoad {
    params: Vec<ParamId>,
}

impl ModuleMapper for ToLoad {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.params.push(param.id);
        Param::uninitialized(
            param.id,
            |_, _| unreachable!("only what was loaded is read"),
            param.lazy_device(),
            false,
            param.lazy_shape(),
        )
    }
}

/// Takes what was loaded.
struct Loaded {
    /// As the model has them, in its order; the record has ids of its own.
    params: std::vec::IntoIter<ParamId>,
    sums: GradientsParams,
}

impl ModuleVisitor for Loaded {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let id = self.params.next().expect("as many as were mapped");
        if param.is_initialized() {
            self.sums.register::<D>(id, param.val());
        }
    }
}
