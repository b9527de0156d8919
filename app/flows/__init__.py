"""Who does what next."""
