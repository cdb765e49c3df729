"""What the wheel holds, and what it asks of the machine."""

from __future__ import annotations

import importlib.metadata
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pytest

import warmroute
from warmroute import _native

if TYPE_CHECKING:
    from conftest import Programs

EXTENSION = Path(str(_native.__file__))
# Of every Linux with glibc: its parts, its loader, and gcc's runtime for unwinding.
ALLOWED = {
    "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libutil.so.1",
}


def test_the_wheel_holds_one_extension_and_its_command_is_an_entry_point() -> None:
    files = importlib.metadata.files("warmroute") or []
    libraries = [file.name for file in files if ".so" in file.suffixes or file.suffix in (".dylib", ".pyd")]
    assert libraries == ["_native.abi3.so"]
    (command,) = importlib.metadata.entry_points(group="console_scripts", name="warmroute")
    assert command.value == "warmroute.__main__:main"
    # A program of its own would have megabytes.
    assert Path(sys.executable).with_name("warmroute").stat().st_size < 1000
    assert {"py.typed", "_native.pyi"} <= {file.name for file in files}


def test_the_package_needs_no_other_package() -> None:
    metadata = importlib.metadata.metadata("warmroute")
    assert importlib.metadata.requires("warmroute") in (None, [])
    assert (metadata["Requires-Python"], metadata["License-Expression"]) == (">=3.11", "Apache-2.0")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the format of Linux")
def test_the_extension_needs_no_library_beyond_glibc() -> None:
    with EXTENSION.open("rb") as file:
        needed = needed_libraries(file)
    assert "libc.so.6" in needed
    assert needed <= ALLOWED


def test_the_extension_brings_no_allocator() -> None:
    # One that is loaded late has memory of another allocator to free, and may not fit into the loader's static space.
    assert b"_rjem_" not in EXTENSION.read_bytes()


def test_an_import_starts_no_thread(programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.perf_counter()
    empty = programs.run("-c", "")
    between = time.perf_counter()
    code = "import os, warmroute; print(len(os.listdir('/proc/self/task')) if os.path.exists('/proc') else 1)"
    imported = programs.run("-c", code)
    ended = time.perf_counter()
    assert (empty.returncode, imported.returncode) == (0, 0), imported.stderr
    assert imported.stdout == "1\n"
    with capsys.disabled():
        added = (ended - between) - (between - started)
        print(f"\nimport warmroute takes {1000 * added:.0f} ms, of a file of {EXTENSION.stat().st_size} bytes")


def test_names_of_the_package_are_those_it_lists() -> None:
    for name in warmroute.__all__:
        assert getattr(warmroute, name) is not None
    assert warmroute.__version__ == _native.__version__


def needed_libraries(file: BinaryIO) -> set[str]:
    """Returns the names of the shared libraries that an ELF file of 64 bits, little-endian, needs."""
    head = file.read(64)
    assert head[:6] == b"\x7fELF\x02\x01"
    (headers,) = struct.unpack_from("<Q", head, 0x20)
    size, count = struct.unpack_from("<HH", head, 0x36)
    loaded = []
    dynamic = b""
    for index in range(count):
        file.seek(headers + index * size)
        kind, _, offset, address, _, length = struct.unpack("<IIQQQQ", file.read(40))
        if kind == 1:
            loaded.append((address, offset, length))
        elif kind == 2:
            file.seek(offset)
            dynamic = file.read(length)
    entries = list(struct.iter_unpack("<qQ", dynamic))
    texts = next(value for tag, value in entries if tag == 5)
    length = next(value for tag, value in entries if tag == 10)
    start = next(offset + texts - address for address, offset, size in loaded if address <= texts < address + size)
    file.seek(start)
    table = file.read(length)
    names = [table[value : table.index(b"\0", value)] for tag, value in entries if tag == 1]
    return {name.decode() for name in names}
