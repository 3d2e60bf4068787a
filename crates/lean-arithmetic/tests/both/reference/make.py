"""Writes weights.csv beside this file: optimizers of other packages, in 64-bit floats.

A line is the name, the step, and the weights after it: the matrix, the vector, then the tensor of three dimensions.
Made with PyTorch 2.15, torch-optimi 0.3.3, transformers 5.23 and pytorch_optimizer 4.1 on the CPU: python make.py
"""

import pathlib

import optimi
import pytorch_optimizer
import torch
from transformers.optimization import Adafactor

STEPS = 30
SHAPES = [(7, 5), (5,), (2, 3, 4)]


def pattern(seed, shape):
    """Numbers in [-1, 1) that 32-bit floats hold exactly; the test has the same formula."""
    count = torch.Size(shape).numel()
    values = [(37 * place + 11 * seed + place * place * (seed % 5 + 1)) % 64 for place in range(count)]
    return (torch.tensor(values, dtype=torch.float64) / 32 - 1).reshape(shape)


OPTIMIZERS = {
    "lion": lambda w: optimi.Lion(w, lr=0.01, betas=(0.9, 0.99), weight_decay=0.1, foreach=False, triton=False),
    "radam": lambda w: torch.optim.RAdam(
        w, lr=0.01, betas=(0.9, 0.99), weight_decay=0.1, decoupled_weight_decay=True
    ),
    "stable_adamw": lambda w: optimi.StableAdamW(w, lr=0.01, weight_decay=0.1, foreach=False, triton=False),
    "adamw_decoupled": lambda w: optimi.AdamW(
        w, lr=0.01, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.01, decouple_lr=True, max_lr=0.02,
        foreach=False, triton=False,
    ),
    "adafactor": lambda w: Adafactor(w, lr=0.01, relative_step=False, weight_decay=0.1),
    "adafactor_momentum": lambda w: Adafactor(
        w, lr=0.01, relative_step=False, scale_parameter=False, beta1=0.9
    ),
    "came": lambda w: pytorch_optimizer.CAME(w, lr=0.01, weight_decay=0.1, weight_decouple=True, foreach=False),
}

MICRO_BATCHES = 3


class AdamA:
    """AdamW by the rule of AdamA, from its paper (arXiv 2305.19982, algorithm 2), with a decoupled weight decay."""

    gradients = 0

    def __init__(self, weights, lr, betas, eps, weight_decay):
        self.weights, self.lr, self.betas, self.eps, self.weight_decay = weights, lr, betas, eps, weight_decay
        self.moments = [(torch.zeros_like(weight), torch.zeros_like(weight)) for weight in weights]

    @torch.no_grad()
    def step(self):
        is_first = self.gradients % MICRO_BATCHES == 0
        self.gradients += 1
        for weight, (first, second) in zip(self.weights, self.moments):
            for moment, beta, term in zip((first, second), self.betas, (weight.grad, weight.grad**2)):
                if is_first:
                    moment *= beta
                moment += (1 - beta) * term
            if self.gradients % MICRO_BATCHES == 0:
                time = self.gradients // MICRO_BATCHES
                first, second = (moment / (1 - beta**time) for moment, beta in zip((first, second), self.betas))
                weight *= 1 - self.lr * self.weight_decay
                weight -= self.lr * first / (second.sqrt() + self.eps)


class OptimizerAccumulation:
    """An optimizer of optimi that puts the gradients of micro-batches into its moments."""

    gradients = 0

    def __init__(self, kind, weights, **options):
        self.weights = weights
        self.optimizer = kind(weights, foreach=False, triton=False, gradient_release=True, **options)

    def step(self):
        self.gradients += 1
        self.optimizer.optimizer_accumulation = self.gradients % MICRO_BATCHES != 0
        for weight in self.weights:
            self.optimizer.step(param=weight)


OPTIMIZERS |= {
    "adama": lambda w: AdamA(w, lr=0.01, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1),
    "accumulating_adam": lambda w: OptimizerAccumulation(
        optimi.Adam, w, lr=0.01, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1
    ),
    "accumulating_adamw": lambda w: OptimizerAccumulation(
        optimi.AdamW, w, lr=0.01, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1
    ),
    "accumulating_stable_adamw": lambda w: OptimizerAccumulation(
        optimi.StableAdamW, w, lr=0.01, weight_decay=0.1
    ),
    "accumulating_lion": lambda w: OptimizerAccumulation(
        optimi.Lion, w, lr=0.01, betas=(0.9, 0.99), weight_decay=0.1
    ),
    "accumulating_sgd": lambda w: OptimizerAccumulation(optimi.SGD, w, lr=0.01, momentum=0.9),
}

lines = []
for name, make in OPTIMIZERS.items():
    weights = [pattern(seed, shape).requires_grad_() for seed, shape in enumerate(SHAPES)]
    optimizer = make(weights)
    for step in range(STEPS):
        for place, weight in enumerate(weights):
            # Every seventh gradient is a spike.
            scale = 8.0 if step % 7 == 6 else 0.25
            weight.grad = pattern(10 + 3 * step + place, weight.shape) * scale
        optimizer.step()
        numbers = torch.cat([weight.detach().flatten() for weight in weights])
        values = ",".join(f"{number:.8f}" for number in numbers.tolist())
        lines.append(f"{name},{step},{values}")
pathlib.Path(__file__).with_name("weights.csv").write_text("\n".join(lines) + "\n")
