//! Optimizer states in the form of Burn's record, parameter by parameter.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Bytes, DType};
use burn_pack::{Reader, Scalar, Tensor, Writer};
use lean_replicas::{Exchange, ReplicaError};
use serde::{Deserialize, Serialize};

use crate::gradients::PATH_IN_CHECKPOINT;
use crate::lock::lock;
use crate::optimizer::record_of;

/// The states of some parameters, by parameter id: tensors and scalars are named `id.field`, and
/// the path of a parameter is under its id.
#[derive(Default)]
pub(super) struct States {
    pub(super) tensors: Vec<Tensor>,
    pub(super) scalars: BTreeMap<String, Scalar>,
    pub(super) paths: BTreeMap<String, String>,
}

impl States {
    pub(super) fn of(record: OptimizerRecord) -> Result<Self, ReplicaError> {
        Self::read(record.into_bytes().map_err(failed)?)
    }

    /// States in a file, whose numbers are read on demand.
    pub(super) fn of_file(file: &Path) -> Result<Self, ReplicaError> {
        Self::from_reader(Reader::from_file(file).map_err(failed)?)
    }

    pub(super) fn read(bytes: Bytes) -> Result<Self, ReplicaError> {
        Self::from_reader(Reader::from_bytes(bytes).map_err(failed)?)
    }

    fn from_reader(reader: Reader) -> Result<Self, ReplicaError> {
        let mut states = Self {
            scalars: reader.scalars().clone(),
            paths: reader.metadata().clone(),
            tensors: reader.into_tensors().map_err(failed)?,
        };
        // What the Learner has saved of clipping and loss scaling is no state of a parameter.
        let is_other = |(_, path): &(&String, &String)| *path == PATH_IN_CHECKPOINT;
        let other = states.paths.iter().find(is_other);
        if let Some(param) = other.and_then(|(name, _)| param_of(name)) {
            states.remove(param);
        }
        Ok(states)
    }

    /// Tells these states from others. Reads their numbers one tensor at a time.
    pub(super) fn digest(&self) -> Result<u64, ReplicaError> {
        let mut hasher = DefaultHasher::new();
        self.paths.hash(&mut hasher);
        format!("{:?}", self.scalars).hash(&mut hasher);
        for tensor in &self.tensors {
            tensor.name.hash(&mut hasher);
            format!("{:?} {:?}", tensor.dtype, tensor.shape).hash(&mut hasher);
            tensor.to_bytes().map_err(failed)?.hash(&mut hasher);
        }
        Ok(hasher.finish())
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

    pub(super) fn remove(&mut self, param: u64) {
        let is_anothers = |name: &str| param_of(name) != Some(param);
        self.tensors.retain(|tensor| is_anothers(&tensor.name));
        self.scalars.retain(|name, _| is_anothers(name));
        self.paths.retain(|name, _| is_anothers(name));
    }

    pub(super) fn into_record(self) -> Result<OptimizerRecord, ReplicaError> {
        let bytes = self.into_writer().into_bytes().map_err(failed)?;
        OptimizerRecord::from_bytes(bytes).map_err(failed)
    }

    fn into_writer(self) -> Writer {
        let mut writer = Writer::new(self.tensors);
        for (name, scalar) in self.scalars {
            writer = writer.with_scalar(&name, scalar);
        }
        for (name, path) in self.paths {
            writer = writer.with_metadata(&name, &path);
        }
        writer
    }
}

/// Why states were not saved.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SaveStatesError {
    /// The replicas make different calls, or have no states that can be saved.
    #[error(transparent)]
    Replicas(#[from] ReplicaError),
    /// The file could not be written.
    #[error("{reason}")]
    File {
        /// The reason.
        reason: String,
    },
}

impl From<SaveStatesError> for ReplicaError {
    fn from(error: SaveStatesError) -> Self {
        match error {
            SaveStatesError::Replicas(error) => error,
            SaveStatesError::File { reason } => Self::States { reason },
        }
    }
}

/// Puts together the states of all replicas: on the first one, `write` is given a writer that draws
/// their numbers one parameter at a time. Nothing is kept elsewhere.
///
/// If `write` fails, the replicas still go on together.
pub(super) fn gathered<T, E: ToString>(
    exchange: &Exchange,
    optim: ModuleOptimizer,
    write: impl FnOnce(Writer) -> Result<T, E>,
) -> Result<Option<T>, SaveStatesError> {
    let (rank, owners) = (exchange.replicas().rank(), exchange.owners());
    let mut kinds = Kinds::default();
    for (param, _, owner) in &owners {
        if *owner == rank {
            kinds.add(States::read(bytes_of(&optim, *param)?)?);
        }
    }
    let kinds = exchange.gather("the kinds of the optimizer's states", kinds.into_bytes()?)?;
    let source = Arc::new(Source {
        exchange: exchange.clone(),
        optim,
        owners,
        drawn: Mutex::default(),
    });
    if !exchange.replicas().is_first() {
        source.draw_the_rest()?;
        return Ok(None);
    }
    let mut of_all = Kinds::default();
    for kinds in kinds {
        of_all.extend(Kinds::of_bytes(kinds)?);
    }
    let written = write(of_all.into_writer(&source));
    if let Some(error) = lock(&source.drawn).failed.take() {
        return Err(error.into());
    }
    // If it has failed, the other replicas still send theirs.
    source.draw_the_rest()?;
    let written = written.map_err(|error| SaveStatesError::File {
        reason: error.to_string(),
    });
    written.map(Some)
}

/// A record of one parameter's states, as bytes.
fn bytes_of(optim: &ModuleOptimizer, param: u64) -> Result<Bytes, ReplicaError> {
    record_of(optim, param.into()).into_bytes().map_err(failed)
}

/// The description of states in a record, without their numbers.
#[derive(Default)]
struct Kinds {
    tensors: Vec<TensorKind>,
    scalars: BTreeMap<String, Scalar>,
    paths: BTreeMap<String, String>,
}

/// The description of a tensor in a record.
#[derive(Serialize, Deserialize)]
struct TensorKind {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    param: Option<u64>,
    bytes: usize,
}

/// Name under which a record of kinds has those of tensors. No path has it: paths are under an id.
const TENSORS: &str = "tensors";

impl Kinds {
    fn add(&mut self, states: States) {
        let tensors = states.tensors.iter().map(|tensor| TensorKind {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.as_slice().to_vec(),
            param: tensor.param_id,
            bytes: tensor.byte_len(),
        });
        self.tensors.extend(tensors);
        self.scalars.extend(states.scalars);
        self.paths.extend(states.paths);
    }

