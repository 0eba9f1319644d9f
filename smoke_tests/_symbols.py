"""The symbols that a shared library needs and defines, read from its dynamic symbol table. Standard library only.

Versions of symbols are `_elf`'s; here it is the names: an extension built for another torch finds every library and
every version, and still ends in `undefined symbol`. Names are looked up as ld.so does, through the GNU hash table (its
form: the ELF notes of binutils), so that the hundred thousand symbols of libtorch_cpu.so are not read one by one.
"""

import mmap
import os
import re
import struct

import _elf

DT_HASH, DT_SYMTAB, DT_GNU_HASH = 4, 6, 0x6FFFFEF5
SHT_DYNSYM = 11
STB_GLOBAL = 1
ENTRY = struct.Struct("<IBBHQQ")
# C++ names in the namespaces of torch, type information included, and the C interface that newer extensions use.
TORCH = re.compile(rb"_Z(?:T[ISVT]|GV)?N[rVK]*[RO]?(?:3c10|2at|5torch|6caffe2)\d|aoti_torch_")
# Functions of CUDA libraries that are one file each; cuDNN is split and loads its own parts by hand.
CUDA = re.compile(rb"_*(nvJitLink|nccl|cublas|cusparse|cusolver|cufft|curand|nvrtc)[A-Z]")
CUDA_STEMS = {
    "nvJitLink": ("libnvJitLink",),
    "nccl": ("libnccl",),
    "cublas": ("libcublas", "libcublasLt"),
    "cusparse": ("libcusparse", "libcusparseLt"),
    "cusolver": ("libcusolver", "libcusolverMg"),
    "cufft": ("libcufft",),
    "curand": ("libcurand",),
    "nvrtc": ("libnvrtc",),
}


