"""Values of bitsandbytes for `nf4.rs`: python nf4.py > nf4.json

With torch 2.15 and bitsandbytes 0.50.2. Its operations in PyTorch, which have the bits of its CUDA kernels: of
those for a processor, the one that packs scales does not take the nearest code, and the one that unpacks
takes scales of another block where a row is no whole number of blocks.
"""

import ctypes
import json

ctypes.cdll.LoadLibrary = None  # bitsandbytes then has no kernels of its own

import bitsandbytes.functional as bnb
import torch


def noise(count):
    return [(i * 7919 + 13) % 2003 / 1001.5 - 1.0 for i in range(count)]


def spiky(count):
    return [1e20 if i % 1000 == 77 else 1e-3 * x for i, x in enumerate(noise(count))]


def between():
    """Halfway between two codes, where a product with 1 / scale and a quotient differ: the last block is a part."""
    codes = bnb.get_4bit_type("nf4", device="cpu")
    scale = torch.tensor(1.4554425)
    middle = (codes[:-1] + codes[1:]) / 2 * scale
    return torch.cat([middle, scale.reshape(1)]).repeat(5).tolist()


CASES = [
    ("between two codes", [5, 16], between(), torch.float32),
    ("noise", [48, 96], noise(48 * 96), torch.float32),
    ("cubes", [300, 70], [x * x * x for x in noise(300 * 70)], torch.float32),
    ("an odd number", [7, 11], noise(77), torch.float32),
    ("zeros", [2, 64], [0.0] * 128, torch.float32),
    ("small", [3, 5], [1e-30] * 15, torch.float32),
    ("tiny", [2, 64], [1e-40 * (i % 3) for i in range(128)], torch.float32),
    ("spiky", [40, 64], spiky(40 * 64), torch.float32),
    ("uneven", [30, 64], [x * 10.0 ** (i // 64 - 15) for i, x in enumerate(noise(30 * 64))], torch.float32),
    ("bf16", [16, 64], noise(16 * 64), torch.bfloat16),
]


def hexadecimal(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes().hex()


def case(name, dims, numbers, dtype):
    weight = torch.tensor(numbers, dtype=torch.float64).to(torch.float32).to(dtype).reshape(dims)
    packed, state = bnb.quantize_4bit(
        weight, blocksize=64, compress_statistics=True, quant_type="nf4"
    )
    dense = bnb.dequantize_4bit(packed, state).float()
    return {
        "name": name,
        "input": hexadecimal(weight) if name.startswith("between") else None,
        "dims": dims,
        "numbers": hexadecimal(packed),
        "scales": hexadecimal(state.absmax),
        "of_scales": hexadecimal(torch.cat([state.state2.absmax, state.offset.reshape(1)])),
        # A part is enough of the large ones.
        "dense": hexadecimal(dense.flatten()[::7]),
    }


print("[")
print(",\n".join(json.dumps(case(*entry)) for entry in CASES))
print("]")
