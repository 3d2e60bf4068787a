"""Writes clipping.json beside this file: clipped gradients and thresholds, in 64-bit floats.

The norm of all gradients is clipped by PyTorch itself. The other three are written here from their papers; where a
paper leaves something open, as its authors' code does it. Inputs are multiples of 1/256, which 32-bit floats hold
exactly. A tensor is its shape and its elements, row by row.
Made with PyTorch 2.15 on the CPU: python clipping.py
"""

import json
import pathlib

import torch

STEPS = 200
random = torch.Generator().manual_seed(5)


def exact(tensor):
    return (tensor * 256).round() / 256


def normal(*shape, scale=1.0):
    return exact(torch.randn(shape, generator=random, dtype=torch.float64) * scale)


def written(tensor):
    return {"shape": list(tensor.shape), "values": numbers(tensor.flatten().tolist())}


def numbers(values):
    return [number(value) for value in values]


def number(value):
    """Ten digits more than 32-bit floats have would only make the file longer."""
    return None if value is None else float(f"{value:.13g}")


def spikes(base, length):
    """Scales around one that drift, with spikes of several heights; two of them in a row."""
    heights = {40: 4.0, 75: 10.0, 76: 8.0, 120: 2.5, 121: 1.5, 160: 100.0, 199: 6.0}
    noise = torch.randn(length, generator=random, dtype=torch.float64)
    scales = [base * (1 - 0.5 * step / length) * (1 + 0.1 * noise[step].item()) for step in range(length)]
    return [scale * heights.get(step, 1.0) for step, scale in enumerate(scales)]


def global_norm():
    """torch.nn.utils.clip_grad_norm_, which divides by the norm + 1e-6 and never scales up."""
    drawn = [normal(3, 4), normal(4, scale=0.1), normal(2, 3, 2, scale=3.0)]
    # A norm that is a whole number: 2² + 4² + 5² + 6² = 9².
    whole = [torch.zeros(3, 4), torch.zeros(4), torch.zeros(2, 3, 2)]
    whole[0][0, 1], whole[0][2, 3], whole[1][2], whole[2][1, 0, 1] = 2.0, -4.0, 5.0, -6.0
    whole = [tensor.double() for tensor in whole]
    zero = [torch.zeros_like(tensor) for tensor in drawn]
    cases = {
        "above": (drawn, 1.0),
        "far above": (drawn, 1e-3),
        "just above": (whole, 8.875),
        "equal": (whole, 9.0),
        "below": (drawn, 64.0),
        "zero": (zero, 1.0),
    }
    results = []
    for name, (gradients, max_norm) in cases.items():
        parameters = [torch.zeros_like(gradient).requires_grad_() for gradient in gradients]
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        results.append({
            "case": name,
            "max_norm": max_norm,
            "gradients": [written(gradient) for gradient in gradients],
            "norm": number(norm.item()),
            "clipped": [written(parameter.grad) for parameter in parameters],
        })
    return results


def adaptive():
    """Adaptive gradient clipping (arXiv 2102.06171), with unit-wise norms.

    A unit is what one output is computed with: a column of the weight [in, out] of a Linear of Burn, all but the first
    dimension of the weight of a convolution, and all of a vector or scalar, as in the authors' code.
    """
    clipping, epsilon = 0.01, 1e-3
    linear, convolution, vector = (0,), None, ()

    def unit_norms(tensor, dims):
        dims = tuple(range(1, tensor.ndim)) if dims is None else dims
        squares = tensor.square()
        return (squares.sum(dims, keepdim=True) if dims else squares.sum()).sqrt()

    def draw(*shape):
        return normal(*shape), normal(*shape, scale=0.01)

    cases = [
        ("linear", linear, *draw(5, 4)),
        ("linear", linear, *draw(1, 6)),
        ("conv1d", convolution, *draw(4, 3, 3)),
        ("conv2d", convolution, *draw(3, 2, 3, 3)),
        ("vector", vector, *draw(6)),
        # Of norms below epsilon, which counts instead; and of no gradient at all in one unit.
        ("linear", linear, torch.zeros(5, 4, dtype=torch.float64), normal(5, 4)),
        ("vector", vector, torch.zeros(3, dtype=torch.float64), normal(3)),
    ]
    weight, gradient = draw(3, 4)
    gradient[:, 1] = 0
    gradient[:, 2] *= 64
    cases.append(("linear", linear, weight, gradient))

    results = []
    for kind, dims, weight, gradient in cases:
        largest = clipping * unit_norms(weight, dims).clamp(min=epsilon)
        norms = unit_norms(gradient, dims)
        scaled = gradient * (largest / norms.clamp(min=1e-6))
        results.append({
            "kind": kind,
            "weight": written(weight),
            "gradient": written(gradient),
            "clipped": written(torch.where(norms > largest, scaled, gradient)),
        })
    return {"clipping": clipping, "epsilon": epsilon, "cases": results}


def auto():
    """AutoClip (arXiv 2007.14469) of one tensor: its norm is clipped to a percentile of all norms so far, its own
    included. Between two norms the percentile is interpolated."""
    direction = normal(4)
    gradients = [exact(direction * scale) for scale in spikes(1.0, STEPS)]
    runs = []
    for percentile in [10, 50, 90]:
        history, clips, clipped = [], [], []
        for gradient in gradients:
            history.append(gradient.norm().item())
            clip = torch.tensor(history, dtype=torch.float64).quantile(percentile / 100).item()
            clips.append(clip)
            # Without the 1e-6 of clip_grad_norm_, by which a norm at its percentile would be scaled.
            clipped.append(min(clip, history[-1]))
        runs.append({"percentile": percentile, "clip": numbers(clips), "clipped_norm": numbers(clipped)})
    return {"gradients": [written(gradient) for gradient in gradients], "norms": numbers(history), "runs": runs}


def z_score():
    """ZClip (arXiv 2504.02507) of the norm of all gradients, with the adaptive rule.

    After the warm-up, mean and variance are those of its norms, as of a whole population. They are moved by what the
    norm was clipped to, and the variance by the distance to the new mean.
    """
    alpha, threshold, warm_up, epsilon = 0.97, 2.5, 25, 1e-6
    norms = [exact(torch.tensor(norm, dtype=torch.float64)).item() for norm in spikes(3.0, STEPS)]
    mean = variance = None
    clips, means, stds = [], [], []
    for step, norm in enumerate(norms):
        clip = None
        if mean is not None:
            std = variance**0.5
            z = (norm - mean) / (std + epsilon)
            if z > threshold:
                clip = mean + threshold**2 / z * std
            applied = norm if clip is None else clip
            mean = alpha * mean + (1 - alpha) * applied
            variance = alpha * variance + (1 - alpha) * (applied - mean) ** 2
        elif step + 1 == warm_up:
            first = norms[:warm_up]
            mean = sum(first) / warm_up
            variance = sum((norm - mean) ** 2 for norm in first) / warm_up
        clips.append(clip)
        means.append(mean)
        stds.append(None if variance is None else variance**0.5)
    return {
        "alpha": alpha,
        "threshold": threshold,
        "warm_up": warm_up,
        "epsilon": epsilon,
        "norms": numbers(norms),
        "clip": numbers(clips),
        "mean": numbers(means),
        "std": numbers(stds),
    }


parts = {"global_norm": global_norm(), "adaptive": adaptive(), "auto": auto(), "z_score": z_score()}
pathlib.Path(__file__).with_name("clipping.json").write_text(json.dumps(parts) + "\n")
