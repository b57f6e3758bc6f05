"""Configurations: frozen dataclasses that check their values."""
