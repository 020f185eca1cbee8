"""A stream program: its graph, and the chains that become tasks."""

__all__ = ["chain_builder", "chain_plan", "execution_target", "graph", "transformations"]
