"""A small model inside the product: which models there are, how their files come, and the server that runs them."""
