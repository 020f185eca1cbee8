"""An actor-model framework on Ray that mirrors Flink's RPC, and a Flink-style runtime on it."""

__version__ = "0.1.0"
