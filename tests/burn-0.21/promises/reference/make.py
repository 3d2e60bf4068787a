"""Writes weights.csv beside this file: three optimizers of PyTorch, in 64-bit floats.

A line is the name of the optimizer, the step, and the weights after it, layer by layer: the matrix
[inputs, outputs], then the bias. Made with PyTorch 2.15 on the CPU: python make.py
"""

import pathlib

import torch

STEPS = 20
# The middle layer is used twice.
SHAPES = [(3, 3), (3,), (3, 3), (3,), (3, 2), (2,)]


def pattern(seed, shape):
    """Numbers in [-1, 1) that 32-bit floats hold exactly; the test has the same formula."""
    count = torch.Size(shape).numel()
    values = [(37 * place + 11 * seed + place * place) % 64 for place in range(count)]
    return (torch.tensor(values, dtype=torch.float64) / 32 - 1).reshape(shape)


def loss(weights, step):
    w1, b1, w2, b2, w3, b3 = weights
    x = torch.tanh(pattern(100 + step, (4, 3)) @ w1 + b1)
    x = torch.tanh(x @ w2 + b2)
    x = torch.tanh(x @ w2 + b2)
    return ((x @ w3 + b3 - pattern(200 + step, (4, 2))) ** 2).mean()


OPTIMIZERS = {
    "sgd": lambda w: torch.optim.SGD(w, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda w: torch.optim.Adam(w, lr=0.01, betas=(0.9, 0.999), eps=1e-8),
    "adamw": lambda w: torch.optim.AdamW(
        w, lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1
    ),
}

lines = []
for name, make in OPTIMIZERS.items():
    weights = [pattern(seed, shape).requires_grad_() for seed, shape in enumerate(SHAPES)]
    optimizer = make(weights)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(weights, step).backward()
        optimizer.step()
        numbers = torch.cat([weight.detach().flatten() for weight in weights])
        values = ",".join(f"{number:.9f}" for number in numbers.tolist())
        lines.append(f"{name},{step},{values}")
pathlib.Path(__file__).with_name("weights.csv").write_text("\n".join(lines) + "\n")
