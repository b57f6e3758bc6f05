"""Figures for TensorBoard."""

import os
from collections.abc import Mapping


def write_images(folder: str, run: str, step: int, images: Mapping[str, bytes]) -> None:
    """Writes figures as images of a TensorBoard run of their own.

    Args:
        folder: str. Folder that TensorBoard shows.
        run: str. Name of the run in it.
        step: int. Training steps of the weights.
        images: contents of PNG files, by tag.
    """
    import tensorflow as tf

    writer = tf.summary.create_file_writer(os.path.join(folder, run))
    with writer.as_default():
        for tag, content in images.items():
            tf.summary.image(tag, tf.image.decode_png(content, channels=3)[None], step=step)
    writer.close()
