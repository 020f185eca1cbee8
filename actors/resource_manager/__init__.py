"""The ResourceManager: the process that gives slots to jobs."""

__all__ = ["driver", "endpoint", "ray_driver"]