class Symbols:
    """Of one file. `wanted(pattern)`: needed and not defined here; `defines(name)`: whether others find it here."""

    def __init__(self, path):
        with open(path, "rb") as stream:
            self.data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self.open()
        except (struct.error, IndexError, KeyError) as error:
            raise ValueError("{}: no dynamic symbols can be read: {!r}".format(path, error)) from None

    def open(self):
        entries, loads = _elf.dynamic_entries(self.data)
        self.strings = _elf.to_offset(loads, entries[_elf.DT_STRTAB][0])
        self.table = _elf.to_offset(loads, entries[DT_SYMTAB][0])
        self.gnu = _elf.to_offset(loads, entries[DT_GNU_HASH][0]) if DT_GNU_HASH in entries else None
        self.count = self.count_of(loads, entries)
        self.names = None
        if self.gnu is not None:
            self.buckets, self.first, self.words, self.shift = struct.unpack_from("<4I", self.data, self.gnu)

    def count_of(self, loads, entries):
        """The number of symbols, by the section table or the old hash table; without both, of those not hashed."""
        offset = struct.unpack_from("<Q", self.data, 40)[0]
        size, count = struct.unpack_from("<HH", self.data, 58)
        for place in range(offset, offset + size * count if offset else offset, size or 1):
            kind, _, _, start, length = struct.unpack_from("<IQQQQ", self.data, place + 4)
            if kind == SHT_DYNSYM and start == self.table:
                return length // ENTRY.size
        if DT_HASH in entries:
            return struct.unpack_from("<I", self.data, _elf.to_offset(loads, entries[DT_HASH][0]) + 4)[0]
        return struct.unpack_from("<I", self.data, self.gnu + 4)[0] if self.gnu is not None else 0

    def name(self, index):
        start = self.strings + index
        return self.data[start : self.data.find(b"\0", start)]

    def rows(self):
        return ENTRY.iter_unpack(self.data[self.table : self.table + ENTRY.size * self.count])

    def wanted(self, pattern):
        """Weak ones are left out: they may stay undefined."""
        return [
            name
            for index, info, _, section, _, _ in self.rows()
            if section == 0 and info >> 4 == STB_GLOBAL
            for name in [self.name(index)]
            if pattern.match(name)
        ]

    def defines(self, name):
        if self.gnu is None:
            if self.names is None:
                self.names = {self.name(row[0]) for row in self.rows() if row[3] != 0 and row[1] >> 4}
            return name in self.names
        value = gnu_hash(name)
        word = struct.unpack_from("<Q", self.data, self.gnu + 16 + 8 * (value // 64 % self.words))[0]
        if not (word >> value % 64 & 1 and word >> (value >> self.shift) % 64 & 1):
            return False
        buckets = self.gnu + 16 + 8 * self.words
        index = struct.unpack_from("<I", self.data, buckets + 4 * (value % self.buckets))[0]
        while index >= self.first:
            found = struct.unpack_from("<I", self.data, buckets + 4 * (self.buckets + index - self.first))[0]
            if found | 1 == value | 1:
                row = ENTRY.unpack_from(self.data, self.table + ENTRY.size * index)
                if row[3] != 0 and self.name(row[0]) == name:
                    return True
            if found & 1:
                return False
            index += 1
        return False


def gnu_hash(name):
    value = 5381
    for byte in name:
        value = value * 33 + byte & 0xFFFFFFFF
    return value


class Lookup:
    """Symbols of many files, each read once; a file that cannot be read defines nothing."""

    def __init__(self):
        self.read = {}

    def of(self, path):
        if path not in self.read:
            try:
                self.read[path] = Symbols(path)
            except (_elf.BadElfError, OSError, ValueError):
                self.read[path] = None
        return self.read[path]

    def is_defined(self, name, paths):
        return any(symbols is not None and symbols.defines(name) for symbols in map(self.of, paths))

    def wanted(self, path, pattern):
        symbols = self.of(path)
        return symbols.wanted(pattern) if symbols is not None else []


def missing_of_torch(loader, lookup, paths, folders):
    """{path: [symbols]} of extensions that need from torch what no library of this torch defines.

    Torch's own libraries belong together and are held against their RECORD.
    """
    packages = {path: package_of(path, folders) for path in paths}
    own = [path for path in paths if packages[path] == "torch"]
    found = {}
    for path in paths:
        wanted = [] if packages[path] == "torch" else lookup.wanted(path, TORCH)
        if not wanted:
            continue
        scope = set(loader.closure([path]).values()) | set(own)
        if not any(re.match(r"lib(torch|c10)", os.path.basename(one)) for one in scope):
            continue  # no torch at all: that is a library that is not found, and told as such
        missing = sorted({name.decode() for name in wanted if not lookup.is_defined(name, scope)})
        if missing:
            # Another library of the same package may define it and be loaded before.
            beside = [one for one in paths if packages[one] == packages[path]]
            missing = [name for name in missing if not lookup.is_defined(name.encode(), beside)]
        if missing:
            found[path] = missing
    return found


def missing_of_cuda(loader, lookup, paths, stem_of):
    """{path: [symbols]} of libraries that need a function which the CUDA library they would load does not have yet.

    A function without any library of its kind in reach is not judged: who needs it loads that library by hand.
    """
    found = {}
    for path in paths:
        missing = set()
        scope = None
        for name in lookup.wanted(path, CUDA):
            if scope is None:
                scope = {}
                for one in loader.closure([path]).values():
                    scope.setdefault(stem_of(one), []).append(one)
            stems = CUDA_STEMS[CUDA.match(name).group(1).decode()]
            places = [one for stem in stems for one in scope.get(stem, []) if one != os.path.realpath(path)]
            everywhere = [one for several in scope.values() for one in several]
            if places and not lookup.is_defined(name, everywhere):
                missing.add(name.decode())
        if missing:
            found[path] = sorted(missing)
    return found


def package_of(path, folders):
    """The folder of site-packages that a file lies in; `torchvision.libs` is torchvision's, too."""
    folder = max((one for one in folders if path.startswith(one + os.sep)), key=len, default="")
    return path[len(folder) :].lstrip(os.sep).split(os.sep)[0].split(".")[0]


def plain(name):
    """`c10::Error::Error` for _ZN3c105ErrorC2...: the nested names of a C++ symbol, without its arguments."""
    match = re.match(r"_Z(?:T[ISVT]|GV)?N[rVK]*[RO]?", name)
    if match is None:
        return name
    at, parts = match.end(), []
    while at < len(name) and name[at].isdigit():
        digits = re.match(r"\d+", name[at:]).group()
        at += len(digits)
        parts.append(name[at : at + int(digits)])
        at += int(digits)
    if parts and re.match(r"[CD]\d", name[at:]):
        parts.append(("~" if name[at] == "D" else "") + parts[-1])
    return "::".join(parts) or name
