"""What flows: batches of records, their types and keys."""

__all__ = [
    "elements",
    "in_flight",
    "java_text",
    "kept_batches",
    "key_sorter",
    "keying",
    "partitioners",
    "python_values",
    "row",
    "sizes",
    "type_inference",
    "typeinfo",
]
