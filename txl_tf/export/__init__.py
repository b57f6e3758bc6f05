"""Exports trained models for serving."""

from txl_tf.export.saved_model import export_saved_model
from txl_tf.export.served_model import ExportOptions
from txl_tf.export.version_folder import next_version

__all__ = ["ExportOptions", "export_saved_model", "next_version"]
