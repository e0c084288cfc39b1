"""Whether a manifest is what the Kubernetes API would take: built-in kinds by Kubernetes' own
schemas, custom ones by those of their CRDs in `schemas/`. As strict as the API server with
`--validate=strict`: fields that it does not know are mistakes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).parent / "schemas"
KUBERNETES = "1.32"


def faults(manifest: dict[str, Any]) -> list[str]:
    """One line for each thing that is wrong."""
    custom = _custom().get((manifest["apiVersion"], manifest["kind"]))
    if custom is not None:
        errors = custom.iter_errors(manifest["spec"])
        return [f"{'/'.join(map(str, each.absolute_path))}: {each.message}" for each in errors]
    try:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'/'.join(map(str, error.path))}: {error.message}"]
    return []


@cache
def _custom() -> dict[tuple[str, str], Draft202012Validator]:
    found = {}
    for path in SCHEMAS.glob("*.json"):
        stored = json.loads(path.read_text())
        definitions = {name: strict(each) for name, each in stored["$defs"].items()}
        schema = {**strict(stored["spec"]), "$defs": definitions}
        found[f"{stored['group']}/v1", stored["kind"]] = Draft202012Validator(schema)
    return found


def strict(schema: Any) -> Any:
    """A CRD's structural schema as a closed JSON schema. What has a default is not missing, since
    the server fills it in first."""
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    if made.pop("x-kubernetes-int-or-string", False):
        made.pop("type", None)
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if made.get("nullable"):
        made["type"] = [made["type"], "null"]
    if isinstance(made.get("pattern"), str) and "(?i)" in made["pattern"]:
        made["pattern"] = "(?i)" + made["pattern"].replace("(?i)", "")  # where Python wants it
    if "properties" in made:
        made["properties"] = {name: strict(each) for name, each in made["properties"].items()}
        known = made["properties"]
        made["required"] = [
            name for name in made.get("required", []) if "default" not in known.get(name, {})
        ]
        if not made.get("x-kubernetes-preserve-unknown-fields"):
            made.setdefault("additionalProperties", False)
    for name in ("items", "additionalProperties"):
        made[name] = strict(made[name]) if name in made else None
        if made[name] is None:
            del made[name]
    return made
