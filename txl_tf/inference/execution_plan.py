"""How an engine reads, chosen by device."""

import dataclasses
from typing import Any, Literal

from txl_tf.config.model import ModelConfig, RecurrentConfig
from txl_tf.tpu_kernels.inference_plan import places_of
from txl_tf.tpu_kernels.kernel_choice import AttentionKernel

# Products of so many rows take the least time per token; more of them make large scores.
_TOKENS_PER_READ = 256
# Head by head the scores are small, and what a read copies of memory counts.
_TOKENS_PER_READ_PER_HEAD = 1024
# Scores of so many queries of a head stay in a cache, and their products are large enough.
_TOKENS_TOGETHER_PER_HEAD = 256
# On a TPU no score is written, and a read moves all weights and copies memory.
_TOKENS_PER_READ_ON_CHIP = 1024
# On a CPU, XLA fuses what narrow models spend their time on, and has slower products.
_WIDEST_COMPILED_ON_CPU = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionPlan:
    """The kernel of an engine, the tokens it reads at once, and what is compiled.

    An engine compiles nothing: its caller does, as the plan says.
    """

    kernel: Literal["batched", "per_head", "on_chip", "model"]
    """How attention is computed; `"model"` calls the model itself."""
    attention_kernel: AttentionKernel | None = None
    """How the kernel `"on_chip"` is made."""
    tokens_per_read: int = 0
    """Tokens of all rows that are best read at once; at least a segment is."""
    tokens_together: int | None = None
    """Tokens of them that attend together; None is all of them."""
    compile_read: bool
    """Whether XLA compiles the reading of segments."""
    compile_step: bool = False
    """Whether XLA compiles the reading of single tokens."""

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
        """The fastest way on a device.

        Args:
            config: configuration of the model.
            device: str. `"CPU"`, `"GPU"` or `"TPU"`.
            num_rows: optional int. Rows that are read side by side; `None` where
                it is open.
            keeps_states: bool. Whether memory is that of the model itself.
            writes: bool. Whether tokens are also read one at a time.
            is_distributed: bool. Whether a `tf.distribute.Strategy` runs it; it
                compiles by itself.
            jit_compile: optional bool. Whether XLA compiles, whatever is faster.
            attention_kernel: optional `AttentionKernel`, where segments are to be
                read by it.

        Returns:
            An `ExecutionPlan`.
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
        )

    def num_places(self, memory_length: int) -> int:
        """How many places a memory has for the tokens that it remembers."""
        return places_of(memory_length) if self.kernel == "on_chip" else memory_length

    def segments_per_read(self, num_rows: int, segment_length: int) -> int:
        """How many segments of a row are best read at once, 1 or more."""
        return _num_segments(self.tokens_per_read, num_rows, segment_length)


def tokens_on_chip(num_rows: int, segment_length: int) -> int:
    """How many tokens of a row the kernel `"on_chip"` reads at once, as whole segments."""
    return segment_length * _num_segments(_TOKENS_PER_READ_ON_CHIP, num_rows, segment_length)


def _num_segments(tokens_per_read: int, num_rows: int, segment_length: int) -> int:
    return max(1, tokens_per_read // (num_rows * segment_length))


def device_of(model: Any) -> str:
    """The kind of device of a Keras model's weights: `"CPU"`, `"GPU"` or `"TPU"`."""
    name = str(getattr(model.weights[0].value, "device", "")).upper()
    if "TPU" in name:
        return "TPU"
    return "GPU" if "GPU" in name or "CUDA" in name else "CPU"
