//! Why weights were not read or written.

use std::io;
use std::path::{Path, PathBuf};

use burn::tensor::DType;

use crate::error::ReleaseError;
use crate::mixed_precision::CastError;
#[cfg(feature = "operations")]
use crate::operations::PackError;

/// Why weights were not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsError {
    /// A file cannot be read or written.
    #[error("{}: {source}", file.display())]
    File {
        /// Its path.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file is not whole, or is not what its name says.
    #[error("{}: {reason}", file.display())]
    Contents {
        /// Its path.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A parameter of the model has no tensor.
    #[error("{name} is in no file")]
    Missing {
        /// The name that the tensor would have.
        name: String,
    },
    /// A tensor has no parameter in the model.
    #[error("the model has nothing that takes {name}")]
    Additional {
        /// The name of the tensor.
        name: String,
    },
    /// A tensor has another shape than its parameter.
    #[error("{name} is {found:?} in the file, and {expected:?} in the model")]
    Shape {
        /// The name of the tensor.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape of the parameter, as a file would have it.
        expected: Vec<usize>,
    },
    /// A tensor or a parameter is in a type that is not read or written.
    #[error("{name} is in {dtype}; known are F32, BF16 and F16")]
    Type {
        /// The name of the tensor.
        name: String,
        /// Its type.
        dtype: String,
    },
    /// A weight in four bits is not as it has to be.
    #[error("{name}: {reason}")]
    Packed {
        /// Its name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A weight in four bits does not fit the model.
    #[cfg(feature = "operations")]
    #[error(transparent)]
    Nf4(#[from] PackError),
    /// The model cannot be in this precision.
    #[error(transparent)]
    Precision(#[from] CastError),
    /// The optimizer has no whole states.
    #[error(transparent)]
    Optimizer(#[from] ReleaseError),
}

impl SafetensorsError {
    pub(super) fn file(file: &Path, source: io::Error) -> Self {
        let file = file.to_path_buf();
        Self::File { file, source }
    }

    pub(super) fn contents(file: &Path, reason: impl ToString) -> Self {
        Self::Contents {
            file: file.to_path_buf(),
            reason: reason.to_string(),
        }
    }
}

/// The types of weights, and those of the format.
const TYPES: [(DType, safetensors::Dtype); 3] = [
    (DType::F32, safetensors::Dtype::F32),
    (DType::BF16, safetensors::Dtype::BF16),
    (DType::F16, safetensors::Dtype::F16),
];

/// A type of the format as one of Burn's. Packed weights are in bytes.
pub(super) fn from_file(name: &str, dtype: safetensors::Dtype) -> Result<DType, SafetensorsError> {
    #[cfg(feature = "operations")]
    if dtype == safetensors::Dtype::U8 {
        return Ok(DType::U8);
    }
    let found = TYPES.into_iter().find(|(_, of_file)| *of_file == dtype);
    found
        .map(|(dtype, _)| dtype)
        .ok_or_else(|| SafetensorsError::Type {
            name: name.into(),
            dtype: dtype.to_string(),
        })
}

/// A type of Burn's as one of the format.
pub(super) fn to_file(name: &str, dtype: DType) -> Result<safetensors::Dtype, SafetensorsError> {
    let found = TYPES.into_iter().find(|(of_burn, _)| *of_burn == dtype);
    found
        .map(|(_, dtype)| dtype)
        .ok_or_else(|| SafetensorsError::Type {
            name: name.into(),
            dtype: format!("{dtype:?}"),
        })
}
