"""Conversion of a JSON schema to a row type (Flink's JsonRowSchemaConverter)."""

from __future__ import annotations

import json
from typing import Any

from flinkray.datastream.formats.field_text import BYTES
from flinkray.streaming.records.typeinfo import TypeInformation, Types

_UNSUPPORTED = ("allOf", "anyOf", "not", "extends", "disallow")


def type_of_json_schema(json_schema: str) -> TypeInformation:
    """Return the row type that a JSON schema describes.

    Raises:
        ValueError: the text is no JSON, or describes values that have no single type.
    """
    try:
        root = json.loads(json_schema)
    except ValueError as error:
        raise ValueError(f"invalid JSON schema: {error}") from error
    kind = _Converter(root).type_of("<root>", root, ())
    if kind is None:
        raise ValueError("the JSON schema allows nothing but null")
    return kind


class _Converter:
    def __init__(self, root: Any) -> None:
        self._root = root

    def type_of(self, location: str, node: Any, through: tuple[str, ...]) -> TypeInformation | None:
        """Return the type of a schema node.

        None: null. *through*: the references that led to the node.
        """
        if not isinstance(node, dict):
            raise ValueError(f"an object is expected in node: {location}")
        used = [word for word in _UNSUPPORTED if word in node]
        if used:
            raise ValueError(f"union types and extending ({used[0]}) are not supported: {location}")
        reference = node.get("$ref")
        if isinstance(reference, str) and not {"type", "oneOf"} & node.keys():
            if reference in through:
                raise ValueError(f"cyclic references are not supported: {reference}")
            return self.type_of(reference, self._resolved(reference), (*through, reference))
        found: list[TypeInformation | None] = []
        given = node.get("type", [])
        for name in given if isinstance(given, list) else [given]:
            found.append(self._named(name, location, node, through))
        for place, one in enumerate(node.get("oneOf", [])):
            found.append(self.type_of(f"{location}/oneOf[{place}]", one, through))
        kinds = {kind for kind in found if kind is not None}
        if not found:
            raise ValueError(f"no type could be found in node: {location}")
        if len(kinds) > 1:
            raise ValueError(
                f"union types with more than just a null type are not supported: {location}"
            )
        return next(iter(kinds), None)

    def _resolved(self, reference: str) -> Any:
        if not reference.startswith("#"):
            raise ValueError(f"only references in the same document are supported: {reference}")
        node = self._root
        for part in reference[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, dict) or part not in node:
                raise ValueError(f"could not find reference: {reference}")
            node = node[part]
        return node

    def _named(
        self, name: Any, location: str, node: dict[str, Any], through: tuple[str, ...]
    ) -> TypeInformation | None:
        if name == "null":
            return None
        if name == "boolean":
            return Types.BOOLEAN()
        if name in ("number", "integer"):
            return Types.BIG_DEC()
        if name == "string":
            return self._text(location, node)
        if name == "object":
            return self._object(location, node, through)
        if name == "array":
            return self._array(location, node, through)
        raise ValueError(f"unsupported type {name!r} in node: {location}")

    @staticmethod
    def _text(location: str, node: dict[str, Any]) -> TypeInformation:
        if "format" in node:
            formats = {
                "date": Types.SQL_DATE(),
                "time": Types.SQL_TIME(),
                "date-time": Types.SQL_TIMESTAMP(),
            }
            return formats.get(node["format"], Types.STRING())
        if "contentEncoding" in node:
            if node["contentEncoding"] != "base64":
                raise ValueError(
                    f"invalid encoding {node['contentEncoding']!r} in node: {location}"
                )
            return BYTES
        return Types.STRING()

    def _object(
        self, location: str, node: dict[str, Any], through: tuple[str, ...]
    ) -> TypeInformation:
        if node.get("additionalProperties") is True:
            raise ValueError(f"an object must not allow additional properties in node: {location}")
        fields = {
            name: self._field(f"{location}/{name}", child, through)
            for name, child in node.get("properties", {}).items()
        }
        return Types.ROW_NAMED(list(fields), list(fields.values()))

    def _array(
        self, location: str, node: dict[str, Any], through: tuple[str, ...]
    ) -> TypeInformation:
        items = node.get("items")
        if isinstance(items, dict):
            return Types.OBJECT_ARRAY(self._field(f"{location}/items", items, through))
        raise ValueError(f"arrays must specify an 'items' property of one type in node: {location}")

    def _field(self, location: str, node: Any, through: tuple[str, ...]) -> TypeInformation:
        kind = self.type_of(location, node, through)
        if kind is None:
            raise ValueError(f"nothing but null is allowed in node: {location}")
        return kind
