"""Execution plan of an engine, chosen by device."""

import dataclasses
from typing import Any, Literal

from txl_tf.config.model import ModelConfig, RecurrentConfig
from txl_tf.tpu_kernels.attention_plan import places_of
from txl_tf.tpu_kernels.kernel_choice import AttentionKernel

# Products of this many rows take the least time per token; more rows make large scores.
_TOKENS_PER_READ = 256
# Head by head, scores are small, and the copies of memory in each read dominate.
_TOKENS_PER_READ_PER_HEAD = 1024
# Scores of this many queries of a head fit in a cache, and their products are large enough.
_TOKENS_TOGETHER_PER_HEAD = 256
# On a TPU no scores are written, and a read moves all weights and copies memory.
_TOKENS_PER_READ_ON_CHIP = 1024
# On a CPU, XLA fuses the elementwise work that dominates narrow models, but its products are
# slower.
_WIDEST_COMPILED_ON_CPU = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionPlan:
    """Kernel of an engine, the tokens it reads at once, and the parts to compile.

    An engine compiles nothing itself: its caller does so by the plan.
    """

    kernel: Literal["batched", "per_head", "on_chip", "model"]
    """Computation of attention; `"model"` calls the model itself."""
    attention_kernel: AttentionKernel | None = None
    """Settings of the kernel `"on_chip"`."""
    tokens_per_read: int = 0
    """Tokens of all rows to read at once; at least a segment is read."""
    tokens_together: int | None = None
    """Tokens that attend together; None means all."""
    compile_read: bool
    """True if XLA compiles the reading of segments."""
    compile_step: bool = False
    """True if XLA compiles the reading of single tokens."""
    splits_products: bool = True
    """True if the product of a single token is computed in two halves, for two threads."""

    @classmethod
    def choose(
        cls,
        config: ModelConfig | RecurrentConfig,
        *,
        device: str,
        num_rows: int | None = None,
        keeps_states: bool = False,
        writes: bool = False,
        is_distributed: bool = False,
        jit_compile: bool | None = None,
        attention_kernel: AttentionKernel | None = None,
    ) -> "ExecutionPlan":
        """Returns the fastest plan for a device.

        `num_rows` are the rows read side by side, `None` if unknown. `keeps_states` is true if
        memory is the model's own, `writes` if tokens are also read one at a time, and
        `is_distributed` under a `tf.distribute.Strategy`, which compiles for itself.
        `jit_compile` overrides the choice.
        """
        on_cpu = device == "CPU" and not is_distributed
        is_per_head = (
            on_cpu and num_rows == 1 and not keeps_states and not writes and not jit_compile
        )
        compiles = not on_cpu or config.hidden_dim <= _WIDEST_COMPILED_ON_CPU
        compiles = compiles if jit_compile is None else jit_compile
        compiles = compiles and not is_distributed
        if keeps_states:
            return cls(kernel="model", compile_read=compiles)
        if attention_kernel is not None and not writes:
            return cls(
                kernel="on_chip",
                attention_kernel=attention_kernel,
                tokens_per_read=_TOKENS_PER_READ_ON_CHIP,
                compile_read=compiles,
            )
        if is_per_head:
            return cls(
                kernel="per_head",
                tokens_per_read=_TOKENS_PER_READ_PER_HEAD,
                tokens_together=_TOKENS_TOGETHER_PER_HEAD,
                compile_read=False,
            )
        return cls(
            kernel="batched",
            tokens_per_read=_TOKENS_PER_READ,
            compile_read=compiles,
            compile_step=not is_distributed if jit_compile is None else jit_compile,
            splits_products=device == "CPU",
        )

    def num_places(self, memory_length: int) -> int:
        """Returns the number of positions in a memory that remembers `memory_length` tokens."""
        return places_of(memory_length) if self.kernel == "on_chip" else memory_length

    def segments_per_read(self, num_rows: int, segment_length: int) -> int:
        """Returns how many segments of a row are best read at once, at least 1."""
        return _num_segments(self.tokens_per_read, num_rows, segment_length)


def tokens_on_chip(num_rows: int, segment_length: int) -> int:
    """Returns how many tokens of a row the kernel `"on_chip"` reads at once, as whole segments."""
    return segment_length * _num_segments(_TOKENS_PER_READ_ON_CHIP, num_rows, segment_length)


def _num_segments(tokens_per_read: int, num_rows: int, segment_length: int) -> int:
    return max(1, tokens_per_read // (num_rows * segment_length))


def device_of(model: Any) -> str:
    """Returns the kind of device of a Keras model's weights: `"CPU"`, `"GPU"` or `"TPU"`."""
    name = str(getattr(model.weights[0].value, "device", "")).upper()
    if "TPU" in name:
        return "TPU"
    return "GPU" if "GPU" in name or "CUDA" in name else "CPU"
