//! The leaf hook: an identity between the leaf of a parameter and its consumers. Its backward step
//! runs after those of all consumers that a pass reaches, when the gradient of the parameter is
//! complete.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use burn::backend::DispatchTensor;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;

use super::ladder::rung;
use super::node::{Zeros, guard, node, node_of, register};

/// The owner of a hook, which takes the gradient of a parameter.
pub(crate) trait HookOwner: Send + Sync {
    /// Called when the gradient of `hook` is complete. Returns false to leave the gradient where it
    /// is.
    fn complete(&self, hook: NodeId, grads: &mut Gradients, checkpointer: &Checkpointer) -> bool;
}

pub(crate) const ARMING_HAS_ENDED: &str = "gradient release: this backward pass comes to a \
forward pass of an arming that has ended since, and would lose its gradients; run backward before \
`step` or `disarm` (or before the next micro-batch is armed, or another model), or the forward pass \
again after it";

/// Puts `value` on the tape, over `leaf` and at least one order above `below`.
pub(crate) fn leaf_hook(
    value: DispatchTensor,
    leaf: &DispatchTensor,
    below: usize,
    owner: Weak<dyn HookOwner>,
    has_gone_on: Arc<AtomicBool>,
) -> DispatchTensor {
    let leaf_id = node_of(leaf).expect("a leaf is on the tape");
    let zeros = Zeros::like(&value);
    let parents = [guard(leaf), rung(below, &value)];
    node(value, parents, leaf.autodiff, move |mut reached| {
        assert!(!has_gone_on.load(Ordering::Relaxed), "{ARMING_HAS_ENDED}");
        let hook = reached.id();
        if let Some(owner) = owner.upgrade()
            && owner.complete(hook, reached.grads, reached.checkpointer)
        {
            return;
        }
        // An ordinary gradient goes under the leaf. There must be one, and recomputed scopes may
        // have left none: so zeros are added that change no sum.
        register(reached.grads, hook, zeros.all());
        let grad = reached.grad();
        register(reached.grads, leaf_id, grad);
    })
}
