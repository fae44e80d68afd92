"""Root's process of a system broker: it starts whatever needs a user."""
