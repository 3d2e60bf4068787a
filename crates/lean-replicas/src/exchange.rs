//! Exchanges between replicas in training.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    mem,
    num::NonZeroUsize,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    Replicas,
    channel::lock,
    error::ReplicaError,
    mean::{Summand, To, mean},
    model::Known,
    replicas::Pending,
    segments::{broadcast, gather},
    sharding::owners,
};

/// The replicas that receive a mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipients {
    /// Every replica.
    All,
    /// At least the replica that steps the parameter.
    Owner,
}

/// The gradients, weights and states of a model that replicas train. Clones are the same.
#[derive(Clone, Debug)]
pub struct Exchange {
    replicas: Replicas,
    known: Arc<RwLock<HashMap<u64, Parameter>>>,
    steps: Arc<AtomicU64>,
    max_in_flight: NonZeroUsize,
    is_sharded: bool,
    order: Arc<Mutex<Order>>,
}

/// Order in which gradients are reduced, where each replica may complete them in another.
#[derive(Debug, Default)]
struct Order {
    /// As all replicas have agreed, of the parameters that had a gradient so far.
    agreed: Vec<u64>,
    /// As this replica has completed them since.
    completed: Vec<u64>,
    /// Whether `order()` was called.
    is_kept: bool,
}

#[derive(Clone, Debug)]
struct Parameter {
    path: String,
    owner: usize,
    /// Its place among the parameters of all models.
    place: usize,
    /// Number of its elements.
    size: usize,
    is_trained: bool,
}

/// How many times as large the largest parameter is.
const SMALL: usize = 64;

/// An order, followed by the ids of another one that it lacks. They come last, where no
/// gradient waits for one that does not come.
fn completed_by(mut order: Vec<u64>, other: &[u64]) -> Vec<u64> {
    let known: HashSet<_> = order.iter().copied().collect();
    order.extend(other.iter().filter(|id| !known.contains(id)));
    order
}

impl Exchange {
    /// Every replica steps every parameter.
    pub fn new(replicas: Replicas) -> Self {
        Self {
            replicas,
            known: Arc::default(),
            steps: Arc::default(),
            max_in_flight: NonZeroUsize::MIN,
            is_sharded: false,
            order: Arc::default(),
        }
    }

    /// Each parameter is stepped by one replica.
    pub fn with_sharded_optimizer(mut self) -> Self {
        self.is_sharded = true;
        self
    }

    /// Sets how many reductions may be in flight (default 1).
    pub fn with_max_in_flight(mut self, gradients: NonZeroUsize) -> Self {
        self.max_in_flight = gradients;
        self
    }

    /// Sets how long to wait for the other replicas.
    pub fn with_timeout(mut self, timeout: std::time::Duration) -> Self {
        self.replicas = self.replicas.with_timeout(timeout);
        self
    }

    /// The processes.
    pub fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    /// Maximum number of reductions in flight.
    pub fn max_in_flight(&self) -> NonZeroUsize {
        self.max_in_flight
    }

    /// Whether optimizer states are apart: each replica has a part of them, and there are several.
    pub fn is_sharded(&self) -> bool {
        self.is_sharded && self.replicas.size() > 1
    }

    /// Takes note of a model that the replicas have compared, and chooses an owner for each
    /// parameter. A parameter that is known keeps its owner, which has its states.
    pub fn know(&self, parameters: Vec<Known>) {
        // Those that are trained first: a frozen one has no state, and may be trained later.
        let (trained, frozen): (Vec<_>, Vec<_>) = parameters
            .into_iter()
            .enumerate()
            .partition(|(_, known)| known.is_trained);
        let parameters = [trained, frozen].into_iter().flat_map(|parameters| {
            let sizes: Vec<_> = parameters.iter().map(|(_, known)| known.size).collect();
            let owners = owners(&sizes, self.replicas.size());
            parameters.into_iter().zip(owners)
        });
        let mut before = self.known.write().unwrap_or_else(PoisonError::into_inner);
        // Another model comes after those before. Ids of what is not trained would order them otherwise on
        // each replica.
        let places = before.values().map(|known| known.place + 1);
        let first = places.max().unwrap_or_default();
        let mut seen = HashSet::new();
        for ((place, known), owner) in parameters {
            // A frozen copy may have the id of what is trained, which comes first.
            if !seen.insert(known.id) {
                continue;
            }
            let earlier = before.get(&known.id);
            let parameter = Parameter {
                path: known.path,
                owner: earlier.map_or(owner, |known| known.owner),
                place: earlier.map_or(first + place, |known| known.place),
                size: known.size,
                is_trained: known.is_trained,
            };
            before.insert(known.id, parameter);
        }
    }

