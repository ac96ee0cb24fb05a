"""Patches as the API server applies them: JSON merge patch, and strategic merge patch with its list keys."""

from __future__ import annotations

from typing import Any

# Lists that are merged by a key (patchMergeKey of core/v1); all others are replaced.
MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "hostIPs": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "ports": "containerPort",
    "secrets": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
MERGED_SETS = ("finalizers",)


def strategic_merge(old: Any, patch: Any) -> Any:
    """A strategic merge patch on a core/v1 object, `$patch` and `$deleteFromPrimitiveList` included."""
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        directive, _, field = key.partition("/")
        if directive == "$deleteFromPrimitiveList":
            result[field] = [item for item in result.get(field) or [] if item not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list) and key in MERGE_KEYS:
            if key in result:
                result[key] = _merge_list(result[key] or [], value, MERGE_KEYS[key])
            else:  # nothing to merge with: taken as it is
                result[key] = [strategic_merge({}, item) for item in value if "$patch" not in item]
        elif isinstance(value, list) and key in MERGED_SETS:
            known = result.get(key) or []
            result[key] = known + [item for item in value if item not in known]
        else:
            result[key] = strategic_merge(result.get(key), value)
    for key, order in patch.items():
        directive, _, field = key.partition("/")
        if directive == "$setElementOrder" and isinstance(result.get(field), list):
            # The server puts what is not named among the others; nobody here goes by where.
            named = [item for item in order for known in result[field] if item.items() <= known.items()]
            places = {item[MERGE_KEYS[field]]: place for place, item in enumerate(named)}
            result[field].sort(key=lambda item: places.get(item[MERGE_KEYS[field]], len(places)))
    return result


def _merge_list(old: list[Any], patch: list[Any], merge_key: str) -> list[Any]:
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if "$patch" not in item]
    result = list(old)
    for item in patch:
        found = [i for i, known in enumerate(result) if known.get(merge_key) == item.get(merge_key)]
        if item.get("$patch") == "delete":
            result = [known for i, known in enumerate(result) if i not in found]
        elif found:
            result[found[0]] = strategic_merge(result[found[0]], item)
        else:
            result.append(strategic_merge({}, item))
    return result
