"""Tests of `txl_tf` and `pipelines`; the folders mirror those of the source.

`.github/CONTRIBUTING.md` has a table of the modules that tests share.
"""
