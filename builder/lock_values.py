"""What a value in a lock may be: converters that raise with the way to what does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from packaging.version import InvalidVersion, Version


class FaultError(Exception):
    """A value that does not fit; `keys` is the way to it, from the inside out."""

    def __init__(self, message: str, *keys: str | int) -> None:
        super().__init__(message)
        self.message = message
        self.keys = keys


Convert = Callable[[Any], Any]


def any_text(value: Any) -> str:
    if not isinstance(value, str):
        raise FaultError("must be text")
    return value


def text_of(value: Any) -> str:
    text = any_text(value)
    if not text:
        raise FaultError("must not be empty")
    return text


def pattern(wanted: str, what: str) -> Convert:
    def convert(value: Any) -> str:
        text = text_of(value)
        if not re.fullmatch(wanted, text):
            raise FaultError(f"`{text}` is not {what}")
        return text

    return convert


def one_of(*choices: str) -> Convert:
    def convert(value: Any) -> str:
        text = text_of(value)
        if text not in choices:
            raise FaultError(f"`{text}` is none of {', '.join(choices)}")
        return text

    return convert


def version_of(value: Any) -> str:
    text = text_of(value)
    try:
        Version(text)
    except InvalidVersion:
        raise FaultError(f"`{text}` is not a version") from None
    return text


def integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FaultError("must be a number of 0 or more")
    return value


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise FaultError("must be true or false")
    return value


def _at(key: str | int, convert: Convert, value: Any) -> Any:
    try:
        return convert(value)
    except FaultError as fault:
        raise FaultError(fault.message, *fault.keys, key) from None


def each(convert: Convert) -> Convert:
    def convert_all(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise FaultError("must be a list")
        return tuple(_at(number, convert, entry) for number, entry in enumerate(value))

    return convert_all


def table_of(make: Callable[..., Any], converters: Mapping[str, Convert], optional: Iterable[str] = ()) -> Convert:
    absent = frozenset(optional)

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise FaultError("must be a table")
        for key in value:
            if key not in converters:
                raise FaultError("is no key of a lock", key)
        done: dict[str, Any] = {}
        for key, convert_value in converters.items():
            if key not in value:
                if key not in absent:
                    raise FaultError(f"`{key}` is missing")
                done[key] = None
                continue
            done[key] = _at(key, convert_value, value[key])
        return make(**done)

    return convert
