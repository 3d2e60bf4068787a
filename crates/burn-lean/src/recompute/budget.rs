//! Scopes that are recomputed only as far as a budget of bytes requires.

use std::sync::{Arc, Mutex, MutexGuard};

use burn::backend::TensorMetadata;
use burn::module::Module;

use super::checkpoint::seeded;
use super::{Mode, checkpoint, mode};
use crate::lock::lock;
use crate::tensors::{MapTensor, Tensors};

/// Keeps the activations of as many scopes as fit into a number of bytes. Backward recomputes the
/// others.
///
/// The first pass recomputes and measures all scopes: the bytes in use after a scope minus those
/// before it. From the second pass on, the smallest scopes are kept, among equals the later ones
/// first. A scope whose input has changed its size is recomputed and measured again.
///
/// ```
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::tensor::{Device, Tensor, activation};
/// # use burn_lean::Budget;
/// # use peak_alloc::PeakAlloc;
/// #[global_allocator]
/// static HEAP: PeakAlloc = PeakAlloc;
///
/// let device = Device::flex().autodiff();
/// let layers: Vec<Linear> = (0..4).map(|_| LinearConfig::new(8, 8).init(&device)).collect();
/// let budget = Budget::new(1 << 20, || HEAP.current_usage() as u64);
/// for _ in 0..2 {
///     let mut pass = budget.pass();
///     let mut hidden = Tensor::<2>::ones([2, 8], &device);
///     for layer in &layers {
///         hidden = pass.checkpoint(layer, hidden, |layer, x| activation::gelu(layer.forward(x)));
///     }
///     hidden.mean().backward();
/// }
/// assert_eq!(budget.planned().unwrap().recomputed, 0);
/// ```
#[derive(Clone)]
pub struct Budget {
    bytes: u64,
    in_use: Arc<dyn Fn() -> u64 + Send + Sync>,
    scopes: Arc<Mutex<Vec<Option<Measured>>>>,
}

impl std::fmt::Debug for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Budget")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// The measurement of a scope.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// Elements of its input.
    input: usize,
    /// Bytes that it keeps for backward.
    kept: u64,
}

/// The plan of a pass of a [`Budget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Bytes of the scopes whose activations are kept.
    pub bytes: u64,
    /// Number of scopes that are recomputed.
    pub recomputed: usize,
}

impl Budget {
    /// Keeps at most `bytes`. `in_use` returns the bytes that are in use right now: from a counting
    /// allocator for the heap, from `device.memory_pool_usage()` for a GPU.
    ///
    /// # Panics
    ///
    /// If `bytes` is zero.
    pub fn new(bytes: u64, in_use: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        assert!(
            bytes > 0,
            "a budget of 0 bytes keeps no activation: `checkpoint` recomputes a scope always"
        );
        Self {
            bytes,
            in_use: Arc::new(in_use),
            scopes: Arc::default(),
        }
    }

    /// Begins a forward pass, in which scopes come in the same order as in the passes before.
    pub fn pass(&self) -> BudgetPass {
        let kept = self.kept();
        BudgetPass {
            budget: self.clone(),
            kept,
            next: 0,
        }
    }

    /// The plan of the next pass. `None` before all scopes of a pass were measured.
    pub fn planned(&self) -> Option<Planned> {
        let kept = self.kept();
        let scopes = self.scopes();
        if scopes.is_empty() || scopes.iter().any(Option::is_none) {
            return None;
        }
        let bytes = scopes.iter().zip(&kept).filter(|(_, kept)| **kept);
        Some(Planned {
            bytes: bytes.filter_map(|(scope, _)| Some((*scope)?.kept)).sum(),
            recomputed: kept.iter().filter(|kept| !**kept).count(),
        })
    }

    fn scopes(&self) -> MutexGuard<'_, Vec<Option<Measured>>> {
        lock(&self.scopes)
    }

    /// Chooses the scopes that fit, the smallest first, so that most fit.
    fn kept(&self) -> Vec<bool> {
        let scopes = self.scopes();
        let mut kept = vec![false; scopes.len()];
        let measured = scopes.iter().enumerate();
        let mut measured: Vec<(usize, u64)> = measured
            .filter_map(|(at, scope)| Some((at, (*scope)?.kept)))
            .collect();
        // A scope that was not measured may have any size.
        if measured.len() < scopes.len() {
            return kept;
        }
        measured.sort_by_key(|(at, bytes)| (*bytes, std::cmp::Reverse(*at)));
        let mut sum = 0;
        for (at, bytes) in measured {
            sum += bytes;
            kept[at] = sum <= self.bytes;
        }
        kept
    }
}

/// One forward pass of a [`Budget`].
#[derive(Debug)]
pub struct BudgetPass {
    budget: Budget,
    kept: Vec<bool>,
    next: usize,
}

impl BudgetPass {
    /// The next scope: [`checkpoint`](crate::checkpoint), or just `forward(module, input)` if its
    /// activations fit.
    ///
    /// # Panics
    ///
    /// The panics of [`checkpoint`](crate::checkpoint).
    pub fn checkpoint<M, I, O, F>(&mut self, module: &M, input: I, forward: F) -> O
    where
        M: Module + Sync + 'static,
        I: Tensors,
        O: Tensors,
        F: Fn(&M, I) -> O + Send + Sync + 'static,
    {
        let at = self.next;
        self.next += 1;
        let elements = elements(&input);
        let is_as_measured = {
            let mut scopes = self.budget.scopes();
            let missing = (at + 1).saturating_sub(scopes.len());
            scopes.extend(std::iter::repeat_n(None, missing));
            scopes[at].is_some_and(|scope| scope.input == elements)
        };
        if is_as_measured && self.kept.get(at).is_some_and(|kept| *kept) {
            // With the numbers that it has where it is recomputed.
            return seeded(module, input, forward);
        }
        let budget = self.budget.clone();
        checkpoint(module, input, move |module, input| {
            if mode() != Mode::Replaying {
                return forward(module, input);
            }
            let before = (budget.in_use)();
            let output = forward(module, input);
            let kept = (budget.in_use)().saturating_sub(before);
            budget.scopes()[at] = Some(Measured {
                input: elements,
                kept,
            });
            output
        })
    }
}

fn elements(input: &impl Tensors) -> usize {
    let mut elements = 0;
    input.clone().map(&mut MapTensor(&mut |tensor| {
        elements += tensor.shape().num_elements();
        tensor
    }));
    elements
}
