//! The optimizer of a Learner's checkpoint.

use std::collections::{BTreeMap, HashMap};

use burn::module::ParamGroup;
use burn::optim::{
    DynOptimizer, DynState, LearningRate, ModuleOptimizer, SgdConfig, StateSink, StateSource,
};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Device, TensorData};
use burn_pack::{Scalar, Tensor};
use lean_replicas::ReplicaError;

use super::states::{States, param_of};

impl States {
    /// An optimizer to be saved, whose record has these states as they are. Burn's would load them
    /// as tensors of its default device, in the type of that device.
    pub(super) fn into_optimizer(self) -> Result<ModuleOptimizer, ReplicaError> {
        let mut saved = Saved::default();
        for tensor in self.tensors {
            let param = param_of(&tensor.name);
            saved.tensors.entry(param).or_default().push(tensor);
        }
        for (name, scalar) in &self.scalars {
            let scalars = saved.scalars.entry(param_of(name)).or_default();
            scalars.insert(name.clone(), *scalar);
        }
        // The ranks are among the scalars.
        let params = Self {
            tensors: Vec::new(),
            scalars: self.scalars,
            paths: self.paths,
        };
        let optim = ModuleOptimizer::from(SgdConfig::new().build());
        let optim = optim.with_group(ParamGroup::all(), saved, None);
        Ok(optim.load_record(params.into_record()?))
    }
}

/// The states of parameters, by parameter id.
#[derive(Default)]
struct Saved {
    tensors: HashMap<Option<u64>, Vec<Tensor>>,
    scalars: HashMap<Option<u64>, BTreeMap<String, Scalar>>,
}

impl DynOptimizer for Saved {
    fn step_dyn(
        &self,
        _: usize,
        _: LearningRate,
        _: BridgeTensor,
        _: BridgeTensor,
        _: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        unreachable!("the optimizer of a checkpoint steps no parameter")
    }

    fn to_device_dyn(&self, state: DynState, _: &Device) -> DynState {
        state
    }

    fn state_flatten(&self, prefix: &str, _: &DynState, out: &mut StateSink) {
        let param = param_of(prefix);
        for tensor in self.tensors.get(&param).into_iter().flatten() {
            let bytes = tensor.to_bytes().expect("the states are in memory");
            let data = TensorData::from_bytes(bytes, tensor.shape.clone(), tensor.dtype);
            out.tensors.push((tensor.name.clone(), data));
        }
        let scalars = self.scalars.get(&param).into_iter().flatten();
        out.scalars
            .extend(scalars.map(|(name, scalar)| (name.clone(), *scalar)));
    }

    fn state_unflatten(
        &self,
        rank: usize,
        _: &str,
        _: &mut StateSource,
        _: &Device,
    ) -> Option<DynState> {
        Some(DynState::create((), rank))
    }
}
