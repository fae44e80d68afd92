"""Gives jobs to agents."""

from sge import module

Master = module("master").Master
