"""LAMB with a limit to the norm of the weights."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="txl_tf")
class Lamb(keras.optimizers.Lamb):
    """Keras' LAMB, with the norm of each variable limited in the trust ratio.

    Steps are proportional to the norm of a variable, so a large table takes
    large ones. The limit is the upper bound of the paper's scaling function,
    which Keras leaves out and NVIDIA sets to 10.

    Otherwise it is as in Keras, which differs from Algorithm 2 of the paper in
    that weight decay is not part of the trust ratio: before the step, weights
    shrink by the learning rate times `weight_decay`. Both means are corrected
    for their start from zero. The trust ratio cancels that correction but for
    `epsilon`, except while a variable is all zeros, as new biases are.

    Args:
        max_weight_norm: optional float. The limit; None: none.
        **kwargs: arguments of `keras.optimizers.Lamb`.

    References:
     - [You et al., 2020](https://arxiv.org/abs/1904.00962)
    """

    def __init__(self, max_weight_norm=None, **kwargs):
        super().__init__(**kwargs)
        self.max_weight_norm = max_weight_norm

    def update_step(self, gradient, variable, learning_rate):
        """Changes one variable and its two means."""
        if self.max_weight_norm is not None:
            norm = ops.sqrt(ops.sum(ops.square(variable)))
            # Keras multiplies the step by the norm, so this leaves the limit of it. Written as a
            # quotient because TensorFlow folds a constant numerator into other factors, not the
            # same way on every replica, whose weights then drift apart; a test guards this.
            learning_rate = learning_rate / ops.maximum(norm / self.max_weight_norm, 1.0)
        super().update_step(gradient, variable, learning_rate)

    def get_config(self):
        return {**super().get_config(), "max_weight_norm": self.max_weight_norm}
