"""Tests of txl_tf; the folders mirror the package."""
