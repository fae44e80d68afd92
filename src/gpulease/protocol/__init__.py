"""PURE: what client and broker say to each other, and how that is written as bytes."""
