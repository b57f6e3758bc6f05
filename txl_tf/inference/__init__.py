"""Reading and writing with weights that do not change."""
