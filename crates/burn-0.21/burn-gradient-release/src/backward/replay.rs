//! Puts the recorded operations of a segment on the tape.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    mem,
    sync::{Arc, Mutex},
};

use burn::tensor::backend::Backend;
use burn_autodiff::grads::Gradients;

use crate::{
    lower::operands::Arguments,
    lower::raise::Nodes,
    subgraph::order::{Consumer, Played, Target, Use},
    subgraph::{Apart, Contribution, Inputs, Origins, Recording, Seeds, Subgraph},
    tape::{self, AdTensor},
    tensor::record::{Node, Operand, Output, Outside, Results},
    tensor::{ReleaseTensor, Repr},
    util::lock::lock,
};

impl<B: Backend> Recording<B> for Results<B> {
    fn learn(&self, is_last: bool) {
        let outputs = self.outputs();
        if let Some(tracer) = outputs.first().and_then(|(_, output)| output.tracer()) {
            tracer.learn(is_last);
        }
    }

    fn inputs(&self) -> Inputs<B> {
        let mut inputs = Inputs::<B>::default();
        let outputs = self.outputs();
        // Replayed for another loss, or computed from results of such operations.
        let mut spent = HashSet::new();
        for node in nodes(outputs.iter().map(|(_, output)| output.clone())) {
            let is_spent = |operand: &Operand<B>| match operand {
                Operand::Inside(output) => spent.contains(&output.node.sequence),
                Operand::Outside(_) => false,
            };
            let is_whole = node.with_operands(|operands| !operands.iter().any(is_spent));
            let Some(edge) = node.edge().filter(|_| is_whole == Some(true)) else {
                spent.insert(node.sequence);
                continue;
            };
            inputs.edges.push(edge);
            node.with_operands(|operands| {
                for operand in operands {
                    match operand {
                        Operand::Outside(Outside::Plain(tensor, origins)) => {
                            inputs.origins.push(origins.clone());
                            let bytes = tape::bytes::<B>(&tensor.primitive);
                            inputs.kept.push((Some(tensor.node.id), bytes));
                        }
                        Operand::Outside(Outside::Parameter(snapshot, _)) => {
                            inputs.parameters.push(snapshot.site.consumers.clone());
                        }
                        Operand::Outside(Outside::Mask(mask, _)) => {
                            inputs.kept.push((None, mask.bytes()));
                        }
                        Operand::Inside(_) => {}
                    }
                }
            });
        }
        let results = outputs.into_iter();
        inputs.results = results
            .map(|(leaf, output)| (leaf, output.target()))
            .collect();
        inputs
    }

