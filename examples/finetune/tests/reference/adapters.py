"""Trains adapters of peft over the model in `llama`, and over the same in four bits of bitsandbytes.

    pip install torch transformers peft bitsandbytes
    python make.py && python adapters.py    # makes the folder `adapters` anew
    python adapters.py check FOLDER         # logits of a model in four bits that somebody has written

With torch 2.15, transformers 5.24, peft 0.21.2 and bitsandbytes 0.50.2, on a processor. Of bitsandbytes this runs
the operations in PyTorch, which have the bits of its CUDA kernels; those for a processor have not.
"""

import ctypes
import json
import shutil
import sys
from pathlib import Path

ctypes.cdll.LoadLibrary = None  # bitsandbytes then has no kernels of its own

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from make import HERE, TOKENS, logits, rounded

FOLDER = HERE / "adapters"
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def base(folder, **more):
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", device_map="cpu", **more
    )


def in_four_bits():
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )


def numbers(shape, seed):
    count = torch.Size(shape).numel()
    values = [(i * 7919 + seed * 104_729 + 13) % 2003 / 1001.5 - 1.0 for i in range(count)]
    return torch.tensor(values, dtype=torch.float32).reshape(shape)


def adapted(model):
    config = LoraConfig(r=2, lora_alpha=4, target_modules=LINEAR, lora_dropout=0.0)
    model = get_peft_model(model, config)
    # Not where it is on this machine.
    model.peft_config["default"].base_model_name_or_path = "llama"
    with torch.no_grad():
        for at, (name, param) in enumerate(model.named_parameters()):
            if "lora_" in name:
                param.copy_(numbers(list(param.shape), at) * 0.2)
    return model


def save(model, name):
    model.save_pretrained(FOLDER / name)
    (FOLDER / name / "README.md").unlink()


def train(model, name):
    """50 steps of AdamW: the losses. The adapters are saved."""
    trained = [param for param in model.parameters() if param.requires_grad]
    adamw = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.999), eps=1e-5, weight_decay=0.1)
    losses = []
    for _ in range(50):
        loss = model(torch.tensor(TOKENS), labels=torch.tensor(TOKENS)).loss
        losses.append(loss.item())
        adamw.zero_grad()
        loss.backward()
        adamw.step()
    save(model, name)
    return rounded(losses)


def make():
    shutil.rmtree(FOLDER, ignore_errors=True)
    model = adapted(base(HERE / "llama"))
    save(model, "initial")
    known = {"tokens": TOKENS, "losses": train(model, "trained")}
    packed = base(HERE / "llama", quantization_config=in_four_bits())
    packed.save_pretrained(FOLDER / "nf4")
    (FOLDER / "nf4" / "generation_config.json").unlink()
    known["logits_nf4"] = rounded(logits(packed)[:, -2:].tolist())
    known["losses_nf4"] = train(adapted(packed), "trained-nf4")
    (FOLDER / "known.json").write_text(json.dumps(known) + "\n")


def check(folder):
    """Of a file beside the configuration in `adapters/nf4`."""
    shutil.copy(FOLDER / "nf4" / "config.json", folder)
    print(logits(base(folder))[:, -1, :4].tolist())


if __name__ == "__main__":
    check(Path(sys.argv[2])) if sys.argv[1:2] == ["check"] else make()
