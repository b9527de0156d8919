"""Where commands and files really happen."""
