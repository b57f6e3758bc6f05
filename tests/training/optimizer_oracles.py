"""Optimizers in NumPy, one variable at a time, written from the papers."""

import numpy as np


def is_decayed(path, weight):
    return weight.ndim >= 2 and not path.endswith("bias")


def run_oracle(step_of, weights, gradients_of_steps, rates, weight_decay=0.0):
    """Weights after some steps; biases and vectors do not decay.

    `step_of(path, weight)` returns a function of gradient, weight, learning rate and step from 1
    that returns the number to subtract.
    """
    weights = {path: np.float64(array) for path, array in weights.items()}
    steps = {path: step_of(path, array) for path, array in weights.items()}
    for number, (gradients, rate) in enumerate(zip(gradients_of_steps, rates, strict=True), 1):
        for path, step in steps.items():
            if is_decayed(path, weights[path]):
                weights[path] = weights[path] * (1.0 - rate * weight_decay)
            gradient = np.float64(gradients[path])
            weights[path] = weights[path] - step(gradient, weights[path], rate, number)
    return weights


def adam(beta_1, beta_2, epsilon):
    """Algorithm 1 of Kingma and Ba (2015), in the order of the end of Section 2."""

    def step_of(path, weight):
        first, second = np.zeros_like(weight), np.zeros_like(weight)

        def step(gradient, weight, rate, number):
            first[...] = beta_1 * first + (1 - beta_1) * gradient
            second[...] = beta_2 * second + (1 - beta_2) * gradient**2
            rate = rate * np.sqrt(1 - beta_2**number) / (1 - beta_1**number)
            return rate * first / (np.sqrt(second) + epsilon)

        return step

    return step_of


def lamb(beta_1, beta_2, epsilon, max_weight_norm=np.inf):
    """Algorithm 2 of You et al. (2020) without weight decay."""

    def step_of(path, weight):
        first, second = np.zeros_like(weight), np.zeros_like(weight)

        def step(gradient, weight, rate, number):
            first[...] = beta_1 * first + (1 - beta_1) * gradient
            second[...] = beta_2 * second + (1 - beta_2) * gradient**2
            corrected = second / (1 - beta_2**number)
            ratio = first / (1 - beta_1**number) / (np.sqrt(corrected) + epsilon)
            norm = min(np.linalg.norm(weight), max_weight_norm)
            trust = norm / np.linalg.norm(ratio) if norm > 0 else 1.0
            return rate * trust * ratio

        return step

    return step_of


def muon(momentum, beta_1, beta_2, epsilon):
    """Jordan et al. (2024) with the size of Liu et al. (2025), equation 4; else Adam."""

    def step_of(path, weight):
        if not path.endswith("/kernel"):
            return adam(beta_1, beta_2, epsilon)(path, weight)
        total = np.zeros_like(weight)

        def step(gradient, weight, rate, number):
            total[...] = momentum * total + gradient
            matrix = gradient + momentum * total
            is_tall = matrix.shape[0] > matrix.shape[1]
            matrix = matrix.T if is_tall else matrix
            matrix = matrix / np.linalg.norm(matrix)
            for _ in range(5):
                square = matrix @ matrix.T
                matrix = 3.4445 * matrix + (-4.7750 * square + 2.0315 * square @ square) @ matrix
            matrix = matrix.T if is_tall else matrix
            return rate * 0.2 * np.sqrt(max(weight.shape)) * matrix

        return step

    return step_of
