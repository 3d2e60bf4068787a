//! Models that are to be the same on all replicas, tensor by tensor.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{Replicas, error::ReplicaError, segments};

/// Where replicas are that have no further parameter.
const END_OF_MODEL: &str = "the end of the model";

/// A float parameter of a model.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its id, which is the same on all replicas if it is trained.
    pub id: u64,
    /// The names of the fields that lead to it.
    pub path: String,
    /// Number of elements.
    pub size: usize,
    /// Whether it requires a gradient.
    pub is_trained: bool,
}

/// Shape and type of a tensor, as errors name them.
pub fn kind(shape: &[usize], dtype: impl Debug) -> String {
    format!("{shape:?} {dtype:?}")
}

/// Gives all replicas the model of the first one. Visits it with its modules' names.
#[derive(Debug)]
pub struct Reception<'a> {
    replicas: &'a Replicas,
    path: Path,
    error: Option<ReplicaError>,
}

impl<'a> Reception<'a> {
    /// Begins with the first parameter.
    pub fn new(replicas: &'a Replicas) -> Self {
        Self {
            replicas,
            path: Path::default(),
            error: None,
        }
    }

    /// Goes into a field.
    pub fn enter(&mut self, name: &str) {
        self.path.enter(name);
    }

    /// Goes out of it.
    pub fn exit(&mut self) {
        self.path.exit();
    }

    /// The id and the bytes of the first replica's parameter. `None` after an error.
    pub fn receive(&mut self, id: u64, kind: &str, mut bytes: Vec<u8>) -> Option<(u64, Vec<u8>)> {
        if self.error.is_some() {
            return None;
        }
        let what = self.path.parameter(kind);
        let pending = self.replicas.begin(what, move |communicator| {
            let mut own = id.to_ne_bytes();
            communicator.broadcast(0, &mut own)?;
            segments::broadcast(communicator, 0, &mut bytes)?;
            Ok((u64::from_ne_bytes(own), bytes))
        });
        pending
            .wait()
            .map_err(|error| self.error = Some(error))
            .ok()
    }

    /// Ends with the last parameter.
    ///
    /// # Errors
    ///
    /// If the models differ in a parameter, its shape or its type.
    pub fn finish(self) -> Result<(), ReplicaError> {
        finish(self.replicas, self.error)
    }
}

/// Compares the models of all replicas.
#[derive(Debug)]
pub struct Comparison<'a> {
    replicas: &'a Replicas,
    path: Path,
    known: Vec<Known>,
    error: Option<ReplicaError>,
}

impl<'a> Comparison<'a> {
    /// Begins with the first parameter.
    pub fn new(replicas: &'a Replicas) -> Self {
        Self {
            replicas,
            path: Path::default(),
            known: Vec::new(),
            error: None,
        }
    }

    /// Goes into a field.
    pub fn enter(&mut self, name: &str) {
        self.path.enter(name);
    }

    /// Goes out of it.
    pub fn exit(&mut self) {
        self.path.exit();
    }

    /// Takes note of a float parameter of so many numbers.
    pub fn know(&mut self, id: u64, size: usize, is_trained: bool) {
        let path = self.path.to_string();
        self.known.push(Known {
            id,
            path,
            size,
            is_trained,
        });
    }

    /// Compares a parameter: its values, and its id if there is one.
    pub fn compare(&mut self, id: Option<&str>, kind: &str, bytes: impl FnOnce() -> Vec<u8>) {
        if self.error.is_some() {
            return;
        }
        let mut hasher = DefaultHasher::new();
        bytes().hash(&mut hasher);
        let id = id.map_or(String::new(), |id| format!(", id {id}"));
        let what = self.path.parameter(kind);
        let what = format!("{what}{id}, digest {:016x}", hasher.finish());
        self.error = self.replicas.meet(&what).err();
    }

    /// Ends with the last parameter. The float parameters, in the order of the model.
    ///
    /// # Errors
    ///
    /// If the models differ.
    pub fn finish(self) -> Result<Vec<Known>, ReplicaError> {
        finish(self.replicas, self.error)?;
        Ok(self.known)
    }
}

fn finish(replicas: &Replicas, error: Option<ReplicaError>) -> Result<(), ReplicaError> {
    match error {
        Some(error) => Err(error),
        None => replicas.meet(END_OF_MODEL),
    }
}

/// The names of the fields that lead to a parameter.
#[derive(Debug, Default)]
struct Path(Vec<String>);

impl Path {
    fn enter(&mut self, name: &str) {
        self.0.push(name.into());
    }

    fn exit(&mut self) {
        self.0.pop();
    }

    fn parameter(&self, kind: &str) -> String {
        format!("parameter {self} {kind}")
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("."))
    }
}
