//! A backward pass.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    thread,
};

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy, grads::Gradients};

use crate::{
    group::Values,
    operands::{Arguments, Nodes},
    origins::{Origins, Region, Seeds, Spent},
    progress::Progress,
    tape::{self, AdTensor},
    tensor::{ReleaseTensor, Repr},
    uses::{self, Completion, Uses, lock},
};

/// Runs backward from `root`. The armed parameters it depends on are acted on underway.
///
/// # Panics
///
/// On a second pass through a slice of recomputed activations.
pub(crate) fn backward<B: Backend, C: CheckpointStrategy>(root: ReleaseTensor<B>) -> Gradients {
    if let Repr::Recorded(root) = &root.0
        && let Some(tracer) = root.tracer()
    {
        tracer.learn();
    }
    let mut arguments = Arguments::new();
    arguments.push(root);
    let (mut operands, raise) = arguments.lower(Nodes::One);
    let root = operands.next().expect("there is a root");
    let origins = raise.into_origins();
    if origins.is_none() || !root.is_tracked() {
        return Autodiff::<B, C>::backward(root);
    }
    match origins.region().cloned() {
        None => {
            let parameters = origins.parameters();
            let watch = Watch::new(&parameters);
            let grads = run::<B, C>(root, &origins, &parameters);
            drop(watch);
            grads
        }
        Some(region) => by_regions::<B, C>(root, origins, region),
    }
}

/// Runs the part of the tape that is in one region.
fn run<B: Backend, C: CheckpointStrategy>(
    root: AdTensor<B>,
    origins: &Origins<B>,
    parameters: &[Arc<Uses<B>>],
) -> Gradients {
    let root = plan(root, origins, parameters);
    let mut grads = Autodiff::<B, C>::backward(root);
    for uses in parameters {
        uses.finish(&mut grads);
    }
    grads
}

/// Runs backward where slices are to be replayed on the way: region by region, from the last to the
/// first.
fn by_regions<B: Backend, C: CheckpointStrategy>(
    root: AdTensor<B>,
    origins: Origins<B>,
    last: Arc<Region<B>>,
) -> Gradients {
    let mut route = Route::new(last.clone()).unwrap_or_else(|Spent| {
        panic!(
            "gradient release: a second backward pass through a `checkpoint` scope, whose \
             operations were replayed and freed by the first; add the losses up and run backward \
             once"
        )
    });
    let watch = Watch::new(&route.parameters);
    route.assign(&last, Part::Kept);
    let mut grads = run::<B, C>(root, &origins, &origins.parameters());
    route.collect(&last, &mut grads);
    while let Some((number, region)) = route.regions.pop_last() {
        if let Some(seeds) = route.seeds(number, &grads) {
            grads = route.run_part::<C>(&region, Part::Kept, seeds, grads);
        }
        if let Some(slice) = region.slice() {
            let replayed = Region::new(number, None);
            if let Some(seeds) = slice.replay(&replayed, &mut grads) {
                grads = route.run_part::<C>(&replayed, Part::Replayed, seeds, grads);
            }
        }
    }
    if let Some(seeds) = route.seeds(HOME, &grads) {
        grads = run_from::<B, C>(seeds, grads);
    }
    for uses in &route.parameters {
        uses.finish(&mut grads);
    }
    drop(watch);
    grads
}

/// Runs the part of the tape below `seeds`, on top of the gradients that are there.
///
/// # Panics
///
/// If burn-autodiff has lost sight of a seed: its gradient would be lost.
fn run_from<B: Backend, C: CheckpointStrategy>(seeds: Seeds<B>, grads: Gradients) -> Gradients {
    let order = seeds.tensors.iter().map(|seed| seed.node.order).max();
    let order = order.expect("there is a seed") + 2;
    let parameters = seeds.origins.parameters();
    let carried = Mutex::new(Some(grads));
    let placeholder = seeds.tensors[0].primitive.clone();
    let keys: Vec<_> = seeds
        .tensors
        .iter()
        .map(|seed| tape::key(seed, seed.primitive.clone()))
        .collect();
    let root = tape::hook(seeds.tensors, order, placeholder, move |_, grads| {
        *grads = lock(&carried).take().expect("a node runs once");
    });
    let grads = run::<B, C>(root, &seeds.origins, &parameters);
    let is_run = |seed: &AdTensor<B>| tape::is_leaf::<B>(seed) || grads.get::<B>(seed).is_none();
    assert!(
        keys.iter().all(is_run),
        "gradient release: burn-autodiff has lost the node of a tensor that went into a `checkpoint` \
         scope, or into a slice of recomputed activations; please report the model that does this"
    );
    grads
}

