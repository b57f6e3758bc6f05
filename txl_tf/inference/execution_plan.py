"""Plan by device: the way to attend, the tokens read at once, and the parts to compile."""

import dataclasses
from typing import Any, Literal

from txl_tf.config.model import ModelConfig, RecurrentConfig
from txl_tf.imports import is_on_jax
from txl_tf.layers.attention.operators import AllHeads, AttentionOperator, HeadByHead
from txl_tf.tpu_kernels.attention_plan import AttentionKernel
from txl_tf.tpu_kernels.on_chip_attention import OnChipAttention

_ALL_HEADS = AllHeads()
# Products of this many rows take the least time per token; more rows make large scores.
_TOKENS_PER_READ = 256
# Head by head, scores are small, and the copies of memory in each read dominate.
_TOKENS_PER_READ_BY_HEAD = 1024
# On a TPU no scores are written, and a read moves all weights and copies memory.
_TOKENS_PER_READ_ON_CHIP = 1024
# On a CPU, XLA fuses the elementwise work that dominates narrow models, but its products are
# slower.
_WIDEST_COMPILED_ON_CPU = 64
# Caches of a CPU may hold fewer bytes of float32 weights and memory; rounding gains nothing there.
_FEWEST_ROUNDED_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionPlan:
    """Way to attend of an engine, the tokens it reads at once, and the parts to compile.

    An engine compiles nothing itself: its caller does so by the plan.
    """

    operator: AttentionOperator = _ALL_HEADS
    tokens_per_read: int = 0
    """Tokens of all rows to read at once; at least a segment is read."""
    compile_read: bool
    """True if XLA compiles the reading of segments."""
    compile_step: bool = False
    """True if XLA compiles the reading of single tokens."""
    stacks_layers: bool = False
    """True if the reading of a single token may be a loop over layers, see `StackedSteps`."""
    rounds_steps: bool = False
    """True if memory between steps, and weights in that loop, are in bfloat16, half the bytes. Sums
    stay float32."""

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
        memory_length: int = 0,
        storage_dtype: Literal["auto", "float32"] = "float32",
    ) -> "ExecutionPlan":
        """Returns the fastest plan for a device.

        `num_rows` are the rows read side by side, `None` if unknown. `keeps_states` is true if
        memory is the model's own, `writes` if tokens are also read one at a time, and
        `is_distributed` under a `tf.distribute.Strategy`, which compiles for itself.
        `jit_compile` overrides the choice. `storage_dtype="auto"` lets steps round.
        """
        if is_on_jax():
            jit_compile = True  # as every program of JAX
        on_cpu = device == "CPU" and not is_distributed
        compiles = not on_cpu or config.hidden_dim <= _WIDEST_COMPILED_ON_CPU
        compiles = (compiles if jit_compile is None else jit_compile) and not is_distributed
        if keeps_states:
            return cls(compile_read=compiles)
        if attention_kernel is not None and not writes:
            return cls(
                operator=OnChipAttention(attention_kernel),
                tokens_per_read=_TOKENS_PER_READ_ON_CHIP,
                compile_read=compiles,
            )
        if on_cpu and num_rows == 1 and not writes and not jit_compile:
            return cls(
                operator=HeadByHead(),
                tokens_per_read=_TOKENS_PER_READ_BY_HEAD,
                compile_read=False,
            )
        compiles_step = not is_distributed if jit_compile is None else jit_compile
        may_stack = on_cpu and num_rows and writes and compiles_step and memory_length > 0
        rounds = storage_dtype == "auto" and _gains_by_rounding(config, memory_length)
        # Several rows share one reading of the weights, but their products would copy a slice of
        # stacked ones. So only rounded weights are stacked for them.
        stacks_layers = bool(may_stack and (num_rows == 1 or rounds))
        return cls(
            tokens_per_read=_TOKENS_PER_READ,
            compile_read=compiles,
            compile_step=compiles_step,
            stacks_layers=stacks_layers,
            rounds_steps=stacks_layers and rounds,
        )

    def segments_per_read(self, num_rows: int, segment_length: int) -> int:
        """Returns how many segments of a row are best read at once, at least 1."""
        return max(1, self.tokens_per_read // (num_rows * segment_length))


def _gains_by_rounding(config: ModelConfig, memory_length: int) -> bool:
    """True if a step reads more than caches hold, in sizes that the products need."""
    width = config.num_heads * config.head_dim
    sizes = (memory_length, config.hidden_dim, config.head_dim, config.intermediate_dim)
    layer = 2 * config.hidden_dim * (2 * width + config.intermediate_dim)
    num_bytes = 4 * config.num_layers * (layer + 2 * memory_length * width)
    return num_bytes >= _FEWEST_ROUNDED_BYTES and all(size % 2 == 0 for size in sizes)


def tokens_on_chip(num_rows: int, segment_length: int) -> int:
    """Returns how many tokens of a row `OnChipAttention` reads at once, as whole segments."""
    return max(1, _TOKENS_PER_READ_ON_CHIP // (num_rows * segment_length)) * segment_length


def device_of(model: Any) -> str:
    """Returns the kind of device of a Keras model's weights: `"CPU"`, `"GPU"` or `"TPU"`."""
    name = str(getattr(model.weights[0].value, "device", "")).upper()
    if "TPU" in name:
        return "TPU"
    return "GPU" if "GPU" in name or "CUDA" in name else "CPU"
