"""Bytes in use, defined alike on both devices: the sum of the allocations of tensors.

On CUDA PyTorch's caching allocator counts them. On the CPU the profiler records every allocation and
release, and `Cpu.stop` adds them up. Neither includes the workspaces that the libraries below PyTorch
allocate from the C library.
"""

import torch

MARK = "benchmark mark: "


class Cuda:
    """The counts of PyTorch's allocator."""

    def __init__(self):
        torch.cuda.synchronize()
        self.base = torch.cuda.memory_allocated()
        self.spans = []

    def start(self):
        return self

    def stop(self):
        pass

    def mark(self, name):
        """Ends a span of time and names it."""
        torch.cuda.synchronize()
        self.spans.append(
            {
                "name": name,
                "live": torch.cuda.memory_allocated() - self.base,
                "peak": torch.cuda.max_memory_allocated() - self.base,
                "reserved": torch.cuda.max_memory_reserved(),
            }
        )
        torch.cuda.reset_peak_memory_stats()


class Cpu:
    """Adds up every allocation and release that the profiler records."""

    def __init__(self):
        self.profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        )
        self.spans = []

    def start(self):
        self.profile.__enter__()
        return self

    def mark(self, name):
        with torch.profiler.record_function(MARK + name):
            pass

    def stop(self):
        self.profile.__exit__(None, None, None)
        events = []
        for event in self.profile.profiler.kineto_results.events():
            if event.name() == "[memory]":
                if event.device_type() == torch.profiler.DeviceType.CPU:
                    events.append((event.start_ns(), event.nbytes()))
            elif event.name().startswith(MARK):
                events.append((event.start_ns(), event.name().removeprefix(MARK)))
        live = peak = 0
        for _, what in sorted(events, key=lambda event: event[0]):
            if isinstance(what, str):
                self.spans.append({"name": what, "live": live, "peak": peak, "reserved": None})
                peak = live
            else:
                live += what
                peak = max(peak, live)


class Nothing:
    """Counts nothing, in a process that measures the time."""

    spans = ()

    def start(self):
        return self

    def mark(self, name):
        pass

    def stop(self):
        pass


def meter(device, memory):
    if device == "cuda":
        return Cuda()
    return Cpu() if memory else Nothing()
