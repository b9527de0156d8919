"""Dragoman: a task goes in, models and tools work on it, a checked answer comes out."""

__version__ = "0.1.0"
