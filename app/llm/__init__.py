"""Asking a model anything."""
