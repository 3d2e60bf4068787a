"""What PyTorch's operations keep for the backward pass, beyond their inputs and their output: the
column "PyTorch holds" of docs/measurements.md.

    python3 kept.py
"""

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

ROWS, WIDTH = 1024, 1024
HIDDEN = 4 * WIDTH
MIB = 1 << 20


def kept(operation, *inputs):
    """Bytes of the storages that autograd saves and that are neither an input's nor the output's."""
    saved = {}

    def pack(tensor):
        # Held, so that no other storage gets its address.
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = operation(*inputs)
    known = {tensor.untyped_storage().data_ptr() for tensor in (*inputs, output)}
    return sum(storage.nbytes() for address, storage in saved.items() if address not in known)


def random(*shape):
    return torch.randn(*shape, requires_grad=True)


def main():
    torch.manual_seed(1)
    x, gamma, beta = random(ROWS, WIDTH), random(WIDTH), random(WIDTH)
    unit = x.untyped_storage().nbytes()
    operations = {
        "layer_norm": (lambda x, g, b: F.layer_norm(x, (WIDTH,), g, b), x, gamma, beta),
        "rms_norm": (lambda x, g: F.rms_norm(x, (WIDTH,), g), x, gamma),
        "group_norm": (lambda x, g, b: F.group_norm(x, 8, g, b), x, gamma, beta),
        "gelu": (F.gelu, x),
        "silu": (F.silu, x),
        "swiglu": (lambda gate, up: F.silu(gate) * up, x, random(ROWS, WIDTH)),
        "softmax": (lambda x: F.softmax(x, 1), x),
        "dropout": (lambda x: F.dropout(x, 0.1), x),
        "linear": (F.linear, x, random(WIDTH, WIDTH), beta),
    }
    for name, (operation, *inputs) in operations.items():
        print(f"{name}: {kept(operation, *inputs) / unit:.2f}")

    hidden = random(ROWS, HIDDEN)
    feed_forward = kept(lambda x, w: F.linear(F.gelu(x), w), hidden, random(WIDTH, HIDDEN))
    print(f"gelu and linear: {feed_forward / unit:.2f}, hidden layer {HIDDEN // WIDTH}")

    heads = [random(4, 4, 512, 32) for _ in range(3)]
    for drop in (0.0, 0.1):
        attention = kept(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=drop), *heads
        )
        print(f"attention, dropout {drop}: {attention / MIB:.1f} MiB")

    hidden, weight = random(2000, 256), random(8000, 256)
    targets = torch.randint(8000, (2000,))
    loss = kept(lambda h, w: F.cross_entropy(F.linear(h, w), targets), hidden, weight)
    print(f"head and loss: {loss / MIB:.1f} MiB")


if __name__ == "__main__":
    print(f"PyTorch {torch.__version__}")
    main()
