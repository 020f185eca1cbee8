"""The RPC service on Ray."""
