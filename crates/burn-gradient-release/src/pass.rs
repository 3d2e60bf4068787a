//! A backward pass.

use std::{sync::Arc, thread};

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy, grads::Gradients};

use crate::{
    operands::{Arguments, Nodes},
    origins::{Origins, Values},
    progress::Progress,
    tape::{self, AdTensor},
    tensor::ReleaseTensor,
    uses::{self, Completion, Uses},
};

/// Runs backward from `root`. The armed parameters it depends on are acted on underway.
pub(crate) fn backward<B: Backend, C: CheckpointStrategy>(root: ReleaseTensor<B>) -> Gradients {
    let mut arguments = Arguments::new();
    arguments.push(root);
    let (mut operands, raise) = arguments.lower(Nodes::One);
    let root = operands.next().expect("there is a root");
    let origins = raise.into_origins();
    if origins.is_none() || !root.is_tracked() {
        return Autodiff::<B, C>::backward(root);
    }
    let parameters = origins.parameters();
    let watch = Watch::new(&parameters);
    let root = plan(root, &origins, &parameters);
    let mut grads = Autodiff::<B, C>::backward(root);
    for uses in &parameters {
        uses.finish(&mut grads);
    }
    drop(watch);
    grads
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
