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

/// A walk over a model that all replicas make together, with the names of its fields: each parameter
/// is compared, or received from the first replica.
#[derive(Debug)]
pub struct ModelWalk<'a> {
    replicas: &'a Replicas,
    path: Vec<String>,
    error: Option<ReplicaError>,
}

impl<'a> ModelWalk<'a> {
    /// Begins with the first parameter.
    pub fn new(replicas: &'a Replicas) -> Self {
        Self {
            replicas,
            path: Vec::new(),
            error: None,
        }
    }

    /// Goes into a field.
    pub fn enter(&mut self, name: &str) {
        self.path.push(name.into());
    }

    /// Goes out of it.
    pub fn exit(&mut self) {
        self.path.pop();
    }

    /// Compares a parameter: its values, and its id if there is one.
    pub fn compare(&mut self, id: Option<&str>, kind: &str, bytes: impl FnOnce() -> Vec<u8>) {
        if self.error.is_some() {
            return;
        }
        let id = id.map_or(String::new(), |id| format!(", id {id}"));
        let what = self.parameter(kind);
        let what = format!("{what}{id}, digest {:016x}", digest(&bytes()));
        self.error = self.replicas.meet(&what).err();
    }

    /// The id and the bytes of the first replica's parameter, which are sent only if a replica has
    /// others. `None` after an error.
    pub fn receive(
        &mut self,
        id: u64,
        is_trained: bool,
        kind: &str,
        mut bytes: Vec<u8>,
    ) -> Option<(u64, Vec<u8>)> {
        if self.error.is_some() {
            return None;
        }
        let mut what = self.parameter(kind);
        if !is_trained {
            what += ", not trained";
        }
        let pending = self.replicas.begin(what, move |communicator| {
            let mut own = id.to_ne_bytes();
            communicator.broadcast(0, &mut own)?;
            let digest = digest(&bytes).to_ne_bytes();
            let of_all = communicator.all_gather(&digest)?;
            if of_all != digest.repeat(communicator.size()) {
                segments::broadcast(communicator, 0, &mut bytes)?;
            }
            Ok((u64::from_ne_bytes(own), bytes))
        });
        pending
            .wait()
            .map_err(|error| self.error = Some(error))
            .ok()
    }

    fn parameter(&self, kind: &str) -> String {
        format!("parameter {} {kind}", self.path.join("."))
    }

    /// Ends with the last parameter.
    ///
    /// # Errors
    ///
    /// If the models differ: in a parameter, its shape or its type, or in what was compared.
    pub fn finish(self) -> Result<(), ReplicaError> {
        match self.error {
            Some(error) => Err(error),
            None => self.replicas.meet(END_OF_MODEL),
        }
    }
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
