"""Killing and starving real processes, and going on afterwards."""
