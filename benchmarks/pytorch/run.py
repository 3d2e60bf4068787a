"""Measures one run in PyTorch: a JSON object on the command line, a JSON object on stdout.

`run.py versions` prints the versions of the libraries.
"""

import hashlib
import json
import platform
import sys
import time
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import torch
from torch.nn import functional as F

import memory
import models
import optimizers


def version_of(module, package):
    """None if it is not installed."""
    try:
        import_module(module)
    except ImportError:
        return None
    try:
        return version(package)
    except PackageNotFoundError:
        return "of unknown version"


def versions():
    has_cuda = torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "optimi": version_of("optimi", "torch-optimi"),
        "torchao": version_of("torchao.optim", "torchao"),
        "flashoptim": version_of("flashoptim", "flashoptim"),
        "cuda": torch.version.cuda if has_cuda else None,
        "gpu": torch.cuda.get_device_name() if has_cuda else None,
        "threads": torch.get_num_threads(),
    }


class Run:
    def __init__(self, spec):
        self.settings, subject, case = spec["settings"], spec["subject"], spec["case"]
        self.device = subject["device"]
        self.counts_memory = spec["measure"] == "memory"
        # Burn computes in full fp32; so does this.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.manual_seed(self.settings["seed"])
        shape, size = case["model"], case["batch_size"]
        self.batches = [models.batch(shape, size) for _ in range(min(4, self.settings["steps"] + 1))]
        self.taken = 0
        if self.device == "cuda":
            torch.zeros(1, device="cuda")
        self.meter = memory.meter(self.device, self.counts_memory).start()
        mode, kind = subject["mode"], subject["optimizer"]
        self.model = models.build(shape, mode in optimizers.RECOMPUTING).to(self.device)
        self.optimizer = optimizers.MODES[mode](self.model, kind, self.settings["lr"])
        self.meter.mark("built")

    def sync(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def step(self, itemised=False):
        """One step as users write it; returns its seconds and its loss."""
        mark = self.meter.mark if itemised else lambda name: None
        inputs, labels = self.batches[self.taken % len(self.batches)]
        self.taken += 1
        start = time.perf_counter()
        # First, so that the gradients of the last step do not count in this one.
        self.optimizer.before()
        mark("before")
        inputs, labels = inputs.to(self.device), labels.to(self.device)
        if inputs.is_floating_point():
            inputs = inputs.to(next(self.model.parameters()).dtype)
        loss = F.cross_entropy(self.model(inputs), labels)
        value = loss.item()
        mark("forward")
        loss.backward()
        mark("backward")
        self.optimizer.after()
        self.sync()
        seconds = time.perf_counter() - start
        mark("step")
        return seconds, value

    def measure(self):
        settings, meter = self.settings, self.meter
        for _ in range(settings["warm_up"]):
            self.step()
        meter.mark("warm up")
        seconds, loss = [], None
        for _ in range(settings["steps"]):
            taken, loss = self.step()
            seconds.append(taken)
        meter.mark("steps")
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            # NumPy has no bf16.
            digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        if self.counts_memory:
            self.step(itemised=True)
        self.optimizer.before()
        meter.mark("kept")
        self.optimizer.forget()
        meter.mark("forgotten")
        meter.stop()
        return self.result(seconds, loss, digest.hexdigest())

    def result(self, seconds, loss, digest):
        counts = self.counts_memory
        numbers = [parameter.numel() for parameter in self.model.parameters()]
        spans = {span["name"]: span for span in self.meter.spans}
        result = {
            "backend": f"PyTorch on {self.device}",
            "parameters": sum(numbers),
            "largest_parameter": max(numbers),
            "step_seconds": seconds,
            "final_loss": loss,
            "weights_digest": digest,
            "memory": None,
        }
        if counts:
            result["memory"] = {
                "peak_bytes": spans["steps"]["peak"],
                "peak_reserved_bytes": spans["steps"]["reserved"],
                "warm_up_peak_bytes": spans["warm up"]["peak"],
                "optimizer_state_bytes": spans["kept"]["live"] - spans["forgotten"]["live"],
                "live_before": spans["before"]["live"],
                "live_after_forward": spans["forward"]["live"],
                "live_after_backward": spans["backward"]["live"],
                "live_after_step": spans["step"]["live"],
                "peak_in_forward": spans["forward"]["peak"],
                "peak_in_backward": spans["backward"]["peak"],
                "peak_in_step": spans["step"]["peak"],
            }
        return result


def main():
    if sys.argv[1] == "versions":
        print(json.dumps(versions()))
    else:
        print(json.dumps(Run(json.loads(sys.argv[1])).measure()))


if __name__ == "__main__":
    main()
