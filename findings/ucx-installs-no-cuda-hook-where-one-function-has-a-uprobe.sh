#!/usr/bin/env bash
# One uprobe on one CUDA function of memory keeps all memory hooks of UCX out of a process, and nothing is printed.
#
# Version: libucx-cu12 1.22.0 (PyPI), on Linux 6.18; needs root for the uprobe, Python 3.8 or newer with pip, and gcc. A library of the
# script plays libcuda.so.1, with functions that begin as those of NVIDIA's driver do since CUDA 12.9.
# Guess before the run: UCX hooks the other functions, or falls back to patching the tables of symbols, its second mode, and goes on.
# Seen: without a uprobe its handler is installed (status 0), and all 14 functions begin with a jump. With a uprobe at the entry of
# cuMemAlloc_v2, by any tracer, the handler is refused (status -22, "unsupported"), and at the default log level nothing says so. The
# functions that were hooked before cuMemAlloc_v2 in UCX's order keep their jump, the others have none; symbol tables are not tried.
# UCX decodes the first instructions to move them, and a breakpoint is none that it knows. What depends on the hooks, as its cache of
# which memory is the GPU's, is off from then on. A tracer of CUDA must leave these functions alone where UCX is loaded.
set -euo pipefail
folder=$(mktemp -d)
events=/sys/kernel/tracing/uprobe_events
trap 'echo 0 >/sys/kernel/tracing/events/ucx_finding/allocate/enable 2>/dev/null; echo "-:ucx_finding/allocate" >>$events 2>/dev/null; rm -rf "$folder"' EXIT
[ -e "$events" ] || mount -t tracefs tracefs /sys/kernel/tracing
python3 -m pip install --quiet --no-deps --only-binary=:all: --disable-pip-version-check --root-user-action=ignore \
    --target "$folder/site" libucx-cu12==1.22.0
functions="cuMemAlloc cuMemAlloc_v2 cuMemAllocManaged cuMemAllocPitch cuMemAllocPitch_v2 cuMemMap cuMemAllocAsync cuMemAllocFromPoolAsync
    cuMemFree cuMemFree_v2 cuMemFreeHost cuMemFreeHost_v2 cuMemUnmap cuMemFreeAsync"
others="cuMemGetAddressRange_v2 cuPointerGetAttribute cuCtxGetCurrent cuGetErrorString cuGetErrorName cuDeviceGet cuDeviceGetAttribute cuInit"
{
    echo "int nothing(void) { return 0; }"
    body="push %rbp; mov %rsp, %rbp; push %r12; sub \$8, %rsp; call nothing@PLT; add \$8, %rsp; pop %r12; pop %rbp; ret"
    for name in $functions $others; do
        echo "__asm__(\".text; .balign 32; .globl $name; .type $name, @function; $name: $body; .size $name, . - $name\");"
    done
} >"$folder/driver.c"
cat >"$folder/hook.py" <<'PYTHON'
import ctypes
import sys

driver = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
ctypes.CDLL(f"{sys.argv[2]}/libucs.so.0", mode=ctypes.RTLD_GLOBAL)
library = ctypes.CDLL(f"{sys.argv[2]}/libucm.so.0", mode=ctypes.RTLD_GLOBAL)
MEMORY_IS_ALLOCATED, MEMORY_IS_FREED = 1 << 20, 1 << 21
handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda *event: None)
status = library.ucm_set_event_handler(MEMORY_IS_ALLOCATED | MEMORY_IS_FREED, 1000, handler, None)
JUMP = 0xE9
first = [ctypes.string_at(ctypes.cast(getattr(driver, name), ctypes.c_void_p), 1)[0] for name in sys.argv[3:]]
print(ctypes.c_int8(status & 0xFF).value, first.count(JUMP))
PYTHON
gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$folder/libcuda.so.1" "$folder/driver.c"
hook() {
    # shellcheck disable=SC2086
    LD_LIBRARY_PATH=$folder python3 "$folder/hook.py" "$folder/libcuda.so.1" "$folder/site/libucx/lib" $functions 2>&1
}
without=$(hook)
offset=$(readelf -W --dyn-syms "$folder/libcuda.so.1" | awk '$8 == "cuMemAlloc_v2" { print $2 }')
echo "p:ucx_finding/allocate $folder/libcuda.so.1:0x$offset" >>$events
echo 1 >/sys/kernel/tracing/events/ucx_finding/allocate/enable
with=$(hook)
echo "status and hooked functions: without a uprobe $without, with one on cuMemAlloc_v2 $with"
[ "$without" = "0 14" ] || { echo "UCX hooks other functions now" >&2; exit 1; }
[ "$with" = "-22 1" ] || { echo "UCX does something else now where a function has a uprobe" >&2; exit 1; }
