"""Learning rates that fall from the head of a model to its embedding."""

import keras

from txl_tf.models.language_model import LanguageModel


def set_layer_rates(
    optimizer: keras.optimizers.Optimizer,
    model: LanguageModel,
    variables: list[keras.Variable],
    decay: float,
) -> None:
    """Multiplies the learning rate of each layer by `decay` for each layer above it.

    What is above the layers, the head of a task or the softmax, learns at the full
    rate, and the highest layer at `decay` times it. Low layers hold what is common to
    texts and change least (Howard and Ruder, 2018, section 3.2; XLNet fine-tunes so).
    Weight decay keeps the full rate.

    Args:
        optimizer: Keras optimizer, built with `variables`.
        model: `LanguageModel`.
        variables: all variables that are trained.
        decay: float in `(0, 1)`.
    """
    factors = layer_rates(model, decay)
    by_index = {
        optimizer._get_variable_index(variable): factors.get(variable.path, 1.0)
        for variable in variables
    }
    update_step = optimizer.update_step

    def scaled_update_step(
        gradient: object, variable: keras.Variable, learning_rate: object
    ) -> None:
        factor = by_index[optimizer._get_variable_index(variable)]
        update_step(gradient, variable, learning_rate * factor)

    # Keras has one rate for all variables, and a subclass of each optimizer would do no more.
    optimizer.update_step = scaled_update_step


def layer_rates(model: LanguageModel, decay: float) -> dict[str, float]:
    """Returns the factor of the learning rate by the path of each weight below the softmax."""
    layers = [model.embedding, *model.numbered_layers]
    return {
        variable.path: decay ** (len(layers) - height)
        for height, layer in enumerate(layers)
        for variable in layer.weights
    }
