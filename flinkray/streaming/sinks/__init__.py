"""Sinks: the two-phase interface, and the ones that come with the package."""
