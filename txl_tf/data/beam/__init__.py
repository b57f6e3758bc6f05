"""Preparation as an Apache Beam pipeline, for corpora that one machine is too small for."""
