"""Windows: assigners, triggers, evictors and the operators that use them."""
