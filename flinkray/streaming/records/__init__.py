"""What flows: batches of records, their types and keys."""
