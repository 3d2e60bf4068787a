"""Adam and AdamW in PyTorch, with and without gradients released in the backward pass, and in small types."""

from functools import partial

import torch

# PyTorch's and optimi's name of each optimizer, and the defaults of Burn's.
OPTIMIZERS = {
    "adam": ("Adam", {"eps": 1e-5}),
    "adamw": ("AdamW", {"eps": 1e-5, "weight_decay": 1e-4}),
}


def optimizer_of(package, kind, name="{}"):
    of_torch, defaults = OPTIMIZERS[kind]
    return partial(getattr(package, name.format(of_torch)), **defaults)


class Plain:
    """All gradients first, then one optimizer over all parameters."""

    def __init__(self, model, kind, lr, **choices):
        self.optimizer = optimizer_of(torch.optim, kind)(model.parameters(), lr=lr, **choices)

    def before(self):
        self.optimizer.zero_grad()

    def after(self):
        self.optimizer.step()

    def forget(self):
        self.optimizer.state.clear()


class Hook:
    """An optimizer for each parameter, run when its gradient is complete, as in PyTorch's tutorial."""

    def __init__(self, model, kind, lr):
        optimizer = optimizer_of(torch.optim, kind)
        self.optimizers = {p: optimizer([p], lr=lr, foreach=False) for p in model.parameters()}

        def step(parameter):
            self.optimizers[parameter].step()
            self.optimizers[parameter].zero_grad()

        for parameter in self.optimizers:
            parameter.register_post_accumulate_grad_hook(step)

    def before(self):
        pass

    def after(self):
        pass

    def forget(self):
        for optimizer in self.optimizers.values():
            optimizer.state.clear()


class Optimi:
    """optimi's gradient release."""

    def __init__(self, model, kind, lr):
        import optimi

        optimizer = optimizer_of(optimi, kind)
        self.optimizer = optimizer(model.parameters(), lr=lr, gradient_release=True)
        optimi.prepare_for_gradient_release(model, self.optimizer)

    def before(self):
        pass

    def after(self):
        # Documented to do nothing here, and part of the documented loop.
        self.optimizer.step()
        self.optimizer.zero_grad()

    def forget(self):
        self.optimizer.state.clear()


class Torchao8bit(Plain):
    """torchao's optimizer with moments in 8 bits, in blocks of 256."""

    def __init__(self, model, kind, lr):
        import torchao.optim

        self.optimizer = optimizer_of(torchao.optim, kind, "{}8bit")(model.parameters(), lr=lr)


class FlashOptim(Plain):
    """FlashOptim's gradient release: weights in bf16 and 8 bits beside them, moments in 8 bits."""

    def __init__(self, model, kind, lr):
        import flashoptim

        flashoptim.cast_model(model, dtype=torch.bfloat16)
        self.optimizer = optimizer_of(flashoptim, kind, "Flash{}")(model.parameters(), lr=lr)
        # Steps and frees in backward: `step` and `zero_grad` do nothing from here on.
        flashoptim.enable_gradient_release(model, self.optimizer)


MODES = {
    "foreach": partial(Plain, foreach=True),
    "no-foreach": partial(Plain, foreach=False),
    "fused": partial(Plain, fused=True),
    "hook": Hook,
    "optimi": Optimi,
    "torchao-8bit": Torchao8bit,
    "flashoptim": FlashOptim,
    "flashoptim-checkpoint": FlashOptim,
    "checkpoint": partial(Plain, foreach=True),
    "hook-checkpoint": Hook,
}

# The modes whose backward pass computes the activations of each block again.
RECOMPUTING = {"checkpoint", "hook-checkpoint", "flashoptim-checkpoint"}