fn move_gradient<B: Backend>(from: &AdTensor<B>, to: &AdTensor<B>, grads: &mut Gradients) {
    if let Some(gradient) = grads.remove::<B>(from) {
        grads.register::<B>(to.node.id, gradient);
    }
}

/// The number of the tape outside of all regions.
const HOME: u64 = 0;

/// What of a region runs: the part that was kept in the forward pass, or the slice below it. In the
/// order of running within a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Kept,
    Replayed,
}

/// How far a backward pass by regions has come, and where it goes on.
struct Route<B: Backend> {
    /// By number.
    regions: BTreeMap<u64, Arc<Region<B>>>,
    /// All parameters that it can come to.
    parameters: Vec<Arc<Uses<B>>>,
    /// Where each is used last: the lowest region, and its last part.
    last_use: HashMap<*const Uses<B>, (u64, Part)>,
    /// Tensors whose gradients wait for their region to run, by its number.
    seeds: HashMap<u64, Vec<(AdTensor<B>, Origins<B>)>>,
}

impl<B: Backend> Route<B> {
    /// # Errors
    ///
    /// If a slice on the way was replayed before.
    fn new(last: Arc<Region<B>>) -> Result<Self, Spent> {
        let mut regions = BTreeMap::new();
        let mut last_use: HashMap<_, (u64, Part)> = HashMap::new();
        let mut homes: Vec<Arc<Uses<B>>> = Vec::new();
        let mut note = |uses: &Arc<Uses<B>>, number: u64, part: Part| {
            let place = last_use.entry(Arc::as_ptr(uses)).or_insert_with(|| {
                homes.push(uses.clone());
                (number, part)
            });
            // A later part of the same region, or a lower one.
            if number < place.0 || (number == place.0 && part > place.1) {
                *place = (number, part);
            }
        };
        let mut waiting = vec![last];
        while let Some(region) = waiting.pop() {
            let number = region.number();
            if regions.insert(number, region.clone()).is_some() {
                continue;
            }
            region.with_parameters(|parameters| {
                for uses in parameters {
                    note(&uses.home, number, Part::Kept);
                }
            });
            let mut below: Vec<_> = region.with_portals(|portals| {
                portals
                    .iter()
                    .map(|portal| portal.origins.clone())
                    .collect()
            });
            if let Some(slice) = region.slice() {
                let inputs = slice.inputs()?;
                below.extend(inputs.origins);
                for uses in &inputs.parameters {
                    note(uses, number, Part::Replayed);
                }
            }
            for origins in below {
                if let Some(region) = origins.region() {
                    waiting.push(region.clone());
                    continue;
                }
                for uses in origins.parameters().iter().filter(|uses| uses.is_used()) {
                    note(uses, HOME, Part::Kept);
                }
            }
        }
        Ok(Self {
            regions,
            parameters: homes,
            last_use,
            seeds: HashMap::new(),
        })
    }

    /// Has each parameter act in the part of the tape that uses it last.
    fn assign(&self, region: &Region<B>, part: Part) {
        let place = (region.number(), part);
        region.with_parameters(|parameters| {
            for uses in parameters {
                let is_last = self.last_use.get(&Arc::as_ptr(&uses.home)) == Some(&place);
                let owner = uses.home.weak_owner().filter(|_| is_last);
                uses.here.replace_owner(owner);
            }
        });
    }

