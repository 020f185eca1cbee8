"""The process that gives slots to jobs: the ResourceManager."""

__all__ = ["driver", "endpoint"]
