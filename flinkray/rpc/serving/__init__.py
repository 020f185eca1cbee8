"""The called side: requests become handlers of endpoints."""
