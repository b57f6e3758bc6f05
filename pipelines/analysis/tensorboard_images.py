"""Figures for TensorBoard."""

from collections.abc import Mapping

from txl_tf.writable_folder import WritableFolder


def write_images(folder: WritableFolder, run: str, step: int, images: Mapping[str, bytes]) -> None:
    """Writes figures as images of a TensorBoard run of their own.

    Args:
        folder: `WritableFolder` that TensorBoard shows.
        run: str. Name of the run in it.
        step: int. Training steps of the weights.
        images: contents of PNG files, by tag.
    """
    import tensorflow as tf

    with folder.subfolder(run).reached_by_path() as path:
        writer = tf.summary.create_file_writer(path)
        with writer.as_default():
            for tag, content in images.items():
                tf.summary.image(tag, tf.image.decode_png(content, channels=3)[None], step=step)
        writer.close()
