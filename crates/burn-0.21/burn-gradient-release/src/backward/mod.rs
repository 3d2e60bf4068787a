//! A backward pass.

pub(crate) mod arrivals;
pub(crate) mod replay;
pub(crate) mod route;

use std::{
    sync::{Arc, Mutex},
    thread,
};

use burn::tensor::{
    backend::{AutodiffBackend, Backend},
    try_read_sync,
};
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy, grads::Gradients};

use crate::{
    backward::route::{HOME, Route},
    lower::operands::Arguments,
    lower::raise::Nodes,
    lower::random::RandomLog,
    slot::armed_set::Values,
    subgraph::order::Half,
    subgraph::uses::add_waiting,
    subgraph::{Origins, Seeds, Spent, Subgraph},
    tape::consumers::{self, Consumers, Owner},
    tape::mark,
    tape::tally::Completion,
    tape::visit::Pass,
    tape::{self, AdTensor},
    tensor::ReleaseTensor,
    util::inner::AutodiffInner,
    util::lock::lock,
    util::progress::Recomputed,
};

/// Runs backward from `root`. Armed parameters act on their gradients on the way.
///
/// # Panics
///
/// On a second pass through a segment of recomputed activations, and in the second of two passes if
/// the loss is not that of the first.
pub(crate) fn backward<B: AutodiffInner, C: CheckpointStrategy>(
    root: ReleaseTensor<B>,
) -> Gradients {
    let mut arguments = Arguments::new();
    arguments.push(root);
    let (mut operands, raise) = arguments.lower(Nodes::None);
    let root = operands.next().expect("there is a root");
    let origins = raise.into_origins();
    RandomLog::check_loss(|| {
        let loss = B::float_into_data(root.primitive.clone());
        try_read_sync(loss)
            .and_then(Result::ok)
            .expect("gradient release: the loss of a step in two passes can be read")
    });
    if origins.is_none() || !root.is_tracked() {
        return Autodiff::<B, C>::backward(root);
    }
    match origins.subgraph().cloned() {
        None => {
            let parameters = origins.parameters();
            let watch = Watch::new(&parameters);
            watch.begin_part();
            let grads = run::<B, C>(root, &origins, &parameters);
            watch.wait_for_reductions();
            grads
        }
        Some(subgraph) => by_subgraphs::<B, C>(root, origins, subgraph),
    }
}

/// Runs the part of the tape that is in one subgraph.
fn run<B: AutodiffInner, C: CheckpointStrategy>(
    root: AdTensor<B>,
    origins: &Origins<B>,
    parameters: &[Arc<Consumers<B>>],
) -> Gradients {
    let _pass = Pass::begin();
    let root = add_hooks(root, origins, parameters);
    let mut grads = Autodiff::<B, C>::backward(root);
    for consumers in parameters {
        consumers.finish(&mut grads);
    }
    grads
}

/// Runs backward with segments to replay on the way: subgraph by subgraph, from the last to the
/// first.
fn by_subgraphs<B: AutodiffInner, C: CheckpointStrategy>(
    root: AdTensor<B>,
    origins: Origins<B>,
    last: Arc<Subgraph<B>>,
) -> Gradients {
    let mut route = Route::new(last.clone(), root.node.id).unwrap_or_else(|Spent| {
        panic!(
            "gradient release: a second backward pass through a `checkpoint` scope or a segment of \
             `Recompute`, whose operations were replayed and freed by the first; `detach` a state \
             that is carried over from step to step, or add the losses up and run backward once"
        )
    });
    for (number, subgraph) in route.subgraphs.iter().rev() {
        if let Some(segment) = subgraph.segment() {
            segment.learn(*number == last.number());
        }
    }
    let watch = Watch::new(&route.parameters);
    watch.note(route.recomputed);
    route.assign(&last, Half::Kept);
    watch.begin_part();
    let mut grads = run::<B, C>(root, &origins, &origins.parameters());
    route.collect(&last, Half::Kept, &mut grads);
    while let Some((number, subgraph)) = route.subgraphs.pop_last() {
        if let Some(seeds) = route.seeds(number, Some(&subgraph), &mut grads) {
            watch.begin_part();
            grads = run_part::<B, C>(&mut route, &subgraph, Half::Kept, seeds, grads);
        }
        if let Some(segment) = subgraph.segment() {
            let replayed = Subgraph::replay(number);
            let apart = route.apart(&subgraph, &mut grads);
            if let Some(seeds) = segment.replay(&replayed, &mut grads, &route.played, apart) {
                watch.begin_part();
                grads = run_part::<B, C>(&mut route, &replayed, Half::Replayed, seeds, grads);
            }
        }
    }
    if let Some(seeds) = route.seeds(HOME, None, &mut grads) {
        watch.begin_part();
        grads = run_from::<B, C>(seeds, grads);
    }
    route.add_up_all(&mut grads);
    for consumers in &route.parameters {
        consumers.finish(&mut grads);
    }
    watch.wait_for_reductions();
    grads
}

