//! Puts the recorded operations of a slice on the tape.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use burn::tensor::backend::Backend;
use burn_autodiff::grads::Gradients;

use super::record::{Node, Operand, Output, Outside, Results};
use crate::{
    operands::{Arguments, Nodes},
    origins::{Inputs, Recording, Region, Seeds, Spent},
    tape,
    tensor::{ReleaseTensor, Repr},
};

impl<B: Backend> Recording<B> for Results<B> {
    fn inputs(&self) -> Result<Inputs<B>, Spent> {
        let mut inputs = Inputs {
            origins: Vec::new(),
            parameters: Vec::new(),
        };
        let outputs = self.outputs().into_iter().map(|(_, output)| output);
        for node in nodes(outputs)? {
            let known = node.with_operands(|operands| {
                for operand in operands {
                    let Operand::Outside(outside) = operand else {
                        continue;
                    };
                    let origins = match outside {
                        Outside::Plain(_, origins) => origins,
                        Outside::Parameter(snapshot, _) => {
                            inputs.parameters.push(snapshot.site.uses.clone());
                            continue;
                        }
                        Outside::Derived(derived) => derived.origins(),
                    };
                    inputs.origins.push(origins.clone());
                }
            });
            known.ok_or(Spent)?;
        }
        Ok(inputs)
    }

    fn replay(&self, region: &Arc<Region<B>>, grads: &mut Gradients) -> Option<Seeds<B>> {
        let outputs = self.outputs().into_iter();
        let outputs: Vec<_> = outputs
            .filter(|(leaf, _)| grads.get::<B>(leaf).is_some())
            .collect();
        let results = replay(outputs.iter().map(|(_, output)| output), region);
        let mut arguments = Arguments::new();
        let mut leaves = Vec::new();
        for ((leaf, _), result) in outputs.into_iter().zip(results) {
            let is_tracked = match &result.0 {
                Repr::Plain(tensor, _) => tensor.is_tracked(),
                _ => true,
            };
            let gradient = grads.remove::<B>(&leaf);
            if is_tracked {
                leaves.push(gradient);
                arguments.push(result);
            }
        }
        let (operands, raise) = arguments.lower(Nodes::Several);
        let tensors: Vec<_> = operands
            .zip(leaves)
            .map(|(tensor, gradient)| {
                let gradient = gradient.expect("those without were left out");
                grads.register::<B>(tensor.node.id, gradient);
                let placeholder = tape::placeholder::<B>(&tensor.primitive);
                let order = tensor.node.order;
                tape::handle::<B>(&tensor, placeholder, order)
            })
            .collect();
        let origins = raise.into_origins();
        (!tensors.is_empty()).then_some(Seeds { tensors, origins })
    }
}

/// The operations that results depend on, operands first.
fn nodes<B: Backend>(outputs: impl Iterator<Item = Output<B>>) -> Result<Vec<Arc<Node<B>>>, Spent> {
    let mut seen = HashSet::new();
    let mut nodes = Vec::new();
    let mut stack: Vec<_> = outputs.map(|output| output.node).collect();
    while let Some(node) = stack.pop() {
        if !seen.insert(node.sequence) {
            continue;
        }
        let known = node.with_operands(|operands| {
            let inside = operands.iter().filter_map(|operand| match operand {
                Operand::Inside(output) => Some(output.node.clone()),
                Operand::Outside(_) => None,
            });
            stack.extend(inside);
        });
        known.ok_or(Spent)?;
        nodes.push(node);
    }
    nodes.sort_by_key(|node| node.sequence);
    Ok(nodes)
}

/// Values that are there until their last use.
struct Replayed<B: Backend> {
    tensors: HashMap<(u64, usize), ReleaseTensor<B>>,
    wanted: HashMap<(u64, usize), usize>,
}

impl<B: Backend> Replayed<B> {
    fn want(&mut self, output: &Output<B>) {
        *self.wanted.entry(output.key()).or_default() += 1;
    }

    fn insert(&mut self, key: (u64, usize), tensor: ReleaseTensor<B>) {
        if self.wanted.contains_key(&key) {
            self.tensors.insert(key, tensor);
        }
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

/// Runs the operations that `outputs` depend on again, on the tape, in a region.
fn replay<'a, B: Backend>(
    outputs: impl Iterator<Item = &'a Output<B>> + Clone,
    region: &Arc<Region<B>>,
) -> Vec<ReleaseTensor<B>> {
    const SPENT: &str = "it was checked that nobody has replayed it";

    let nodes = nodes(outputs.clone().cloned()).expect(SPENT);
    let mut replayed = Replayed {
        tensors: HashMap::new(),
        wanted: HashMap::new(),
    };
    outputs.clone().for_each(|output| replayed.want(output));
    for node in &nodes {
        node.with_operands(|operands| {
            for operand in operands {
                if let Operand::Inside(output) = operand {
                    replayed.want(output);
                }
            }
        });
    }
    for node in nodes {
        let mut arguments = Arguments::new();
        for operand in node.take_operands().expect(SPENT) {
            arguments.push(match operand {
                Operand::Inside(output) => replayed.take(&output),
                Operand::Outside(outside) => {
                    let tensor = match outside {
                        Outside::Plain(tensor, origins) => Repr::Plain(tensor, origins),
                        Outside::Parameter(snapshot, _) => Repr::Snapshot(snapshot),
                        Outside::Derived(derived) => Repr::Derived(derived),
                    };
                    ReleaseTensor(tensor).enter(region)
                }
            });
        }
        let results = arguments.replay(&node.operation);
        for (index, result) in results.into_iter().enumerate() {
            replayed.insert((node.sequence, index), result);
        }
    }
    outputs.map(|output| replayed.take(output)).collect()
}