    fn replay(
        &self,
        subgraph: &Arc<Subgraph<B>>,
        grads: &mut Gradients,
        played: &Played,
        mut apart: Apart<B>,
    ) -> Option<Seeds<B>> {
        let outputs = self.outputs().into_iter();
        let mut outputs: Vec<_> = outputs
            .filter(|(leaf, output)| {
                grads.get::<B>(leaf).is_some() || apart.contains_key(&output.target())
            })
            .collect();
        // Burn reaches the last parent first.
        outputs.sort_by_key(|(_, output)| {
            Reverse(played.reached(Consumer::Replayable(output.node.sequence)))
        });
        let with_own = apart.iter().filter(|(_, parts)| parts.iter().any(is_own));
        let gathered = with_own.map(|(target, _)| (*target, Gathering::default()));
        let mut replay = Replay {
            outputs: outputs.iter().map(|(_, output)| output).collect(),
            subgraph,
            played,
            gathered: gathered.collect(),
            tensors: HashMap::new(),
            wanted: HashMap::new(),
        };
        let results = replay.run();
        let mut arguments = Arguments::new();
        let mut gradients = Vec::new();
        let mut gathered = mem::take(&mut replay.gathered);
        drop(replay);
        for ((leaf, output), result) in outputs.into_iter().zip(results) {
            let is_tracked = match &result.0 {
                Repr::Plain(tensor, _) => tensor.is_tracked(),
                _ => true,
            };
            let gradient = grads.remove::<B>(&leaf);
            if is_tracked {
                gradients.push((gradient, output.target()));
                arguments.push(result);
            }
        }
        let (operands, raise) = arguments.lower(Nodes::Several);
        let mut tensors = Vec::new();
        for (tensor, (gradient, target)) in operands.zip(gradients) {
            let gathering = gathered.remove(&target);
            if let Some((seed, parts)) = gathering.and_then(|gathering| gathering.node) {
                *lock(&parts) = apart.remove(&target).unwrap_or_default();
                tensors.push(seed);
                continue;
            }
            let arrived = apart.remove(&target).unwrap_or_default().into_iter();
            let arrived = arrived.filter_map(|contribution| match contribution {
                Contribution::Arrived(gradient) => Some(gradient),
                Contribution::Own(_) => None,
            });
            for gradient in gradient.into_iter().chain(arrived) {
                grads.register::<B>(tensor.node.id, gradient);
            }
            let placeholder = tape::placeholder::<B>(&tensor.primitive);
            let order = tensor.node.order;
            tensors.push(tape::handle::<B>(&tensor, placeholder, order));
        }
        // Sums whose consumers are all inside the segment.
        for (target, gathering) in gathered {
            if let Some((_, parts)) = gathering.node {
                *lock(&parts) = apart.remove(&target).unwrap_or_default();
            }
        }
        let origins = raise.into_origins();
        (!tensors.is_empty()).then_some(Seeds {
            tensors,
            origins,
            late: Vec::new(),
        })
    }
}

fn is_own<B: Backend>(contribution: &Contribution<B>) -> bool {
    matches!(contribution, Contribution::Own(_))
}

/// Contributions that a node adds up, once they are known.
type Parts<B> = Arc<Mutex<Vec<Contribution<B>>>>;

/// The contributions to one gradient, which are added up in a fixed order right before its node
/// runs.
#[derive(Default)]
struct Gathering<B: Backend> {
    /// The node that adds them up, and its contributions; `None` until the tensor is used.
    node: Option<(AdTensor<B>, Parts<B>)>,
    /// The nodes under which the segment's own contributions arrive.
    own: Arc<Mutex<HashMap<Use, AdTensor<B>>>>,
}

impl<B: Backend> Gathering<B> {
    /// The tensor for one use, under a node of its own.
    fn tensor(&mut self, tensor: AdTensor<B>, of: Use) -> AdTensor<B> {
        let order = tensor.node.order;
        let placeholder = tape::placeholder::<B>(&tensor.primitive);
        let (node, _) = self.node.get_or_insert_with(|| {
            let parts = Parts::<B>::default();
            let target = tape::key(&tensor, placeholder.clone());
            // Has the order of the tensor's own node, which is reached from this one alone, so it
            // runs right before it.
            let node = tape::hook(vec![tensor.clone()], order, placeholder.clone(), {
                let (parts, own) = (parts.clone(), self.own.clone());
                move |_, grads| {
                    for part in lock(&parts).drain(..) {
                        let gradient = match part {
                            Contribution::Arrived(gradient) => Some(gradient),
                            Contribution::Own(of) => {
                                let own = lock(&own).remove(&of);
                                own.and_then(|own| grads.remove::<B>(&own))
                            }
                        };
                        if let Some(gradient) = gradient {
                            grads.register::<B>(target.node.id, gradient);
                        }
                    }
                }
            });
            (node, parts)
        });
        let single = tape::hook(vec![node.clone()], order, placeholder.clone(), |_, _| {});
        lock(&self.own).insert(of, tape::key(&single, placeholder));
        tape::handle::<B>(&single, tensor.primitive, order)
    }
}

