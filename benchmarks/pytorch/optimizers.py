"""Adam in PyTorch, with and without gradients released in the backward pass."""

from functools import partial

from torch.optim import Adam

# The default of Burn's Adam.
EPSILON = 1e-5


class Plain:
    """All gradients first, then one optimizer over all parameters."""

    def __init__(self, model, lr, **choices):
        self.optimizer = Adam(model.parameters(), lr=lr, eps=EPSILON, **choices)

    def before(self):
        self.optimizer.zero_grad()

    def after(self):
        self.optimizer.step()

    def forget(self):
        self.optimizer.state.clear()


class Hook:
    """An optimizer for each parameter, run when its gradient is complete, as in PyTorch's tutorial."""

    def __init__(self, model, lr):
        self.optimizers = {p: Adam([p], lr=lr, eps=EPSILON, foreach=False) for p in model.parameters()}

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

    def __init__(self, model, lr):
        from optimi import Adam as OptimiAdam
        from optimi import prepare_for_gradient_release

        self.optimizer = OptimiAdam(model.parameters(), lr=lr, eps=EPSILON, gradient_release=True)
        prepare_for_gradient_release(model, self.optimizer)

    def before(self):
        pass

    def after(self):
        # Documented to do nothing here, and part of the documented loop.
        self.optimizer.step()
        self.optimizer.zero_grad()

    def forget(self):
        self.optimizer.state.clear()


MODES = {
    "foreach": partial(Plain, foreach=True),
    "no-foreach": partial(Plain, foreach=False),
    "fused": partial(Plain, fused=True),
    "hook": Hook,
    "optimi": Optimi,
}
