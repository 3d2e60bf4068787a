"""The models of the benchmarks in PyTorch, with the same parameters as the models in Burn."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def run_blocks(blocks, hidden, recompute):
    """Runs one block after the other; with `recompute`, the backward pass computes each one again."""
    for block in blocks:
        hidden = checkpoint(block, hidden, use_reentrant=False) if recompute else block(hidden)
    return hidden


class Attention(nn.Module):
    """Self-attention with separate matrices for query, key, value and output."""

    def __init__(self, dim, heads, causal):
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, tokens):
        batch, length, dim = tokens.shape

        def split(projected):
            return projected.view(batch, length, self.heads, dim // self.heads).transpose(1, 2)

        # PyTorch's own attention, which does not keep the scores for the backward pass.
        mixed = F.scaled_dot_product_attention(
            split(self.query(tokens)),
            split(self.key(tokens)),
            split(self.value(tokens)),
            is_causal=self.causal,
        )
        return self.output(mixed.transpose(1, 2).reshape(batch, length, dim))


class Block(nn.Module):
    """A block with the norms before attention and MLP ("pre-norm")."""

    def __init__(self, dim, heads, hidden, causal, epsilon):
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim, eps=epsilon)
        self.attention = Attention(dim, heads, causal)
        self.mlp_norm = nn.LayerNorm(dim, eps=epsilon)
        self.widen = nn.Linear(dim, hidden)
        self.narrow = nn.Linear(hidden, dim)

    def forward(self, tokens):
        tokens = tokens + self.attention(self.attention_norm(tokens))
        return tokens + self.narrow(F.gelu(self.widen(self.mlp_norm(tokens))))


class Vit(nn.Module):
    """A vision transformer that classifies images."""

    def __init__(self, shape, recompute):
        super().__init__()
        self.recompute = recompute
        dim, patch = shape["dim"], shape["patch_size"]
        tokens = (shape["image_size"] // patch) ** 2 + 1
        self.patches = nn.Conv2d(shape["channels"], dim, patch, stride=patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, tokens, dim) * 0.2)
        self.blocks = nn.ModuleList(
            Block(dim, shape["heads"], shape["hidden"], causal=False, epsilon=1e-6)
            for _ in range(shape["depth"])
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, shape["classes"])

    def forward(self, images):
        patches = self.patches(images).flatten(2).transpose(1, 2)
        token = self.class_token.expand(images.shape[0], -1, -1)
        tokens = torch.cat([token, patches], dim=1) + self.positions
        tokens = run_blocks(self.blocks, tokens, self.recompute)
        return self.head(self.norm(tokens[:, 0]))


class Gpt(nn.Module):
    """A decoder that scores the next token at every position."""

    def __init__(self, shape, recompute):
        super().__init__()
        self.recompute = recompute
        dim = shape["dim"]
        self.tokens = nn.Embedding(shape["vocabulary"], dim)
        self.positions = nn.Parameter(torch.randn(1, shape["context"], dim) * 0.02)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.blocks = nn.ModuleList(
            Block(dim, shape["heads"], shape["hidden"], causal=True, epsilon=1e-5)
            for _ in range(shape["depth"])
        )
        self.norm = nn.LayerNorm(dim, eps=1e-5)
        self.head = nn.Linear(dim, shape["vocabulary"], bias=False)

    def forward(self, ids):
        hidden = run_blocks(self.blocks, self.tokens(ids) + self.positions, self.recompute)
        return self.head(self.norm(hidden)).flatten(0, 1)


class Encoder(nn.Module):
    """An encoder that scores the tokens at every position, of PyTorch's own layers."""

    def __init__(self, shape, recompute):
        super().__init__()
        self.recompute = recompute
        dim = shape["dim"]
        self.tokens = nn.Embedding(shape["vocabulary"], dim)
        self.positions = nn.Embedding(shape["context"], dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                dim,
                shape["heads"],
                shape["hidden"],
                dropout=shape["dropout"],
                activation="gelu",
                batch_first=True,
            )
            for _ in range(shape["depth"])
        )
        self.head = nn.Linear(dim, shape["vocabulary"])

    def forward(self, ids):
        places = torch.arange(ids.shape[1], device=ids.device)
        embedded = self.tokens(ids) + self.positions(places)
        return self.head(run_blocks(self.layers, embedded, self.recompute)).flatten(0, 1)


def build(shape, recompute):
    """Builds the model of that shape, on the CPU; with `recompute`, it recomputes its blocks."""
    return {"vit": Vit, "gpt": Gpt, "encoder": Encoder}[shape["kind"]](shape, recompute)


def batch(shape, batch_size):
    """A random batch on the CPU, `(inputs, labels)`: the cost of a step does not depend on its content."""
    if shape["kind"] == "vit":
        side = shape["image_size"]
        images = torch.randn(batch_size, shape["channels"], side, side)
        return images, torch.randint(shape["classes"], (batch_size,))
    ids = torch.randint(shape["vocabulary"], (batch_size, shape["context"] + 1))
    return ids[:, :-1].contiguous(), ids[:, 1:].flatten().contiguous()
