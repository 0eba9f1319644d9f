"""How numbers of things and long lists are told."""

MIB = 2.0**20


def number(items, one, many=None):
    return "{} {}".format(len(items), one if len(items) == 1 else many or one + "s")


def shorten(names, limit=4):
    rest = len(names) - limit
    return "; ".join(list(names)[:limit]) + ("; and {} more".format(rest) if rest > 0 else "")