    /// Runs a part of the tape.
    fn run_part<C: CheckpointStrategy>(
        &mut self,
        region: &Region<B>,
        part: Part,
        seeds: Seeds<B>,
        mut grads: Gradients,
    ) -> Gradients {
        self.assign(region, part);
        region.with_portals(|portals| {
            for portal in portals {
                move_gradient(&portal.target, &portal.leaf, &mut grads);
            }
        });
        let mut grads = run_from::<B, C>(seeds, grads);
        self.collect(region, &mut grads);
        grads
    }

    /// Takes over what a part of the tape has left: the gradients of what has entered it.
    fn collect(&mut self, region: &Region<B>, grads: &mut Gradients) {
        region.with_parameters(|parameters| {
            for uses in parameters.iter().filter(|uses| uses.here.is_reached()) {
                uses.home.mark_reached();
            }
        });
        region.with_portals(|portals| {
            for portal in portals {
                move_gradient(&portal.leaf, &portal.target, grads);
                if tape::is_leaf::<B>(&portal.target) {
                    continue;
                }
                let number = portal
                    .origins
                    .region()
                    .map_or(HOME, |region| region.number());
                let waiting = self.seeds.entry(number).or_default();
                let is_known =
                    |(known, _): &(AdTensor<B>, _)| known.node.id == portal.target.node.id;
                if !waiting.iter().any(is_known) {
                    waiting.push((portal.target.clone(), portal.origins.clone()));
                }
            }
        });
    }

    /// The tensors of a region whose gradients are there.
    fn seeds(&mut self, number: u64, grads: &Gradients) -> Option<Seeds<B>> {
        let waiting = self.seeds.remove(&number)?.into_iter();
        let mut origins = Origins::none();
        let seeds = waiting.filter(|(tensor, _)| grads.get::<B>(tensor).is_some());
        let mut tensors: Vec<_> = seeds
            .map(|(tensor, of)| {
                origins.join(&of);
                tensor
            })
            .collect();
        // Burn reaches the last first: what was computed last, as from the loss.
        tensors.sort_by_key(|tensor| tensor.node.id.value);
        (!tensors.is_empty()).then_some(Seeds { tensors, origins })
    }
}
/// Adds to the tape what runs beside Burn's own nodes: the replays of derived tensors, and the taps
/// of parameters without a proxy that can tell when the gradient is complete.
fn plan<B: Backend>(
    root: AdTensor<B>,
    origins: &Origins<B>,
    parameters: &[Arc<Uses<B>>],
) -> AdTensor<B> {
    let derived = origins.derived();
    for derived in derived.iter().rev() {
        derived.settle();
    }
    // What comes first here is reached last, and runs last among nodes of one order.
    let mut last = root.clone();
    for uses in parameters {
        if let Completion::After(order) = uses.settle()
            && uses.is_awaited()
        {
            last = uses::tap(uses, last, order);
        }
    }
    let mut values = Values::<B>::new();
    for derived in derived {
        last = derived.replay(last, &mut values);
    }
    if last.node.id == root.node.id {
        return root;
    }
    // Burn reaches the last parent first: its own nodes before ours.
    let order = root.node.order + 1;
    let (target, value) = (
        tape::key(&root, root.primitive.clone()),
        root.primitive.clone(),
    );
    tape::hook(vec![last, root], order, value, move |node, grads| {
        tape::forward(node, &target, grads);
    })
}

/// Notices a panic in the middle of a pass, and tells the optimizers that were at work.
struct Watch(Vec<(Arc<Progress>, usize)>);

impl Watch {
    fn new<B: Backend>(parameters: &[Arc<Uses<B>>]) -> Self {
        let mut watched: Vec<(Arc<Progress>, usize)> = Vec::new();
        for owner in parameters.iter().filter_map(|uses| uses.owner()) {
            let progress = owner.progress();
            if !watched
                .iter()
                .any(|(known, _)| Arc::ptr_eq(known, progress))
            {
                watched.push((progress.clone(), progress.begun()));
            }
        }
        Self(watched)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if thread::panicking() {
            // Only a pass that has begun to change something leaves it half done.
            self.0
                .iter()
                .filter(|(progress, begun)| progress.begun() > *begun)
                .for_each(|(progress, _)| progress.interrupt());
        }
    }
}
