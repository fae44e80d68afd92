"""One agent, as the master sees it."""

from sge import module

Agent = module("master").Agent