    /// The replica that steps a parameter, if states are apart.
    ///
    /// # Errors
    ///
    /// If the parameter is in no model that the replicas have compared.
    pub fn owner(&self, param: u64) -> Result<usize, ReplicaError> {
        self.parameter(param).map(|parameter| parameter.owner)
    }

    /// Whether this replica steps a parameter.
    ///
    /// # Errors
    ///
    /// If states are apart, and the parameter is in no model that the replicas have compared.
    pub fn is_owner(&self, param: u64) -> Result<bool, ReplicaError> {
        Ok(!self.is_sharded || self.owner(param)? == self.replicas.rank())
    }

    fn parameter(&self, param: u64) -> Result<Parameter, ReplicaError> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let parameter = known.get(&param).cloned();
        parameter.ok_or_else(|| ReplicaError::UnknownParameter {
            param: param.to_string(),
        })
    }

    /// The parameters in the order of the models: id, path, and the replica that steps it.
    pub fn owners(&self) -> Vec<(u64, String, usize)> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut parameters: Vec<_> = known.iter().collect();
        parameters.sort_by_key(|(id, parameter)| (parameter.place, **id));
        let parameters = parameters.into_iter();
        parameters
            .map(|(id, parameter)| (*id, parameter.path.clone(), parameter.owner))
            .collect()
    }

    /// The rates of a step in a few words: that of the first parameter, and each that another one
    /// has in place of it.
    pub fn rates(&self, rate: impl Fn(u64, &str) -> String) -> String {
        let mut text = String::new();
        let mut before = String::new();
        for (id, path, _) in self.owners() {
            let rate = rate(id, &path);
            match before.is_empty() {
                true => text += &rate,
                false if rate != before => text += &format!(", {rate} from {path}"),
                false => {}
            }
            before = rate;
        }
        text
    }

    /// The operation that all replicas are at, with a tensor of this [`kind`](crate::kind).
    ///
    /// # Errors
    ///
    /// If the parameter is in no model that the replicas have compared.
    pub fn describe(&self, what: &str, param: u64, kind: &str) -> Result<String, ReplicaError> {
        let path = self.parameter(param)?.path;
        let step = self.step();
        Ok(format!("the {what} of {path} {kind} in step {step}"))
    }

    /// The number of the step, from 1.
    fn step(&self) -> u64 {
        self.steps.load(Ordering::Relaxed) + 1
    }

    /// Begins to take the mean of a parameter's gradient, of which `made` makes what is waited for.
    /// Returns also whether this replica gets it: what comes of it elsewhere is of no use.
    ///
    /// # Errors
    ///
    /// If the parameter is in no model that the replicas have compared.
    pub fn mean<E: Summand, T: Send + 'static>(
        &self,
        param: u64,
        kind: &str,
        mut values: Vec<E>,
        recipients: Recipients,
        made: impl FnOnce(Vec<E>) -> T + Send + 'static,
    ) -> Result<(Pending<T>, bool), ReplicaError> {
        let mut what = self.describe("gradient", param, kind)?;
        let to = match recipients {
            Recipients::Owner if self.is_sharded => To::Rank(self.owner(param)?),
            _ => To::All,
        };
        let is_needed = match to {
            To::All => true,
            To::Rank(rank) => {
                // Who sends it to one, and who to all, must not meet.
                what += &format!(" for rank {rank}");
                rank == self.replicas.rank()
            }
        };
        let pending = self.replicas.begin(what, move |communicator| {
            mean(communicator, &mut values, to)?;
            Ok(made(values))
        });
        Ok((pending, is_needed))
    }

    /// The bytes of a parameter's weight at its owner, which `own` reads there and there alone; of
    /// others it knows their number.
    ///
    /// # Errors
    ///
    /// If the replicas do not agree on whose weight it is, or `own` fails.
    pub fn weight_from_owner<F: From<ReplicaError>>(
        &self,
        param: u64,
        kind: &str,
        bytes: usize,
        own: impl FnOnce() -> Result<Vec<u8>, F>,
    ) -> Result<Vec<u8>, F> {
        let what = self.describe("weight", param, kind)?;
        let owner = self.owner(param)?;
        let mut bytes = match owner == self.replicas.rank() {
            true => own()?,
            false => {
                // With the old weight.
                drop(own);
                vec![0; bytes]
            }
        };
        let pending = self.replicas.begin(what, move |communicator| {
            broadcast(communicator, owner, &mut bytes)?;
            Ok(bytes)
        });
        Ok(pending.wait()?)
    }

    /// The bytes of one replica, however many, at all of them.
    ///
    /// # Errors
    ///
    /// If a replica does something else, as its `what` says.
    pub fn from_rank(
        &self,
        rank: usize,
        what: &str,
        mut bytes: Vec<u8>,
    ) -> Result<Vec<u8>, ReplicaError> {
        let pending = self.replicas.begin(what.into(), move |communicator| {
            let mut length = bytes.len().to_ne_bytes();
            communicator.broadcast(rank, &mut length)?;
            bytes.resize(usize::from_ne_bytes(length), 0);
            broadcast(communicator, rank, &mut bytes)?;
            Ok(bytes)
        });
        pending.wait()
    }

    /// The bytes of all replicas, in the order of the ranks, at the first one; nothing elsewhere.
    ///
    /// # Errors
    ///
    /// If a replica does something else, as its `what` says.
    pub fn gather(&self, what: &str, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, ReplicaError> {
        let pending = self.replicas.begin(what.into(), move |communicator| {
            gather(communicator, &bytes)
        });
        pending.wait()
    }

    /// The order in which all replicas reduce gradients that each may complete in another one: that
    /// in which the first replica has completed them last; before, from the end of the model, with small
    /// ones last. `None` if there is one replica.
    pub fn order(&self) -> Option<Vec<u64>> {
        if self.replicas.size() == 1 {
            return None;
        }
        let mut order = lock(&self.order);
        order.is_kept = true;
        Some(completed_by(
            order.agreed.clone(),
            &self.last_parameters_first(),
        ))
    }

    /// Takes note of the order in which a backward pass has completed gradients here.
    pub fn completed(&self, gradients: Vec<u64>) {
        let completed = &mut lock(&self.order).completed;
        let known: HashSet<_> = completed.iter().copied().collect();
        for gradient in gradients {
            // The second of two passes completes the same ones.
            if !known.contains(&gradient) {
                completed.push(gradient);
            }
        }
    }

    fn last_parameters_first(&self) -> Vec<u64> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let trained = known.iter().filter(|(_, parameter)| parameter.is_trained);
        let mut trained: Vec<_> = trained.collect();
        let largest = trained.iter().map(|(_, parameter)| parameter.size).max();
        // A bias may come late, as Burn reshapes it before it is used, and large gradients would wait for it.
        let is_small = |size: usize| size < largest.unwrap_or_default() / SMALL;
        trained.sort_by_key(|(id, parameter)| {
            let (size, place) = (parameter.size, parameter.place);
            (is_small(size), Reverse(place), **id)
        });
        trained.into_iter().map(|(id, _)| *id).collect()
    }

    /// Gives all replicas the order in which the first one has completed its gradients.
    fn agree_on_order(&self) -> Result<(), ReplicaError> {
        let mut order = lock(&self.order);
        let completed = mem::take(&mut order.completed);
        if !order.is_kept {
            return Ok(());
        }
        let is_new = !order.agreed.starts_with(&completed);
        let text = || {
            let ids = completed.iter().map(u64::to_string);
            ids.collect::<Vec<_>>().join(" ")
        };
        let of_first = (is_new && self.replicas.is_first()).then(text);
        let what = format!("the order of the gradients in step {}", self.step());
        if let Some(text) = self.replicas.anybody_says(&what, of_first)? {
            let ids = text.split_whitespace().map(str::parse);
            let ids = ids.collect::<Result<_, _>>().expect("numbers were sent");
            order.agreed = completed_by(ids, &order.agreed);
        }
        Ok(())
    }

    /// Ends an optimizer step.
    ///
    /// # Errors
    ///
    /// If a replica is elsewhere, or steps with other rates.
    pub fn end_step(&self, rates: &str) -> Result<(), ReplicaError> {
        let what = format!("the end of step {} with rate {rates}", self.step());
        self.replicas.meet(&what)?;
        self.agree_on_order()?;
        self.steps.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
