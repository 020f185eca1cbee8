"""The called side: requests become handlers of endpoints."""

__all__ = ["base_service"]
