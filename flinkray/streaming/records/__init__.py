"""The elements of streams: batches of records, their types and keys."""

__all__ = [
    "elements",
    "exact_numbers",
    "in_flight",
    "java_text",
    "json_text",
    "kept_batches",
    "key_sorter",
    "keying",
    "partitioners",
    "python_values",
    "row",
    "serialization",
    "sizes",
    "type_inference",
    "typeinfo",
    "widening",
]
