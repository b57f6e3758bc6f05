"""Presets: three small models for two CPU cores, and the published models.

The small models are for users' own text. They read bytes;
`preset(name).replace(vocabulary_size=V)` reads the ids of another tokenizer.

Published models have the sizes, initialisation, segment and memory lengths of their training
scripts. Evaluation uses longer memories, see the named experiments. Figures are of the test
split. The documents of Dai et al. (2019) differ: "OpenReview" is the version submitted to ICLR
2019, "README" belongs to the official code.
"""

from collections.abc import Callable

from txl_tf.config.model import ModelConfig
from txl_tf.errors import did_you_mean


def preset(name: str) -> ModelConfig:
    """Returns the configuration of a model by its name.

    Args:
        name: str. A key of `PRESETS`.

    Returns:
        A `ModelConfig`.

    Raises:
        ValueError: If the name is unknown.

    Example:
    ```python
    config = txl_tf.preset("enwik8_base").replace(memory_length=2100)
    ```
    """
    if name not in PRESETS:
        raise ValueError(
            f"`name` must be one of {', '.join(sorted(PRESETS))}.{did_you_mean(name, PRESETS)} "
            f"Received: {name}"
        )
    return PRESETS[name]()


def quickstart() -> ModelConfig:
    """Bytes, 3 layers, 1.5M parameters: trains in minutes on two CPU cores."""
    return ModelConfig(
        vocabulary_size=256,
        num_layers=3,
        hidden_dim=192,
        num_heads=3,
        head_dim=64,
        intermediate_dim=768,
        segment_length=32,
        memory_length=32,
        pre_norm=True,
        dropout=0.0,
        initializer_stddev=0.06,
    )


def hour() -> ModelConfig:
    """Bytes, 4 layers, 2.0M parameters: trains in an hour on two CPU cores."""
    return quickstart().replace(num_layers=4, segment_length=48, memory_length=144)


def night() -> ModelConfig:
    """Bytes, 6 layers, 6.6M parameters: about a night of training on two CPU cores."""
    return quickstart().replace(
        num_layers=6,
        hidden_dim=288,
        num_heads=6,
        head_dim=48,
        intermediate_dim=1152,
        segment_length=64,
        memory_length=128,
        initializer_stddev=0.05,
    )


def enwik8_base() -> ModelConfig:
    """Bytes of Wikipedia, 12 layers, 41M parameters: 1.06 bits per character (OpenReview)."""
    return ModelConfig(
        vocabulary_size=204,
        num_layers=12,
        hidden_dim=512,
        num_heads=8,
        head_dim=64,
        intermediate_dim=2048,
        segment_length=512,
        memory_length=512,
        dropout=0.1,
        share_attention_biases=True,
    )


def enwik8_18_layers() -> ModelConfig:
    """Bytes of Wikipedia, 18 layers, 88M parameters: 1.03 bits per character (OpenReview).

    Dai et al. (2019) publish depth and parameters of this model, but no other
    size: the widths here were chosen to match the number of parameters.
    """
    return enwik8_base().replace(num_layers=18, hidden_dim=640, num_heads=10, intermediate_dim=2208)


def enwik8_large() -> ModelConfig:
    """Bytes of Wikipedia, 24 layers, 277M parameters: 0.99 bits per character (OpenReview).

    The paper states an attention length of 784 in training; the official script
    uses 768, as does this preset.
    """
    return enwik8_base().replace(
        num_layers=24,
        hidden_dim=1024,
        head_dim=128,
        intermediate_dim=3072,
        segment_length=768,
        memory_length=768,
        dropout=0.15,
        attention_dropout=0.15,
    )


def text8_base() -> ModelConfig:
    """Letters and spaces of Wikipedia, 12 layers; no result was published."""
    return enwik8_base().replace(vocabulary_size=27)


def text8_large() -> ModelConfig:
    """Letters and spaces of Wikipedia, 24 layers, 277M parameters: 1.08 bits per character.

    The figure is in the README, not in the OpenReview version.
    """
    return enwik8_large().replace(vocabulary_size=27)


def wikitext103_base() -> ModelConfig:
    """Words of Wikipedia, 16 layers, 151M parameters: perplexity 24.0 (OpenReview)."""
    return ModelConfig(
        vocabulary_size=267735,
        cutoffs=(20000, 40000, 200000),
        num_layers=16,
        hidden_dim=410,
        num_heads=10,
        head_dim=41,
        intermediate_dim=2100,
        segment_length=150,
        memory_length=150,
        dropout=0.1,
    )


