"""Gradients of Hugging Face's Transformer-XL under dropout, for a process of its own.

    PYTHON tests/training/peer_dropout_gradients.py MODEL CASE DRAWS

MODEL is a folder of `save_hugging_face`, CASE a file `.npz` with `tokens`
`(B, T + 1)` and `memory` `(L, B, M, D)`. MODEL gets `losses.npy` of all
draws, and `mean.npz` and `square.npz`: the mean of the gradients and of their
squares, as state dicts.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from transformers import TransfoXLLMHeadModel


def draw(model, parameters, tokens, memory):
    """The loss under new masks; the gradients are with the parameters."""
    for parameter in parameters.values():
        parameter.grad = None
    hidden = model.transformer(tokens[:, :-1], mems=memory, return_dict=True).last_hidden_state
    softmax = model.crit.out_layers[0]
    logits = functional.linear(hidden, softmax.weight, softmax.bias)
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    return loss.item()


def main():
    folder, case_path, num_draws = sys.argv[1:]
    case = np.load(case_path)
    tokens = torch.tensor(case["tokens"].astype("int64"))
    memory = [torch.tensor(states.swapaxes(0, 1).copy()) for states in case["memory"]]
    model = TransfoXLLMHeadModel.from_pretrained(folder).train()
    # A parameter that two modules share is here under both names.
    parameters = dict(model.named_parameters(remove_duplicate=False))
    torch.manual_seed(0)
    losses, sums = [], dict.fromkeys(parameters, (0.0, 0.0))
    for _ in range(int(num_draws)):
        losses.append(draw(model, parameters, tokens, memory))
        for name, (first, second) in sums.items():
            gradient = parameters[name].grad.numpy().astype("float64")
            sums[name] = (first + gradient, second + gradient**2)
    for place, file in enumerate(("mean.npz", "square.npz")):
        means = {name: each[place] / len(losses) for name, each in sums.items()}
        np.savez(Path(folder) / file, **means)
    np.save(Path(folder) / "losses.npy", losses)


if __name__ == "__main__":
    main()
