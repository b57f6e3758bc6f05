"""Tests of the data of fine-tuning."""