    fn extend(&mut self, other: Self) {
        self.tensors.extend(other.tensors);
        self.scalars.extend(other.scalars);
        self.paths.extend(other.paths);
    }

    /// Writes a record without tensors, which keeps every bit of a scalar.
    fn into_bytes(self) -> Result<Vec<u8>, ReplicaError> {
        let tensors = serde_json::to_string(&self.tensors).map_err(failed)?;
        let kinds = States {
            tensors: Vec::new(),
            scalars: self.scalars,
            paths: self.paths,
        };
        let writer = kinds.into_writer().with_metadata(TENSORS, &tensors);
        Ok(writer.into_bytes().map_err(failed)?.to_vec())
    }

    fn of_bytes(bytes: Vec<u8>) -> Result<Self, ReplicaError> {
        let mut kinds = States::read(Bytes::from_bytes_vec(bytes))?;
        let tensors = kinds.paths.remove(TENSORS).unwrap_or_default();
        Ok(Self {
            tensors: serde_json::from_str(&tensors).map_err(failed)?,
            scalars: kinds.scalars,
            paths: kinds.paths,
        })
    }

    /// A writer of these states, which draws their numbers one tensor after another.
    fn into_writer(self, source: &Arc<Source>) -> Writer {
        let mut of_params: HashMap<_, Vec<_>> = HashMap::new();
        for tensor in self.tensors {
            of_params
                .entry(param_of(&tensor.name))
                .or_default()
                .push(tensor);
        }
        let tensors = source.owners.iter().enumerate();
        let tensors = tensors.flat_map(|(place, (param, ..))| {
            let tensors = of_params.remove(&Some(*param)).unwrap_or_default();
            tensors.into_iter().map(move |kind| (place, kind))
        });
        let tensors = tensors.map(|(place, kind)| {
            let (source, name) = (source.clone(), kind.name.clone());
            let bytes = move || source.tensor(place, &name);
            Tensor::deferred(
                kind.name, kind.dtype, kind.shape, kind.param, kind.bytes, bytes,
            )
        });
        let states = States {
            tensors: tensors.collect(),
            scalars: self.scalars,
            paths: self.paths,
        };
        states.into_writer()
    }
}

/// The states of all replicas, which are sent one parameter at a time, in the order of the model.
struct Source {
    exchange: Exchange,
    optim: ModuleOptimizer,
    /// Id, path and owner of each parameter.
    owners: Vec<(u64, String, usize)>,
    drawn: Mutex<Drawn>,
}

/// Progress of writing the states.
#[derive(Default)]
struct Drawn {
    /// Index of the next parameter.
    next: usize,
    /// Tensors of the last parameter that were not taken yet; only the first replica has any.
    tensors: Vec<Tensor>,
    /// The error, after which a writer gets no more numbers.
    failed: Option<ReplicaError>,
}

impl Source {
    /// The numbers of a tensor of the parameter with this index.
    fn tensor(&self, place: usize, name: &str) -> Result<Bytes, burn_pack::Error> {
        let mut drawn = lock(&self.drawn);
        while drawn.next <= place {
            if let Err(error) = self.draw(&mut drawn) {
                let text = error.to_string();
                drawn.failed = Some(error);
                return Err(burn_pack::Error::IoError(text));
            }
        }
        let found = drawn.tensors.iter().position(|tensor| tensor.name == name);
        let found = found.ok_or_else(|| burn_pack::Error::TensorNotFound(name.into()))?;
        drawn.tensors.swap_remove(found).into_bytes()
    }

    /// Takes part until the states of all parameters were sent.
    fn draw_the_rest(&self) -> Result<(), ReplicaError> {
        let mut drawn = lock(&self.drawn);
        while drawn.next < self.owners.len() {
            self.draw(&mut drawn)?;
        }
        Ok(())
    }

    /// Draws the states of the next parameter, which replace those of the last one.
    fn draw(&self, drawn: &mut Drawn) -> Result<(), ReplicaError> {
        let (param, path, owner) = &self.owners[drawn.next];
        drawn.next += 1;
        drawn.tensors.clear();
        let replicas = self.exchange.replicas();
        let bytes = match *owner == replicas.rank() {
            true => bytes_of(&self.optim, *param)?.to_vec(),
            false => Vec::new(),
        };
        let what = format!("the optimizer's state of {path}");
        let bytes = self.exchange.from_rank(*owner, &what, bytes)?;
        if replicas.is_first() {
            drawn.tensors = States::read(Bytes::from_bytes_vec(bytes))?.tensors;
        }
        Ok(())
    }
}

pub(super) fn param_of(name: &str) -> Option<u64> {
    name.split('.').next()?.parse().ok()
}

pub(super) fn failed(error: impl std::fmt::Display) -> ReplicaError {
    ReplicaError::States {
        reason: error.to_string(),
    }
}
