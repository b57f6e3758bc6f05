"""Muon whose weight decay needs no exchange between replicas."""

import keras


@keras.saving.register_keras_serializable(package="txl_tf")
class Muon(keras.optimizers.Muon):
    """Keras' Muon with the weight decay that Keras' other optimizers have.

    Keras' own assigns the decayed weights in every replica, and the mean over
    the replicas, which are all the same, becomes the weight: an all-reduce of
    all weights that changes nothing. For that, one decay is for all
    variables, whichever way their steps are computed.

    Args:
        **kwargs: arguments of `keras.optimizers.Muon`, without
            `adam_weight_decay`.
    """

    def _apply_weight_decay(self, variables):
        keras.optimizers.Optimizer._apply_weight_decay(self, variables)
