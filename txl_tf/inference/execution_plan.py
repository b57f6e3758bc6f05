"""Plan by device: the way to attend, the tokens read at once, and the parts to compile."""

import dataclasses
from typing import Any, Literal

from txl_tf.config.model import ModelConfig, RecurrentConfig
from txl_tf.imports import is_on_jax
from txl_tf.layers.attention.operators import AllHeads, AttentionOperator, HeadByHead
from txl_tf.tpu_kernels.attention_plan import AttentionKernel
from txl_tf.tpu_kernels.on_chip_attention import OnChipAttention

_ALL_HEADS = AllHeads()
# The number of tokens with the least time of products per token; more tokens make large scores.
_TOKENS_PER_READ = 256
# Head by head, scores are small, and a read spends most time on copies of memory.
_TOKENS_PER_READ_BY_HEAD = 1024
# On a TPU scores stay on the chip, and a read moves all weights and copies memory.
_TOKENS_PER_READ_ON_CHIP = 1024
# On a CPU, XLA fuses the elementwise work that dominates narrow models, but its products are
# slower.
_WIDEST_COMPILED_ON_CPU = 64
# Caches of a CPU may hold float32 weights and memory of fewer bytes. Then rounding gains nothing.
_FEWEST_ROUNDED_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionPlan:
    """Way in which an engine attends, the tokens that it reads at once, and the parts to compile.

    An engine compiles nothing itself: its caller compiles as the plan says.
    """

    operator: AttentionOperator = _ALL_HEADS
    tokens_per_read: int = 0
    """Tokens of all rows to read at once; at least one segment is read."""
    compile_read: bool
    """True if XLA compiles the reading of segments."""
    compile_step: bool = False
    """True if XLA compiles the reading of single tokens."""
    stacks_layers: bool = False
    """True if the reading of a single token may be a loop over layers, see `StackedSteps`."""
    rounds_steps: bool = False
    """True if that loop stores weights and memory in bfloat16, which halves their bytes. Sums stay
    float32."""

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

        `num_rows` rows are read together, `None` if unknown. `keeps_states` is true if memory is
        the model's own, `writes` if tokens are also read one at a time, and `is_distributed` under
        a `tf.distribute.Strategy`, which compiles for itself. `jit_compile` overrides whether XLA
        compiles, except on JAX, which always compiles. `memory_length` is 0 for models that are not
        float32. `storage_dtype="auto"` lets steps round. `attention_kernel` is the device's kernel
        for segments, which is not used if `writes` is true.
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
        # A matrix product reads the weights once for several rows, but it would copy its slice of
        # stacked weights. So for several rows only rounded weights are stacked.
        stacks_layers = bool(may_stack and (num_rows == 1 or rounds))
        return cls(
            tokens_per_read=_TOKENS_PER_READ,
            compile_read=compiles,
            compile_step=compiles_step,
            stacks_layers=stacks_layers,
            rounds_steps=stacks_layers and rounds,
        )

    def segments_per_read(self, num_rows: int, segment_length: int) -> int:
        """Returns how many segments of each row to read at once, at least 1."""
        return max(1, self.tokens_per_read // (num_rows * segment_length))


def _gains_by_rounding(config: ModelConfig, memory_length: int) -> bool:
    """True if a step reads more bytes than caches hold, and all sizes can be divided into pairs."""
    width = config.num_heads * config.head_dim
    layer = 2 * config.hidden_dim * (2 * width + config.intermediate_dim)
    num_bytes = 4 * config.num_layers * (layer + 2 * memory_length * width)
    return num_bytes >= _FEWEST_ROUNDED_BYTES and all(
        size % 2 == 0
        for size in (memory_length, config.hidden_dim, config.head_dim, config.intermediate_dim)
    )


def tokens_on_chip(num_rows: int, segment_length: int) -> int:
    """Returns how many tokens of a row `OnChipAttention` reads at once: whole segments."""
    return max(1, _TOKENS_PER_READ_ON_CHIP // (num_rows * segment_length)) * segment_length


def device_of(model: Any) -> str:
    """Returns the kind of device of a Keras model's weights: `"CPU"`, `"GPU"` or `"TPU"`."""
    name = str(getattr(model.weights[0].value, "device", "")).upper()
    if "TPU" in name:
        return "TPU"
    return "GPU" if "GPU" in name or "CUDA" in name else "CPU"
