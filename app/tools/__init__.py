"""What an agent can do."""