fn run_part<B: AutodiffInner, C: CheckpointStrategy>(
    route: &mut Route<B>,
    subgraph: &Subgraph<B>,
    half: Half,
    seeds: Seeds<B>,
    mut grads: Gradients,
) -> Gradients {
    route.begin(subgraph, half, &mut grads);
    let mut grads = run_from::<B, C>(seeds, grads);
    route.collect(subgraph, half, &mut grads);
    grads
}

/// Runs the part of the tape below `seeds`, and adds to `grads`.
///
/// # Panics
///
/// If burn-autodiff has lost the node of a seed: its gradient would be lost.
fn run_from<B: AutodiffInner, C: CheckpointStrategy>(
    seeds: Seeds<B>,
    grads: Gradients,
) -> Gradients {
    let orders = seeds.tensors.iter().map(|seed| seed.node.order);
    // An operation that gives no gradient may have no seed above it.
    let order = orders.chain(seeds.late.iter().map(|late| late.order)).max();
    let order = order.expect("there is a seed") + 2;
    let parameters = seeds.origins.parameters();
    let carried = Mutex::new(Some(grads));
    let placeholder = seeds.tensors[0].primitive.clone();
    let keys: Vec<_> = seeds
        .tensors
        .iter()
        .map(|seed| tape::key(seed, seed.primitive.clone()))
        .collect();
    // Burn reaches the first parents last: they run after all operations of the order.
    let late = seeds.late.into_iter().map(|late| {
        let placeholder = late.seed.primitive.clone();
        let id = late.seed.node.id;
        let gradients = late.gradients;
        tape::hook(vec![late.seed], late.order, placeholder, move |_, grads| {
            add_waiting::<B>(id, gradients.iter().cloned(), grads);
        })
    });
    let parents = late.chain(seeds.tensors).collect();
    let root = tape::hook(parents, order, placeholder, move |_, grads| {
        mark::check_part(grads);
        *grads = lock(&carried).take().expect("a node runs once");
    });
    let grads = run::<B, C>(root, &seeds.origins, &parameters);
    let is_run = |seed: &AdTensor<B>| tape::is_leaf::<B>(seed) || grads.get::<B>(seed).is_none();
    assert!(
        keys.iter().all(is_run),
        "gradient release: burn-autodiff has lost the node of a tensor that went into a `checkpoint` \
         scope, or into a segment of recomputed activations; please report the model that does this"
    );
    grads
}

/// Adds the nodes that run beside Burn's own to the tape: the replays of derived tensors, and the
/// order hooks of parameters whose leaf hooks cannot tell when the gradient is complete.
fn add_hooks<B: Backend>(
    root: AdTensor<B>,
    origins: &Origins<B>,
    parameters: &[Arc<Consumers<B>>],
) -> AdTensor<B> {
    let derived = origins.derived();
    for derived in derived.iter().rev() {
        derived.settle();
    }
    // The first node here is reached last, and runs last among nodes of one order.
    let mut last = root.clone();
    for consumers in parameters {
        if let Completion::After(order) = consumers.settle()
            && consumers.is_awaited()
        {
            last = consumers::order_hook(consumers, last, order);
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

/// Tells the optimizers of a pass if it panics midway. Of parameters that were armed together, one
/// owner stands for all.
struct Watch(Vec<(Arc<dyn Owner>, usize)>);

impl Watch {
    fn new<B: Backend>(parameters: &[Arc<Consumers<B>>]) -> Self {
        let mut watched: Vec<(Arc<dyn Owner>, usize)> = Vec::new();
        for owner in parameters.iter().filter_map(|consumers| consumers.owner()) {
            owner.expect();
            let progress = owner.progress();
            if !watched
                .iter()
                .any(|(known, _)| Arc::ptr_eq(known.progress(), progress))
            {
                let begun = progress.begun();
                watched.push((owner, begun));
            }
        }
        Self(watched)
    }

    /// Notes the operations that the pass computes again.
    fn note(&self, recomputed: Recomputed) {
        for (owner, _) in &self.0 {
            owner.progress().recompute(recomputed);
        }
    }

    /// Begins a part of the pass, which burn-autodiff runs as one of its own.
    fn begin_part(&self) {
        self.0.iter().for_each(|(owner, _)| owner.begin_part());
    }

    /// Ends a pass that has not panicked.
    fn wait_for_reductions(self) {
        self.0
            .iter()
            .for_each(|(owner, _)| owner.wait_for_reductions());
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.iter().for_each(|(owner, _)| owner.drop_reductions());
            // Only a pass that has begun to act leaves a step half done.
            self.0
                .iter()
                .map(|(owner, begun)| (owner.progress(), begun))
                .filter(|(progress, begun)| progress.begun() > **begun)
                .for_each(|(progress, _)| progress.interrupt());
        }
    }
}
