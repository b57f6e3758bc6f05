"""What the official PyTorch code draws in a training run, for a process of its own.

    PYTHON tests/pipelines/analysis/peer_official_draws.py WEIGHTS SIZES SEED FIRST_STEP

PYTHON is one with `torch`. SIZES are the fields of a `ModelConfig` as JSON, and
`num_rows`. The state dict that the run begins with goes to WEIGHTS, `.npz`; then
come, on the standard output and for every step from FIRST_STEP on, the masks of
all dropouts in the order in which they are drawn, a bit for each element, 1 where
it stays. They end when nobody reads on.

The generator of random numbers is one stream, so all that was ever drawn from it
has to be drawn again: the weights that modules begin with, those they are given
afterwards, the tables that are tied to another twice.
"""

import json
import sys

import numpy as np
import torch
from torch import nn


def create_modules(sizes):
    """All modules with weights by their name, in the order in which they are made."""
    hidden, inner = sizes["hidden_dim"], sizes["intermediate_dim"]
    heads = sizes["num_heads"] * sizes["head_dim"]
    modules = {"word_emb.emb_layers.0": nn.Embedding(sizes["vocabulary_size"], hidden)}
    for layer in range(sizes["num_layers"]):
        attention, feed_forward = f"layers.{layer}.dec_attn", f"layers.{layer}.pos_ff"
        modules[f"{attention}.qkv_net"] = nn.Linear(hidden, 3 * heads, bias=False)
        modules[f"{attention}.o_net"] = nn.Linear(heads, hidden, bias=False)
        modules[f"{attention}.layer_norm"] = nn.LayerNorm(hidden)
        modules[f"{attention}.r_net"] = nn.Linear(hidden, heads, bias=False)
        modules[f"{feed_forward}.CoreNet.0"] = nn.Linear(hidden, inner)
        modules[f"{feed_forward}.CoreNet.3"] = nn.Linear(inner, hidden)
        modules[f"{feed_forward}.layer_norm"] = nn.LayerNorm(hidden)
    modules["crit.out_layers.0"] = nn.Linear(hidden, sizes["vocabulary_size"])
    modules["crit.out_layers.0"].weight = modules["word_emb.emb_layers.0"].weight
    return modules


@torch.no_grad()
def initial_weights(sizes):
    """Draws the state dict of a run."""
    stddev = sizes["initializer_stddev"]
    modules = create_modules(sizes)
    for module in modules.values():
        module.weight.normal_(1.0 if isinstance(module, nn.LayerNorm) else 0.0, stddev)
        if getattr(module, "bias", None) is not None:
            module.bias.zero_()
    tensors = {
        name: torch.empty(sizes["num_heads"], sizes["head_dim"]).normal_(0.0, stddev)
        for name in ("r_w_bias", "r_r_bias")
    }
    modules["word_emb.emb_layers.0"].weight.normal_(0.0, stddev)
    for name, module in modules.items():
        for kind, tensor in module.state_dict().items():
            tensors[f"{name}.{kind}"] = tensor
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def mask_sizes(sizes, num_keys):
    """Elements of every mask of a step, in the order of the draws."""
    places = sizes["segment_length"] * sizes["num_rows"]
    hidden = places * sizes["hidden_dim"]
    block = [hidden, places * sizes["intermediate_dim"], hidden]
    return [hidden, num_keys * sizes["hidden_dim"], *block * sizes["num_layers"], hidden]


def draw_masks(sizes, step):
    """The masks of a step; where there is no memory yet, its positions are all kept."""
    segment, memory = sizes["segment_length"], sizes["memory_length"]
    num_remembered = min(step * segment, memory)
    masks = [
        torch.empty(size).bernoulli_(1.0 - sizes["dropout"]).bool().numpy()
        for size in mask_sizes(sizes, num_remembered + segment)
    ]
    missing = np.ones((memory - num_remembered) * sizes["hidden_dim"], bool)
    return np.concatenate([masks[0], missing, *masks[1:]])


def main():
    weights_path, sizes, seed, first_step = sys.argv[1:]
    sizes = json.loads(sizes)
    torch.manual_seed(int(seed))
    np.savez(weights_path, **initial_weights(sizes))
    step = 0
    try:
        while True:
            masks = draw_masks(sizes, step)
            if step >= int(first_step):
                sys.stdout.buffer.write(np.packbits(masks, bitorder="little").tobytes())
                sys.stdout.buffer.flush()
            step += 1
    except BrokenPipeError:
        sys.stderr.close()  # or Python complains that it cannot flush


if __name__ == "__main__":
    main()
