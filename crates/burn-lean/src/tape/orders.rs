//! The orders that hooks may have without a change of plain Burn's tape.
//!
//! A consumer's order is one more than the highest of its parents. So a hook no higher than the
//! activation it meets changes no order: every sum of gradients adds up as in plain Burn. That
//! order is known after a backward pass, from the nodes that it has reached and their parents.
//! Burn's checkpointer holds these, and shows them only as text. [`Reached`] returns `None` for a
//! text that it does not understand.

use std::collections::{HashMap, HashSet};

use burn::backend::autodiff::checkpoint::base::Checkpointer;

/// The nodes that a backward pass reaches.
#[derive(Debug)]
pub(crate) struct Reached {
    /// Each node with its parents that need gradients, in the order in which they were made.
    nodes: Vec<(u64, Vec<u64>)>,
}

impl Reached {
    /// Reads the text of a checkpointer. `None` if its form is unknown, as in another version of
    /// Burn.
    pub(crate) fn read(checkpointer: &Checkpointer) -> Option<Self> {
        Self::parse(&format!("{checkpointer:?}"))
    }

    /// `.. NodeTree { map: {NodeId { value: 3 }: [NodeId { value: 1 }, ..], ..} } }`
    fn parse(text: &str) -> Option<Self> {
        const ID: &str = "NodeId { value: ";
        let (_, text) = text.rsplit_once("NodeTree { map: {")?;
        let mut nodes = Vec::new();
        for entry in text.split(']') {
            let Some((node, parents)) = entry.split_once(": [") else {
                continue;
            };
            let ids = |text: &str| {
                text.split(ID)
                    .skip(1)
                    .map(|id| id.split(' ').next()?.parse().ok())
                    .collect::<Option<Vec<u64>>>()
            };
            let node = *ids(node)?.first()?;
            nodes.push((node, ids(parents)?));
        }
        // A node is made after its parents, and takes the next id.
        nodes.sort_unstable();
        Some(Self { nodes })
    }

    /// The highest order of each of these hooks at which the tape is plain Burn's. At least 1,
    /// which is the lowest that a hook can have.
    pub(crate) fn allowed(&self, hooks: &HashSet<u64>) -> HashMap<u64, usize> {
        // Plain Burn's orders: a hook stands for its leaf. Parents that need no gradient are not
        // known; they would only make an order higher.
        let mut orders: HashMap<u64, usize> = HashMap::with_capacity(self.nodes.len());
        // Hooks, and nodes without another parent, such as `weight.transpose()`. Such a node may be
        // higher than in plain Burn if it meets an activation that is as high.
        let mut chains: HashSet<u64> = HashSet::new();
        let mut consumers: HashMap<u64, Vec<usize>> = HashMap::new();
        for (at, (node, parents)) in self.nodes.iter().enumerate() {
            if hooks.contains(node) {
                orders.insert(*node, 0);
                chains.insert(*node);
                continue;
            }
            let above = |parent| orders.get(parent).copied().unwrap_or(0) + 1;
            orders.insert(*node, parents.iter().map(above).max().unwrap_or(0));
            if let [first, rest @ ..] = &parents[..]
                && chains.contains(first)
                && rest.iter().all(|parent| parent == first)
            {
                chains.insert(*node);
            }
            for parent in parents.iter().filter(|parent| chains.contains(parent)) {
                consumers.entry(*parent).or_default().push(at);
            }
        }

        let mut allowed: HashMap<u64, usize> = HashMap::new();
        // From the last node to the first: consumers come after their parents.
        for (node, _) in self.nodes.iter().rev() {
            if !chains.contains(node) {
                continue;
            }
            let uses = consumers.get(node).map_or(&[][..], Vec::as_slice);
            let lowest = uses.iter().map(|at| {
                let (consumer, parents) = &self.nodes[*at];
                if chains.contains(consumer) {
                    return allowed[consumer].saturating_sub(1);
                }
                // A leaf that an earlier pass has reached is not among the nodes.
                let others = parents.iter().filter(|parent| *parent != node);
                others
                    .filter_map(|parent| orders.get(parent).copied())
                    .max()
                    .unwrap_or(0)
            });
            // The order of two summands does not matter. Among more, chains would move between
            // direct uses.
            let mut in_chains = uses
                .iter()
                .filter(|at| chains.contains(&self.nodes[**at].0));
            let moves_a_sum = uses.len() > 2 && in_chains.next().is_some();
            let lowest = if moves_a_sum { None } else { lowest.min() };
            allowed.insert(*node, lowest.unwrap_or(0).max(orders[node]));
        }
        hooks
            .iter()
            .filter_map(|hook| Some((*hook, (*allowed.get(hook)?).max(1))))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(nodes: &[(u64, &[u64])], hooks: &[u64]) -> Vec<usize> {
        let entries: Vec<String> = nodes
            .iter()
            .map(|(node, parents)| {
                let parents: Vec<String> = parents
                    .iter()
                    .map(|parent| format!("NodeId {{ value: {parent} }}"))
                    .collect();
                format!("NodeId {{ value: {node} }}: [{}]", parents.join(", "))
            })
            .collect();
        let map = entries.join(", ");
        let text = format!(
            "Checkpointer {{ a: B {{ map: {{}} }}, node_tree: NodeTree {{ map: {{{map}}} }} }}"
        );
        let allowed = Reached::parse(&text)
            .unwrap()
            .allowed(&hooks.iter().copied().collect());
        hooks.iter().map(|hook| allowed[hook]).collect()
    }

    #[test]
    fn a_hook_may_be_as_high_as_the_activation_it_meets() {
        // Two layers on data: hooks 3 and 6 over leaves 1 and 2; 4 is the first product, 5 its
        // activation.
        let nodes: &[(u64, &[u64])] = &[
            (1, &[]),
            (2, &[]),
            (3, &[1]),
            (4, &[3]),
            (5, &[4]),
            (6, &[2]),
            (7, &[5, 6]),
            (8, &[7]),
        ];
        assert_eq!(allowed(nodes, &[3, 6]), [1, 2]);
    }

    #[test]
    fn a_view_of_a_weight_is_lifted_with_its_hook() {
        // LeafHook 12 over leaf 2, transposed by 13, meets the activation 7 of order 4; hook 3 is
        // over leaf 1.
        let nodes: &[(u64, &[u64])] = &[
            (1, &[]),
            (2, &[]),
            (3, &[1]),
            (4, &[3]),
            (5, &[4]),
            (6, &[5]),
            (7, &[6]),
            (12, &[2]),
            (13, &[12]),
            (14, &[7, 13]),
        ];
        assert_eq!(allowed(nodes, &[3, 12]), [1, 3]);
    }

    #[test]
    fn of_three_uses_no_view_is_lifted() {
        let nodes: &[(u64, &[u64])] = &[
            (1, &[]),
            (2, &[]),
            (3, &[1]),
            (4, &[3]),
            (5, &[4]),
            (6, &[5]),
            (12, &[2]),
            (13, &[12]),
            (14, &[6, 13]),
            (15, &[14, 12]),
            (16, &[15, 12]),
        ];
        assert_eq!(allowed(nodes, &[12]), [1]);
    }

    #[test]
    fn another_text_is_not_understood() {
        assert!(Reached::parse("Checkpointer { nodes: [] }").is_none());
        assert!(Reached::parse("NodeTree { map: {NodeId { value: x }: [} }").is_none());
    }
}
