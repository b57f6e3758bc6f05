"""The rooms of the code: which each may import, from the lowest up."""

# Rooms of `txl_tf`: each may import itself and the rooms named here.
LOWEST = {"errors", "imports"}
TENSORS = {"functional", "stateless_random", *LOWEST}
MODELS = {"config", "layers", "models", "storage", "tpu_kernels", *TENSORS}
ALLOWED = {
    "errors": set(),
    "imports": {"errors"},
    "storage": LOWEST,
    "config": {"storage", *LOWEST},
    "stateless_random": set(),
    "functional": {"stateless_random", *LOWEST},
    "tpu_kernels": {"config", *TENSORS},
    "layers": {"config", "tpu_kernels", *TENSORS},
    "samplers": {"config", *TENSORS},
    "models": MODELS,
    "inference": MODELS,
    # `evaluation` asks `distribution` for the chip, which decides whether attention is a kernel.
    "evaluation": {"data", "distribution", "inference", "tasks", *MODELS},
    "generation": {"inference", "samplers", *MODELS},
    "export": {"data", "generation", "inference", "model_folder", "samplers", *MODELS},
    "data": {"config", "storage", *LOWEST},
    "tasks": {"config", "data", "storage", *LOWEST},
    "distribution": {"config", "storage", *LOWEST},
    # The TensorBoard writer takes the result of an evaluation.
    "training": {"distribution", "evaluation", "tasks", *MODELS},
    "serving": {
        "causal_lm",
        "config",
        "data",
        "generation",
        "inference",
        "layers",
        "samplers",
        "storage",
        *LOWEST,
    },
    "convert": MODELS,
    "model_folder": {"data", "training", *MODELS},
    "tpu_compiler": {"distribution", "evaluation", "training", *MODELS},
    # The top: models with their tokenizers, from folders of every kind.
    "causal_lm": {
        "data",
        "evaluation",
        "generation",
        "inference",
        "model_folder",
        "samplers",
        "tasks",
        "training",
        *MODELS,
    },
    "harness": {"causal_lm", "data", "evaluation", "samplers", *LOWEST},
}
# Rooms of `pipelines`: each may import itself and the rooms named here.
ROOMS = {
    "shell": set(),
    "configs": {"shell"},
    "preparation": {"shell"},
    "run": {"configs", "shell"},
    "analysis": {"run", "shell"},
    "launch": set(),
    "jobs": {"analysis", "configs", "preparation", "run", "shell"},
    "command_line": {"jobs", "shell"},
}
# A job imports no other job, with two exceptions: `download` also converts, and `launch` installs
# the versions that `doctor` checks.
JOB_IMPORTS = {"download": "convert", "launch": "doctor"}
