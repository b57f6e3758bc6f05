"""The jobs of the `txl` command, one module each.

Installed, the package is called `txl_tf_pipelines`, for `pipelines` is a name that others use too:
so its modules import each other by relative names.
"""
