"""The elements of streams: batches of records, their types and keys."""

__all__ = [
    "arrow_bytes",
    "elements",
    "in_flight",
    "json_text",
    "key_sorter",
    "keying",
    "number_text",
    "partitioners",
    "python_values",
    "row",
    "serialization",
    "sizes",
    "type_inference",
    "typeinfo",
    "widening",
]
