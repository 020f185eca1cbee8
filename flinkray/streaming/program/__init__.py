"""A stream program: its graph, and the chains that become tasks."""
