"""Reads the request document of docs/smoke-contract.md."""

import json

SCHEMA_VERSION = 1


class BadRequestError(Exception):
    """The request cannot be read; nothing was checked."""


def read_request(path, defaults):
    """The request with every key present, and the script's parameters with the defaults filled in."""
    request = {
        "schema_version": SCHEMA_VERSION,
        "image_id": None,
        "python": None,
        "packages": {},
        "variant": None,
        "gpus": [],
        "scratch": None,
        "time_limit_s": 300,
        "params": {},
    }
    if path is not None:
        try:
            with open(path, encoding="utf-8") as stream:
                given = json.load(stream)
        except (OSError, ValueError) as error:
            raise BadRequestError("{}: {}".format(path, error)) from None
        if not isinstance(given, dict):
            raise BadRequestError("{}: a JSON object is expected".format(path))
        if given.get("schema_version") != SCHEMA_VERSION:
            raise BadRequestError(
                "schema_version is {!r}, this script reads {}".format(given.get("schema_version"), SCHEMA_VERSION)
            )
        unknown = sorted(set(given) - set(request))
        if unknown:
            raise BadRequestError("unknown key `{}`; known: {}".format(unknown[0], ", ".join(sorted(request))))
        request.update(given)
    for key, kinds in (("packages", dict), ("gpus", list), ("params", dict), ("time_limit_s", (int, float))):
        if not isinstance(request[key], kinds):
            raise BadRequestError("`{}` has the wrong type: {!r}".format(key, request[key]))
    if not request["time_limit_s"] > 0:
        raise BadRequestError("`time_limit_s` must be above 0")
    params = dict(defaults)
    for key, value in request["params"].items():
        if key not in defaults:
            raise BadRequestError("unknown parameter `{}`; known: {}".format(key, ", ".join(sorted(defaults))))
        if not same_kind(value, defaults[key]):
            raise BadRequestError("parameter `{}` is {!r}; its default is {!r}".format(key, value, defaults[key]))
        params[key] = value
    return request, params


def same_kind(value, default):
    if default is None or value is None:
        return default is None
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, (int, float))
    return isinstance(value, type(default))
