"""Makes small random models of each family, with what transformers computes of them.

    pip install torch transformers
    python make.py                  # makes the folders beside this file anew
    python make.py check FOLDER..   # prints logits of models that somebody has written

Weights are rounded to bf16, so that files in bf16 and sums in f32 start from the same numbers.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

HERE = Path(__file__).parent
SHAPE = dict(
    vocab_size=48,
    hidden_size=32,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    # Weights large enough that every part of the model matters.
    initializer_range=0.2,
)
TOKENS = [[(7 * at + at * at // 3) % 48 for at in range(24)], [(11 * at + 5) % 48 for at in range(24)]]
MODELS = {
    "llama": (LlamaConfig(**SHAPE, tie_word_embeddings=False), torch.float32, None),
    "qwen2": (Qwen2Config(**SHAPE, tie_word_embeddings=True), torch.bfloat16, None),
    "qwen3": (Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=True, rope_theta=1e6), torch.bfloat16, None),
    # Several files, and a window that is shorter than the text.
    "mistral": (MistralConfig(**SHAPE, sliding_window=5), torch.bfloat16, "20KB"),
}
# Of the weights of `llama`.
SCALINGS = {
    "linear": dict(rope_type="linear", factor=4.0, rope_theta=10000.0),
    "llama3": dict(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=16,
        rope_theta=10000.0,
    ),
    "yarn": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=10000.0),
}


def logits(model):
    with torch.no_grad():
        return model(torch.tensor(TOKENS)).logits


def train(model):
    """20 steps of AdamW: the losses, and a few numbers of each weight."""
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.999), eps=1e-5, weight_decay=0.1)
    losses = []
    for _ in range(20):
        loss = model(torch.tensor(TOKENS), labels=torch.tensor(TOKENS)).loss
        losses.append(loss.item())
        adamw.zero_grad()
        loss.backward()
        adamw.step()
    after = {}
    for name, weight in model.named_parameters():
        flat = weight.detach().flatten()
        after[name] = flat[:: max(1, len(flat) // 8)].tolist()
    return losses, after


def rounded(values, digits=7):
    if isinstance(values, list):
        return [rounded(value, digits) for value in values]
    return float(f"{values:.{digits}g}")


def make():
    for name, (config, dtype, shard) in MODELS.items():
        torch.manual_seed(sum(name.encode()))
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        for weight in model.parameters():
            # Not all gains are one, nor all biases zero.
            noise = 0.1 * torch.randn_like(weight) if weight.dim() == 1 else 0.0
            weight.data = (weight.data + noise).to(torch.bfloat16).float()
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        stored = AutoModelForCausalLM.from_config(config).to(dtype)
        stored.load_state_dict(model.state_dict())
        stored.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
        (folder / "generation_config.json").unlink()
        known = {"tokens": TOKENS, "logits": rounded(logits(model)[:, -2:].tolist())}
        if name == "llama":
            for scaling, parameters in SCALINGS.items():
                changed = LlamaConfig(**SHAPE, tie_word_embeddings=False, rope_parameters=parameters)
                scaled = AutoModelForCausalLM.from_config(changed, attn_implementation="eager")
                scaled.load_state_dict(model.state_dict())
                known[f"logits_{scaling}"] = rounded(logits(scaled)[:, -2:].tolist())
                text = json.dumps(changed.to_diff_dict() | {"rope_parameters": parameters}, indent=1)
                (folder / f"config-{scaling}.json").write_text(text + "\n")
        losses, after = train(model)
        known |= {"losses": losses, "after": {key: rounded(value) for key, value in after.items()}}
        (folder / "known.json").write_text(json.dumps(known) + "\n")


def check(folders):
    for folder in folders:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        print(folder, logits(model)[:, -1, :4].tolist())


if __name__ == "__main__":
    check(sys.argv[2:]) if sys.argv[1:2] == ["check"] else make()
