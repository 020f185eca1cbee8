"""The execution graph: subtasks, their attempts, results, and failover."""
