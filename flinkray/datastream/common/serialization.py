"""Conversion of single values to bytes and back: a module of PyFlink's.

>>> Encoder.simple_string_encoder()
Encoder(file_format='text')
>>> schema = SimpleStringSchema("ISO-8859-1")
>>> schema.serialize("naïve"), schema.deserialize(b"na\\xefve")
(b'na\\xefve', 'naïve')
"""

from flinkray.streaming.records.serialization import (
    ByteArraySchema,
    DeserializationSchema,
    Encoder,
    SerializationSchema,
    SimpleStringSchema,
)

__all__ = [
    "ByteArraySchema",
    "DeserializationSchema",
    "Encoder",
    "SerializationSchema",
    "SimpleStringSchema",
]
