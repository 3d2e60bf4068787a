//! States in a file, written parameter by parameter.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::Tensor;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::ModuleOptimizer;
use burn::store::RecordError;
use burn::tensor::Bytes;
use burn_pack::{Error, Reader, Tensor as PackTensor, Writer};

use super::ReleaseOptimizer;
use super::one_param::record_of;
use crate::lock::lock;

impl ReleaseOptimizer {
    /// Writes the states of this model's parameters to a file, as
    /// [`OptimizerRecord::save`](burn::optim::OptimizerRecord::save) does. States of other models
    /// are left out. It copies the states of one parameter at a time, where
    /// [`to_record`](Self::to_record) copies all.
    ///
    /// # Errors
    ///
    /// Those of [`try_to_record`](Self::try_to_record), as text; or the file cannot be written.
    pub fn save_states<M: Module>(
        &self,
        model: &M,
        file: impl AsRef<Path>,
    ) -> Result<(), RecordError> {
        let refused = |error: crate::ReleaseError| RecordError::Validation(error.to_string());
        self.check_all_states().map_err(refused)?;
        let source = Arc::new(Source {
            optim: self.own_optimizer().map_err(refused)?,
            last: Mutex::default(),
        });
        let mut planned = Planned::default();
        model.visit(&mut planned);
        let (mut tensors, mut scalars, mut paths) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for id in planned.0 {
            let reader = source.read(id)?;
            scalars.extend(reader.scalars().clone());
            paths.extend(reader.metadata().clone());
            let of_this = reader.into_tensors()?.into_iter().map(|tensor| {
                let (source, name) = (source.clone(), tensor.name.clone());
                let bytes = move || source.tensor(id, &name);
                let length = tensor.byte_len();
                let PackTensor {
                    name,
                    dtype,
                    shape,
                    param_id,
                    ..
                } = tensor;
                PackTensor::deferred(name, dtype, shape, param_id, length, bytes)
            });
            tensors.extend(of_this);
        }
        let mut writer = Writer::new(tensors);
        for (name, scalar) in scalars {
            writer = writer.with_scalar(&name, scalar);
        }
        for (name, path) in paths {
            writer = writer.with_metadata(&name, &path);
        }
        Ok(writer.write_to_file(file)?)
    }
}

/// Ids of float parameters, each once.
#[derive(Default)]
struct Planned(Vec<ParamId>);

impl ModuleVisitor for Planned {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.0.contains(&param.id) {
            self.0.push(param.id);
        }
    }
}

/// States, of which those of one parameter at a time are copied.
struct Source {
    optim: ModuleOptimizer,
    /// The last parameter, and its tensors that were not taken yet.
    last: Mutex<Option<(ParamId, Vec<PackTensor>)>>,
}

impl Source {
    fn read(&self, id: ParamId) -> Result<Reader, Error> {
        let bytes = record_of(&self.optim, id).into_bytes();
        Reader::from_bytes(bytes.map_err(|error| Error::ValidationError(error.to_string()))?)
    }

    fn tensor(&self, id: ParamId, name: &str) -> Result<Bytes, Error> {
        let mut last = lock(&self.last);
        if last.as_ref().is_none_or(|(of, _)| *of != id) {
            *last = None;
            *last = Some((id, self.read(id)?.into_tensors()?));
        }
        let tensors = last.as_ref().map(|(_, tensors)| tensors.iter());
        let tensor = tensors.into_iter().flatten().find(|it| it.name == name);
        tensor
            .ok_or_else(|| Error::TensorNotFound(name.into()))?
            .to_bytes()
    }
}