/// The operations that results depend on, operands first.
fn nodes<B: Backend>(outputs: impl Iterator<Item = Output<B>>) -> Vec<Arc<Node<B>>> {
    let mut seen = HashSet::new();
    let mut nodes = Vec::new();
    let mut stack: Vec<_> = outputs.map(|output| output.node).collect();
    while let Some(node) = stack.pop() {
        if !seen.insert(node.sequence) {
            continue;
        }
        node.with_operands(|operands| {
            let inside = operands.iter().filter_map(|operand| match operand {
                Operand::Inside(output) => Some(output.node.clone()),
                Operand::Outside(_) => None,
            });
            stack.extend(inside);
        });
        nodes.push(node);
    }
    nodes.sort_by_key(|node| node.sequence);
    nodes
}

/// Runs the operations that some results depend on again, on the tape of a subgraph.
struct Replay<'a, B: Backend> {
    outputs: Vec<&'a Output<B>>,
    subgraph: &'a Arc<Subgraph<B>>,
    played: &'a Played,
    gathered: HashMap<Target, Gathering<B>>,
    /// Tensors held until their last use, and their number of remaining uses.
    tensors: HashMap<(u64, usize), ReleaseTensor<B>>,
    wanted: HashMap<(u64, usize), usize>,
}

impl<B: Backend> Replay<'_, B> {
    fn run(&mut self) -> Vec<ReleaseTensor<B>> {
        let nodes = nodes(self.outputs.iter().copied().cloned());
        let outputs = mem::take(&mut self.outputs);
        outputs.iter().for_each(|output| self.want(output));
        for node in &nodes {
            node.with_operands(|operands| {
                for operand in operands {
                    if let Operand::Inside(output) = operand {
                        self.want(output);
                    }
                }
            });
        }
        for node in nodes {
            let mut arguments = Arguments::new();
            let operands = node.take_operands();
            let operands = operands.expect("it was checked that nobody has replayed it");
            for (place, operand) in operands.into_iter().enumerate() {
                let of = (Consumer::Replayable(node.sequence), place);
                arguments.push(self.operand(operand, of));
            }
            let is_apart = self
                .gathered
                .contains_key(&Target::Replayable(node.sequence, 0));
            let results = arguments.replay(&node.operation, is_apart);
            for (index, result) in results.into_iter().enumerate() {
                let key = (node.sequence, index);
                if self.wanted.contains_key(&key) {
                    self.tensors.insert(key, result);
                }
            }
        }
        outputs
            .into_iter()
            .map(|output| self.take(output))
            .collect()
    }

    fn operand(&mut self, operand: Operand<B>, of: Use) -> ReleaseTensor<B> {
        let target = operand.target();
        match operand {
            Operand::Inside(output) => {
                let tensor = self.take(&output);
                let gathering = target.and_then(|target| self.gathered.get_mut(&target));
                match (gathering, tensor.0) {
                    // An operation may return its operand: nothing gathers for a leaf.
                    (Some(gathering), Repr::Plain(tensor, origins))
                        if tensor.is_tracked() && tensor.node.order > 0 =>
                    {
                        let tensor = gathering.tensor(tensor, of);
                        ReleaseTensor(Repr::Plain(tensor, origins))
                    }
                    (_, tensor) => ReleaseTensor(tensor),
                }
            }
            Operand::Outside(outside) => {
                let tensor = match outside {
                    Outside::Plain(tensor, origins) => Repr::Plain(tensor, origins),
                    Outside::Parameter(snapshot, noted) => {
                        drop(noted);
                        Repr::Snapshot(snapshot)
                    }
                    Outside::Mask(..) => Repr::Plain(outside.value(), Origins::none()),
                };
                let is_apart = target.is_some_and(|target| self.played.is_apart(target));
                ReleaseTensor(tensor).enter(self.subgraph, is_apart.then_some(of))
            }
        }
    }

    fn want(&mut self, output: &Output<B>) {
        *self.wanted.entry(output.key()).or_default() += 1;
    }

    fn take(&mut self, output: &Output<B>) -> ReleaseTensor<B> {
        let wanted = self.wanted.get_mut(&output.key()).expect("it was counted");
        *wanted -= 1;
        let tensor = match *wanted {
            0 => self.tensors.remove(&output.key()),
            _ => self.tensors.get(&output.key()).cloned(),
        };
        tensor.expect("operands are replayed first")
    }
}
