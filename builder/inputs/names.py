"""Package names: canonical form, and the index's name of what conda calls otherwise."""

from __future__ import annotations

import re
from functools import lru_cache

_VALID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")

# The same code under another name; `pytorch-gpu` and `pytorch-cpu` also say which build.
_CONDA_TO_INDEX = {"pytorch": "torch", "pytorch-gpu": "torch", "pytorch-cpu": "torch"}


@lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    """As PEP 503 has it. Written out: `packaging.utils` costs 10 ms of every start."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_valid(name: str) -> bool:
    return len(name) <= 200 and _VALID.fullmatch(name) is not None


def of_conda(name: str) -> str:
    return _CONDA_TO_INDEX.get(name.lower(), canonical(name))
