"""Adapters of peft for `peft.rs`, run in this folder: python adapters.py

With torch 2.15, peft 0.21.2 and transformers 5.24: the adapters before and after 50 steps of AdamW.
"""

import os

import torch
from peft import LoraConfig, get_peft_model


def numbers(shape, step):
    """As `harness::numbers`."""
    count = torch.Size(shape).numel()
    values = [(i * 7919 + step * 104_729 + 13) % 2003 / 1001.5 - 1.0 for i in range(count)]
    return torch.tensor(values, dtype=torch.float32).reshape(shape)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 6)
        self.second = torch.nn.Linear(6, 4)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


model = Model()
with torch.no_grad():
    # Burn has `[input, output]`.
    model.first.weight.copy_(numbers([4, 6], 1).T * 0.6)
    model.first.bias.copy_(numbers([6], 2) * 0.6)
    model.second.weight.copy_(numbers([6, 4], 3).T * 0.6)
    model.second.bias.copy_(numbers([4], 4) * 0.6)

config = LoraConfig(r=2, lora_alpha=4, target_modules=["first", "second"], lora_dropout=0.0)
model = get_peft_model(model, config)
with torch.no_grad():
    for at, (name, param) in enumerate(model.named_parameters()):
        if "lora_" in name:
            param.copy_(numbers(list(param.shape), 10 + at) * 0.4)


def save(name):
    model.save_pretrained(f"peft/{name}")
    os.remove(f"peft/{name}/README.md")


save("initial")
optim = torch.optim.AdamW(
    [p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.01
)
for step in range(50):
    loss = model(numbers([3, 4], step)).square().mean()
    loss.backward()
    optim.step()
    optim.zero_grad()
save("trained")
