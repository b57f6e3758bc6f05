"""Frozen, validated configurations."""
