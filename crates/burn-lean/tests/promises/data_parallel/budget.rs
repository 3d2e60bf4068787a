//! Replicas of which each computes other scopes again, as its own memory allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::tensor::activation;
use burn_lean::{BudgetPass, Threads};

use super::reference::{mean, parallel, share};
use crate::harness::prelude::*;

const SIZE: usize = 3;
const STEPS: usize = 6;

/// Two branches that meet: which of them backward runs first is up to the tape.
#[derive(Module, Debug)]
struct Block {
    one: Linear,
    other: Linear,
    gate: Linear,
}

impl Block {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let gate = activation::sigmoid(self.gate.forward(x.clone()));
        let one = gelu(self.one.forward(x.clone()));
        x.clone() + self.other.forward(one + x) * gate
    }
}

#[derive(Module, Debug)]
struct Net {
    blocks: Vec<Block>,
    head: Linear,
}

impl Net {
    fn new() -> Self {
        let device = flex();
        let linear = || LinearConfig::new(6, 6).init(&device);
        let block = || Block {
            one: linear(),
            other: linear(),
            gate: linear(),
        };
        numbered(Self {
            blocks: (0..4).map(|_| block()).collect(),
            head: linear(),
        })
    }

    /// Without a pass of a budget, the same by plain calls.
    fn loss(&self, batch: usize, mut pass: Option<BudgetPass>) -> Tensor<1> {
        let mut x = numbers([4, 6], batch, &flex());
        for block in &self.blocks {
            x = match &mut pass {
                Some(pass) => pass.checkpoint(block, x, Block::forward),
                None => block.forward(x),
            };
        }
        self.head.forward(x).square().mean()
    }
}

/// A budget in which a scope keeps one byte, whatever the other threads have in use.
fn budget(scopes: u64) -> Budget {
    let in_use = AtomicU64::new(0);
    Budget::new(scopes, move || in_use.fetch_add(1, Ordering::Relaxed))
}

#[test]
fn each_replica_within_its_own_budget() {
    let mut optim = adamw();
    let mut model = Net::new();
    let expected: Vec<_> = (0..STEPS)
        .map(|step| {
            let ranks = (0..SIZE).map(|rank| {
                let loss = model.loss(share(step, rank, SIZE), None);
                GradientsParams::from_grads(loss.backward(), &model)
            });
            let grads = mean(&model, ranks.collect());
            model = optim.step(LR, model.clone(), grads);
            bits(&model)
        })
        .collect();
    for is_sharded in [false, true] {
        let recomputed = Threads::run(SIZE, |replicas| {
            let rank = replicas.rank();
            let parallel = parallel(replicas, is_sharded);
            let mut model = parallel.broadcast(Net::new()).unwrap();
            let optim = adamw().with_gradient_release();
            let mut optim = optim.with_reduction(Arc::new(parallel));
            // All but the last scope, all but two, one.
            let budget = budget(3 - rank as u64);
            for (step, expected) in expected.iter().enumerate() {
                let loss = model.loss(share(step, rank, SIZE), Some(budget.pass()));
                model = optim.backward(LR, loss, model);
                let what = format!("step {step}, rank {rank}");
                assert_bits(&bits(&model), expected, &what);
            }
            budget.planned().unwrap().recomputed
        });
        assert_eq!(recomputed, [1, 2, 3]);
    }
}
