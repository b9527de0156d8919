"""Who thinks, in which role."""
