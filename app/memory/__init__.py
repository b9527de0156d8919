"""What an agent remembers."""
