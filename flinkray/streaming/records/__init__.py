"""What flows: batches of records, their types and keys."""

__all__ = ["elements", "key_sorter", "keying", "partitioners", "row", "type_inference", "typeinfo"]
