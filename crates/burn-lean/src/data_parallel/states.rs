//! Optimizer states as Burn's record has them, parameter by parameter.

use std::collections::{BTreeMap, BTreeSet};

use burn::optim::OptimizerRecord;
use burn::tensor::Bytes;
use burn_pack::{Reader, Scalar, Tensor, Writer};
use burn_replicas::ReplicaError;

/// The states of some parameters. What belongs to a parameter bears its id: tensors are named
/// `id.field`, scalars too, and its path is under the id.
#[derive(Default)]
pub(super) struct States {
    tensors: Vec<Tensor>,
    scalars: BTreeMap<String, Scalar>,
    paths: BTreeMap<String, String>,
}

impl States {
    pub(super) fn of(record: OptimizerRecord) -> Result<Self, ReplicaError> {
        Self::read(record.into_bytes().map_err(failed)?)
    }

    pub(super) fn of_bytes(bytes: Vec<u8>) -> Result<Self, ReplicaError> {
        match bytes.is_empty() {
            true => Ok(Self::default()),
            false => Self::read(Bytes::from_bytes_vec(bytes)),
        }
    }

    fn read(bytes: Bytes) -> Result<Self, ReplicaError> {
        let reader = Reader::from_bytes(bytes).map_err(failed)?;
        Ok(Self {
            scalars: reader.scalars().clone(),
            paths: reader.metadata().clone(),
            tensors: reader.into_tensors().map_err(failed)?,
        })
    }

    /// Ids of the parameters that have states.
    pub(super) fn params(&self) -> BTreeSet<u64> {
        let names = self.tensors.iter().map(|tensor| tensor.name.as_str());
        let names = names.chain(self.scalars.keys().map(String::as_str));
        names
            .chain(self.paths.keys().map(String::as_str))
            .filter_map(param_of)
            .collect()
    }

    /// Takes out the states of a parameter.
    pub(super) fn of_param(&mut self, param: u64) -> Self {
        let is_its = |name: &str| param_of(name) == Some(param);
        let tensors = self.tensors.extract_if(.., |tensor| is_its(&tensor.name));
        let scalars = self.scalars.extract_if(.., |name, _| is_its(name));
        let paths = self.paths.extract_if(.., |name, _| is_its(name));
        Self {
            tensors: tensors.collect(),
            scalars: scalars.collect(),
            paths: paths.collect(),
        }
    }

    /// Adds the states of other parameters.
    pub(super) fn extend(&mut self, other: Self) {
        self.tensors.extend(other.tensors);
        self.scalars.extend(other.scalars);
        self.paths.extend(other.paths);
    }

    pub(super) fn into_bytes(self) -> Result<Vec<u8>, ReplicaError> {
        Ok(self.write()?.to_vec())
    }

    pub(super) fn into_record(self) -> Result<OptimizerRecord, ReplicaError> {
        OptimizerRecord::from_bytes(self.write()?).map_err(failed)
    }

    fn write(self) -> Result<Bytes, ReplicaError> {
        let mut writer = Writer::new(self.tensors);
        for (name, scalar) in self.scalars {
            writer = writer.with_scalar(&name, scalar);
        }
        for (name, path) in self.paths {
            writer = writer.with_metadata(&name, &path);
        }
        writer.into_bytes().map_err(failed)
    }
}

fn param_of(name: &str) -> Option<u64> {
    name.split('.').next()?.parse().ok()
}

fn failed(error: impl std::fmt::Display) -> ReplicaError {
    ReplicaError::States {
        reason: error.to_string(),
    }
}
