"""Bodies for `-vv`: whole enough to understand a call, and without what nobody else may read. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

_SECRET_NAME = re.compile(r"token$|password|secret|api_key$|^key$|^new$|^old$", re.I)


def masked_body(raw: bytes) -> str:
    """A body for `-vv`: secret fields masked, at most 4 KiB."""
    if not raw.lstrip().startswith((b"{", b"[")):
        return f"({len(raw)} bytes)"
    try:
        return json.dumps(_masked(json.loads(raw)), ensure_ascii=False)[:4096]
    except (ValueError, RecursionError):
        return f"({len(raw)} bytes that are not JSON of a usual shape)"


def _masked(value: Any) -> Any:
    """The value with stars for whatever is text under the name of a secret, and for the text of a kubeconfig."""
    if isinstance(value, list):
        return [_masked(item) for item in value]
    if not isinstance(value, dict):
        return value
    kubeconfig = value.get("kind") == "kubeconfig"
    return {
        key: "****"
        if isinstance(below, str) and (_SECRET_NAME.search(str(key)) or (kubeconfig and key == "content"))
        else _masked(below)
        for key, below in value.items()
    }
