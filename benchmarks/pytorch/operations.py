"""Milliseconds of PyTorch's operations, forward and backward, for `examples/operations.rs`.

    python3 operations.py THREADS ROUNDS
"""

import statistics
import sys
import time

import torch
from torch.nn import functional as F

THREADS, ROUNDS = int(sys.argv[1]), int(sys.argv[2])


def random(*shape):
    return torch.randn(*shape, requires_grad=True)


def attention(query, key, value):
    return F.scaled_dot_product_attention(query, key, value)


def head(hidden, weight, targets):
    return F.cross_entropy(hidden @ weight, targets)


def swiglu(x, gate, up):
    return F.silu(x @ gate) * (x @ up)


tokens, width, hidden = (8, 197), 384, 1536
x = random(*tokens, width)
norm = (random(width), random(width))
heads = [random(8, 6, 197, 64) for _ in range(3)]
targets = torch.arange(1024) % 32000
OPERATIONS = {
    "linear": (F.linear, x, random(hidden, width), random(hidden)),
    "gelu": (F.gelu, random(*tokens, hidden)),
    "swiglu": (swiglu, x, random(width, hidden), random(width, hidden)),
    "layer_norm": (lambda x, g, b: F.layer_norm(x, (width,), g, b), x, *norm),
    "rms_norm": (lambda x, g: F.rms_norm(x, (width,), g), x, norm[0]),
    "softmax": (lambda x: F.softmax(x, -1), random(8, 6, 197, 197)),
    "attention": (attention, *heads),
    "head and loss": (head, random(1024, width), random(width, 32000), targets),
}


def milliseconds(operation, *inputs):
    def step():
        start = time.perf_counter()
        operation(*inputs).sum().backward()
        for tensor in inputs:
            tensor.grad = None
        return time.perf_counter() - start

    step()
    return statistics.median(step() for _ in range(ROUNDS)) * 1e3


torch.set_num_threads(THREADS)
for name, (operation, *inputs) in OPERATIONS.items():
    print(f"{name}: {milliseconds(operation, *inputs):.3f}")
