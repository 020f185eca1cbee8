"""Schemas of KubeRay's RayCluster and RayJob, as tests/launch has them, out of a clone of it.

    python -m tools.kuberay_schemas CLONE v1.7.0 > tests/launch/kuberay_schemas.json

What needs a cluster to be checked is left out (rules in CEL, how lists are merged), and so are
descriptions and the status. Unknown fields are refused, as ``kubectl --validate=strict`` does.
Parts that are there several times, a pod's template above all, are one definition.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from typing import Any

import yaml

CRDS = "ray-operator/config/crd/bases/ray.io_{}.yaml"
KINDS = {"RayCluster": "rayclusters", "RayJob": "rayjobs"}
VERSION = "v1"
KEPT = ("type", "enum", "pattern", "format", "required", "nullable", "anyOf")
BOUNDS = ("minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength")
SHORTEST = 200
"""Characters of a part that becomes a definition, if it is there twice."""


def pruned(schema: dict[str, Any]) -> dict[str, Any]:
    """JSON schema of the same, without what only Kubernetes reads."""
    kept = {key: schema[key] for key in (*KEPT, *BOUNDS) if key in schema}
    if "properties" in schema:
        kept["properties"] = {name: pruned(it) for name, it in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            kept["additionalProperties"] = False
    if isinstance(schema.get("additionalProperties"), dict):
        kept["additionalProperties"] = pruned(schema["additionalProperties"])
    if "items" in schema:
        kept["items"] = pruned(schema["items"])
    return kept


class Definitions:
    """Parts that are there more than once, each under a number."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self.all: dict[str, Any] = {}

    def count(self, schema: Any) -> None:
        if isinstance(schema, dict):
            text = json.dumps(schema, sort_keys=True)
            self._seen[text] = self._seen.get(text, 0) + 1
            if self._seen[text] == 1:
                for part in schema.values():
                    self.count(part)

    def shared(self, schema: Any) -> Any:
        """The same, with references to definitions."""
        if not isinstance(schema, dict):
            return schema
        text = json.dumps(schema, sort_keys=True)
        if "type" not in schema or len(text) < SHORTEST or self._seen[text] == 1:
            return {key: self.shared(part) for key, part in schema.items()}
        if text not in self._names:
            self._names[text] = str(len(self._names))
            self.all[self._names[text]] = {key: self.shared(part) for key, part in schema.items()}
        return {"$ref": f"#/$defs/{self._names[text]}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clone")
    parser.add_argument("tag")
    arguments = parser.parse_args()
    specs = {}
    for kind, plural in KINDS.items():
        file = f"{arguments.tag}:{CRDS.format(plural)}"
        shown = subprocess.run(
            ["git", "-C", arguments.clone, "show", file], check=True, capture_output=True, text=True
        )
        crd = yaml.safe_load(shown.stdout)
        (version,) = (it for it in crd["spec"]["versions"] if it["name"] == VERSION)
        schema = version["schema"]["openAPIV3Schema"]
        specs[kind] = pruned(schema["properties"]["spec"])
    definitions = Definitions()
    for spec in specs.values():
        definitions.count(spec)
    shared = {kind: definitions.shared(spec) for kind, spec in specs.items()}
    print(
        json.dumps(
            {
                "from": f"https://github.com/ray-project/kuberay {arguments.tag}, pruned by "
                "tools/kuberay_schemas.py",
                "licence": "Apache License 2.0, as flinkray (LICENSE); (c) the KubeRay authors",
                "apiVersion": f"ray.io/{VERSION}",
                "specs": shared,
                "$defs": definitions.all,
            },
            separators=(",", ":"),
        )
    )


if __name__ == "__main__":
    main()