def wikitext103_large() -> ModelConfig:
    """Words of Wikipedia, 18 layers, 285M parameters: perplexity 18.9 or 18.3.

    18.9 is in the OpenReview version, 18.3 in the README.
    Dai et al. (2019) count 257M, but their script creates 285,205,322 parameters;
    with attention biases shared by all layers there would be 285,170,506.
    """
    return wikitext103_base().replace(
        division_factor=4,
        share_tail_projections=True,
        num_layers=18,
        hidden_dim=1024,
        num_heads=16,
        head_dim=64,
        intermediate_dim=4096,
        segment_length=384,
        memory_length=384,
        dropout=0.2,
        attention_dropout=0.2,
        initializer_stddev=0.005,
        # The original TPU program drew projections like all other weights.
        projection_stddev=0.005,
    )


def lm1b_base() -> ModelConfig:
    """Sentences of news, 18 layers, 356M parameters: perplexity 23.5 (OpenReview).

    No document states the depth, which is taken from the published script. Dai et al.
    (2019) count 0.46B parameters; the script creates 355.7M.
    """
    return ModelConfig(
        vocabulary_size=793470,
        cutoffs=(60000, 100000, 640000),
        division_factor=4,
        project_same_dim=False,
        num_layers=18,
        hidden_dim=1024,
        num_heads=8,
        head_dim=128,
        intermediate_dim=4096,
        segment_length=256,
        memory_length=256,
        dropout=0.1,
    )


def lm1b_large() -> ModelConfig:
    """Sentences of news, 24 layers, 838M parameters: perplexity 21.8 (README)."""
    return lm1b_base().replace(
        num_layers=24,
        hidden_dim=1280,
        num_heads=16,
        head_dim=80,
        intermediate_dim=8192,
        segment_length=32,
        memory_length=32,
        dropout=0.05,
        attention_dropout=0.05,
        initializer_stddev=0.005,
        # The original TPU program drew projections like all other weights.
        projection_stddev=0.005,
    )


def penn_treebank() -> ModelConfig:
    """Words of newspapers, 24M parameters: perplexity 54.52 (OpenReview, Table 3).

    Dai et al. (2019) publish the number of parameters and the use of
    variational dropout, but neither sizes nor rates: these were chosen here.
    """
    return ModelConfig(
        vocabulary_size=10000,
        num_layers=12,
        hidden_dim=400,
        num_heads=10,
        head_dim=40,
        intermediate_dim=1100,
        segment_length=70,
        memory_length=70,
        dropout=0.4,
        attention_dropout=0.2,
        variational_dropout=True,
    )


def nvidia_wikitext103_base() -> ModelConfig:
    """NVIDIA's smaller model for words of Wikipedia, 192M parameters: perplexity 23.24.

    Mean over seeds, from the README of NVIDIA DeepLearningExamples.
    """
    return wikitext103_base().replace(
        # With three tail clusters, the width of the head is a multiple of 8.
        cutoffs=(19997, 39997, 199997),
        hidden_dim=512,
        num_heads=8,
        head_dim=64,
        intermediate_dim=2048,
        segment_length=192,
        memory_length=192,
        share_attention_biases=True,
        layer_norm_epsilon=1e-5,
    )


def nvidia_wikitext103_large() -> ModelConfig:
    """NVIDIA's larger model for words of Wikipedia, 285M parameters: perplexity 18.17.

    Mean over seeds, from the README of NVIDIA DeepLearningExamples.
    """
    return wikitext103_large().replace(
        cutoffs=(19997, 39997, 199997),
        share_attention_biases=True,
        layer_norm_epsilon=1e-5,
        projection_stddev=0.01,
    )


_MODELS = (
    *(quickstart, hour, night, enwik8_18_layers, enwik8_base, enwik8_large, lm1b_base, lm1b_large),
    *(nvidia_wikitext103_base, nvidia_wikitext103_large, penn_treebank, text8_base, text8_large),
    *(wikitext103_base, wikitext103_large),
)
PRESETS: dict[str, Callable[[], ModelConfig]] = {
    **{model.__name__: model for model in _MODELS},
    "enwik8_hour": hour,
}
