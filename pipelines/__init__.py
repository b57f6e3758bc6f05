"""The jobs of the `txl` command, one module each.

Installed, the package is called `txl_tf_pipelines`, as other projects use the name `pipelines`. Its
modules therefore import each other by relative names.
"""
