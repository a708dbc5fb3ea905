"""JSON that tells when it was changed: one canonical form, its own checksum inside; and the names that are let in."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any, cast

from postprior.errors import StoreError

FORMAT = 1
"""Of everything in a store but what ``IN_SEVERAL_FILES`` is of; older code refuses what has a newer one."""

IN_SEVERAL_FILES = 2
"""Of the manifest of a belief in several files, which code of format 1 cannot read."""

ID = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


def canonical(content: Any) -> bytes:
    """The one way in which a piece of JSON is written."""
    return (json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def digest(data: bytes) -> str:
    """SHA-256, in hex."""
    return hashlib.sha256(data).hexdigest()


def seal(content: Mapping[str, Any]) -> bytes:
    """The file: the content, and the checksum of all of it but itself."""
    content = {key: value for key, value in content.items() if key != "checksum"}
    return canonical({**content, "checksum": digest(canonical(content))})


def unseal(data: bytes | None, where: str, newest: int = FORMAT) -> dict[str, Any]:
    """What ``seal`` wrote; a StoreError that names the file if it is missing, newer, or differs in one bit."""
    if data is None:
        raise StoreError(f"{where} is missing: restore it from a copy")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damaged(where, f"no JSON can be read from it: {error}") from error
    if not isinstance(content, dict):
        raise damaged(where, f"expected a JSON object, found {type(content).__name__}")
    content = cast("dict[str, Any]", content)
    version = content.get("format", FORMAT)
    if not isinstance(version, int) or version > newest:
        raise StoreError(
            f"{where} has format {version!r:.20}, this version reads up to {newest}: it was written by a newer "
            f"postprior, which can read it, or is damaged"
        )
    try:
        whole = data == seal(content)
    except (ValueError, RecursionError) as error:
        raise damaged(where, str(error)) from error
    if not whole:
        raise damaged(where, "its checksum does not agree with its content")
    return content


def stamp(data: bytes) -> bytes:
    """Any bytes, after their checksum."""
    return digest(data).encode() + b"\n" + data


def unstamp(data: bytes, where: str) -> bytes:
    """The inverse of ``stamp``, which compares."""
    checksum, _, content = data.partition(b"\n")
    if checksum != digest(content).encode():
        raise damaged(where, "its checksum does not agree with its content")
    return content


def damaged(where: str, why: str) -> StoreError:
    """The error about a file that is not as it was written."""
    return StoreError(f"{where} is damaged: {why}; restore it from a copy")


def plain(value: Any, where: str) -> Any:
    """The value as JSON alone: tuples become lists, and numbers that JSON has no name for (NaN, infinities) null."""
    if isinstance(value, str):
        # Names of files may hold bytes that are no text; their escapes are.
        return value.encode("utf-8", "backslashreplace").decode()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {plain(str(key), where): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, where) for item in value]
    raise StoreError(f"{where} is of type {type(value).__name__}, expected text, numbers, lists and dictionaries")


def check_id(value: Any, where: str) -> str:
    """The value, which is the id of a belief."""
    if not (isinstance(value, str) and ID.fullmatch(value)):
        raise StoreError(f"{where}: {value!r:.80} is no id of a belief: expected 64 hex digits")
    return value


def check_name(value: Any, where: str) -> str:
    """The value, which is a name that cannot lead out of its folder, nor be taken for an id."""
    if not (isinstance(value, str) and NAME.fullmatch(value)) or ID.fullmatch(value):
        raise StoreError(
            f"{where}: {value!r:.80} is no name: expected 1 to 64 of A-Z a-z 0-9 . _ -, "
            f"not with a dot first and not the form of an id"
        )
    return value
