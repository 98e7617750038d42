#!/usr/bin/env bash
# No function of the CUDA runtime for arm64 begins with an instruction that a uprobe of Linux executes without a single step, yet each
# has one before it changes an argument, and can be followed to all of its returns.
#
# Version: nvidia-cuda-runtime 13.5.37 for aarch64 (PyPI); nothing of it is executed. Needs Python 3.8 or newer with pip.
# Guess before the run: functions begin with `stp`, so that a probe at entry is single-stepped; few have a branch before their arguments
# are moved away or changed, and functions of this length have jump tables.
# Seen: of 443 functions cuda*, 0 begin with a branch, `adr` or `adrp`, which the kernel emulates on arm64. All 443 call a function of the
# library (`bl`) after 3 to 20 instructions, which save registers and copy arguments, and leave them where they are. None has a
# branch to a register or leaves by a tail call; each has 1 to 4 `ret`, which the kernel emulates as well.
# A tracer can thus time these calls with breakpoints at the `bl` and the `ret`s alone: no single step, and no changed return address.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip download --quiet --no-deps --only-binary=:all: --disable-pip-version-check --platform manylinux2014_aarch64 \
    --dest "$folder" nvidia-cuda-runtime==13.5.37
cat >"$folder/functions.py" <<'PYTHON'
import collections
import struct
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    [name] = [name for name in wheel.namelist() if name.endswith("libcudart.so.13")]
    data = wheel.read(name)


def functions():
    """Names and instructions of the exported functions."""
    at, count = struct.unpack_from("<Q", data, 0x28)[0], struct.unpack_from("<H", data, 0x3C)[0]
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, at + 64 * n) for n in range(count)]
    code = [own for own in sections if own[1] == 1 and own[2] & 4]
    table = next(own for own in sections if own[1] == 11)
    names = sections[table[6]][4]
    for entry in range(table[4], table[4] + table[5], 24):
        name, info, _, section, address, size = struct.unpack_from("<IBBHQQ", data, entry)
        if info & 15 != 2 or not section or not size:
            continue
        own = next(own for own in code if own[3] <= address < own[3] + own[5])
        text = data[names + name : data.index(b"\0", names + name)].decode()
        yield text, struct.unpack_from(f"<{size // 4}I", data, own[4] + address - own[3])


def is_emulated(word):
    """b, bl, b.cond, cbz, cbnz, tbz, tbnz, adr, adrp, br, blr, ret: arch/arm64/kernel/probes/decode-insn.c."""
    masks = [(0x7C000000, 0x14000000), (0xFF000010, 0x54000000), (0x7E000000, 0x34000000)]
    masks += [(0x7E000000, 0x36000000), (0x1F000000, 0x10000000), (0xFF9FFC1F, 0xD61F0000)]
    return any(word & mask == value for mask, value in masks)


def writes_argument(word):
    """True if x0 to x8 is the destination; stores have none, nor have copies to registers of vectors."""
    is_store = word & 0x3A400000 == 0x28000000 or word & 0x3B000000 == 0x39000000 and not word >> 22 & 3
    return not is_store and word & 0x7F3FFC00 != 0x1E270000 and word & 31 <= 8


def signed(value, bits):
    return value - (1 << bits) if value >> (bits - 1) else value


def ends(code):
    """The returns that control reaches, and the ways out that are none."""
    seen, left, returns, others = set(), [0], 0, 0
    while left:
        at = left.pop()
        if at in seen:
            continue
        if not 0 <= at < len(code):
            others += 1
            continue
        seen.add(at)
        word = code[at]
        if word == 0xD65F03C0:
            returns += 1
        elif word & 0xFC000000 == 0x14000000:
            left.append(at + signed(word & 0x3FFFFFF, 26))
        elif word & 0xFF000010 == 0x54000000 or word & 0x7E000000 == 0x34000000:
            left += [at + 1, at + signed(word >> 5 & 0x7FFFF, 19)]
        elif word & 0x7E000000 == 0x36000000:
            left += [at + 1, at + signed(word >> 5 & 0x3FFF, 14)]
        elif word & 0xFFFFFC1F == 0xD61F0000:
            others += 1
        else:
            left.append(at + 1)
    return returns, others


seen = collections.Counter()
first, returns = [], []
for name, code in functions():
    if not name.startswith("cuda"):
        continue
    at = next(n for n, word in enumerate(code) if is_emulated(word))
    own, others = ends(code)
    first.append(at)
    returns.append(own)
    seen["functions"] += 1
    seen["begin with one that is emulated"] += at == 0
    seen["call before an argument is changed"] += code[at] >> 26 == 0x25 and not any(map(writes_argument, code[:at]))
    seen["have other ways out than ret"] += others > 0
print(f"libcudart 13.5.37, arm64: {dict(seen)}; first after {min(first)} to {max(first)}; {min(returns)} to {max(returns)} returns")
assert seen["functions"] == 443 and seen["begin with one that is emulated"] == 0
assert seen["call before an argument is changed"] == 443 and seen["have other ways out than ret"] == 0
assert (min(first), max(first)) == (3, 20) and (min(returns), max(returns)) == (1, 4)
PYTHON
python3 "$folder/functions.py" "$folder"/*.whl
