"""Tests of `app/schema/`: the vocabulary as values, without any part that uses it."""
