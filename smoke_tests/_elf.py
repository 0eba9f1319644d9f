"""What a shared library needs and offers, read from its dynamic section; and where the loader finds it.

Standard library only. Structures and tag numbers are those of the System V ABI and of the GNU symbol versioning (LSB
Core, "Symbol Versioning"); the search order is that of ld.so(8). Nothing is loaded or run.
"""

import mmap
import os
import struct

MAGIC = b"\x7fELF"
PT_LOAD, PT_DYNAMIC = 1, 2
DT_NEEDED, DT_STRTAB, DT_SONAME, DT_RPATH, DT_RUNPATH = 1, 5, 14, 15, 29
DT_VERDEF, DT_VERDEFNUM, DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
VER_FLG_WEAK = 2
CACHE_FILE = "/etc/ld.so.cache"
CACHE_MAGIC = b"glibc-ld.so.cache1.1"
DEFAULT_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")


class BadElfError(Exception):
    """The file begins as an ELF file and is none, or is cut off."""


class Elf:
    """`wants`: {library: [versions]} of versioned symbols; `offers`: the versions that it defines."""

    def __init__(self, path):
        self.path = os.path.realpath(path)
        self.folder = os.path.dirname(self.path)
        self.needed, self.soname, self.rpath, self.runpath = [], None, [], []
        self.wants, self.offers = {}, set()
        self.machine = None
        with open(self.path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                self.read(data)
            except (struct.error, IndexError, ValueError) as error:
                raise BadElfError("{}: {}".format(self.path, error)) from None

    def read(self, data):
        if data[:4] != MAGIC or data[4] != 2 or data[5] != 1:
            raise BadElfError("{}: not a 64-bit little-endian ELF file".format(self.path))
        self.machine = struct.unpack_from("<H", data, 18)[0]
        entries, loads = dynamic_entries(data)
        if DT_STRTAB not in entries:
            return
        table = to_offset(loads, entries[DT_STRTAB][0])

        def text(index):
            start = table + index
            return data[start : data.find(b"\0", start)].decode("utf-8", "replace")

        self.needed = [text(index) for index in entries.get(DT_NEEDED, [])]
        self.soname = text(entries[DT_SONAME][0]) if DT_SONAME in entries else None
        self.rpath = [part for index in entries.get(DT_RPATH, []) for part in text(index).split(":") if part]
        self.runpath = [part for index in entries.get(DT_RUNPATH, []) for part in text(index).split(":") if part]
        if DT_VERNEED in entries:
            self.read_wants(data, to_offset(loads, entries[DT_VERNEED][0]), entries[DT_VERNEEDNUM][0], text)
        if DT_VERDEF in entries:
            self.read_offers(data, to_offset(loads, entries[DT_VERDEF][0]), entries[DT_VERDEFNUM][0], text)

    def read_wants(self, data, at, count, text):
        for _ in range(count):
            _, parts, file, first, following = struct.unpack_from("<HHIII", data, at)
            place = at + first
            versions = self.wants.setdefault(text(file), [])
            for _ in range(parts):
                _, flags, _, name, step = struct.unpack_from("<IHHII", data, place)
                if not flags & VER_FLG_WEAK:
                    versions.append(text(name))
                place += step
            at += following

    def read_offers(self, data, at, count, text):
        for _ in range(count):
            first, following = struct.unpack_from("<II", data, at + 12)
            self.offers.add(text(struct.unpack_from("<I", data, at + first)[0]))
            at += following

    def folders(self, names):
        return [
            os.path.normpath(name.replace("$ORIGIN", self.folder).replace("${ORIGIN}", self.folder)) for name in names
        ]


def dynamic_entries(data):
    """{tag: [values]} of the dynamic section, and the loaded segments as (address, size, offset)."""
    offset, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<IIQQQQQQ", data, offset + index * size) for index in range(count)]
    loads = [(row[3], row[5], row[2]) for row in headers if row[0] == PT_LOAD]
    dynamic = [(row[2], row[5]) for row in headers if row[0] == PT_DYNAMIC]
    entries = {}
    if not dynamic:
        return entries, loads
    if any(row[2] + row[5] > len(data) for row in headers):
        raise ValueError("the file is cut off")
    at, length = dynamic[0]
    for place in range(at, at + length, 16):
        tag, value = struct.unpack_from("<qQ", data, place)
        if tag == 0:
            break
        entries.setdefault(tag, []).append(value)
    return entries, loads


def to_offset(loads, address):
    for start, size, offset in loads:
        if start <= address < start + size:
            return address - start + offset
    raise ValueError("address {:#x} is in no segment".format(address))


def is_elf(path):
    try:
        with open(path, "rb") as stream:
            return stream.read(4) == MAGIC
    except OSError:
        return False


def read_cache(path=CACHE_FILE):
    """{library name: [paths]} of the loader's cache; empty where there is none, as on musl."""
    try:
        with open(path, "rb") as stream:
            data = stream.read()
    except OSError:
        return {}
    start = data.find(CACHE_MAGIC)
    if start < 0:
        return {}
    count = struct.unpack_from("<I", data, start + 20)[0]
    found = {}
    for index in range(count):
        _, key, value = struct.unpack_from("<iII", data, start + 48 + 24 * index)
        name, place = (data[start + at : data.index(b"\0", start + at)].decode() for at in (key, value))
        found.setdefault(name, []).append(place)
    return found


class Loader:
    """Finds libraries as ld.so would. `brought`: {name: [paths]} of the libraries that Python packages bring."""

    def __init__(self, brought, cache=None, environment=None):
        self.brought = brought
        self.cache = read_cache() if cache is None else cache
        asked = (os.environ if environment is None else environment).get("LD_LIBRARY_PATH", "")
        self.asked = [part for part in asked.split(":") if part]
        self.read = {}

    def elf(self, path):
        real = os.path.realpath(path)
        if real not in self.read:
            self.read[real] = Elf(real)
        return self.read[real]

    def find(self, elf, name, above=()):
        """The path that the loader takes for `name`, needed by `elf`, or None. `above`: what loaded `elf`, outermost
        first; their RPATHs count too.
        """
        if "/" in name:
            return name if os.path.exists(name) else None
        folders = []
        if not elf.runpath:
            for one in [elf, *reversed(above)]:
                folders += one.folders(one.rpath) if not one.runpath else []
        folders += self.asked + elf.folders(elf.runpath)
        for folder in folders:
            if self.fits(os.path.join(folder, name), elf):
                return os.path.join(folder, name)
        for path in self.cache.get(name, []) + [os.path.join(folder, name) for folder in DEFAULT_FOLDERS]:
            if self.fits(path, elf):
                return path
        return None

    def fits(self, path, elf):
        """The loader passes over a library of another machine."""
        if not is_elf(path):
            return False
        try:
            return self.elf(path).machine == elf.machine
        except BadElfError:
            return True  # it is taken, and fails to load

    def closure(self, paths):
        """Names and real paths of everything that is loaded with `paths`. What only a package brings counts too:
        torch loads such libraries by hand before it needs them.
        """
        names, open_, seen = {}, [(path, ()) for path in paths], set()
        while open_:
            path, above = open_.pop()
            real = os.path.realpath(path)
            if real in seen:
                continue
            seen.add(real)
            try:
                elf = self.elf(real)
            except (BadElfError, OSError, ValueError):
                continue
            for name in {os.path.basename(path), elf.soname} - {None}:
                names.setdefault(name, real)
            for name in elf.needed:
                found = self.find(elf, name, above) or next(iter(self.brought.get(name, [])), None)
                if found is not None:
                    open_.append((found, (*above, elf)))
        return names
