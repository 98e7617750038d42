// Devices, errors, and what a process of one GPU never needs.
#include "runtime.h"

__thread int device;
static __thread result last;

void begin(void)
{
	static __thread int started = -1;
	if (started == device)
		return;
	ptr context;
	started = device;
	cuInit(0);
	cuDevicePrimaryCtxRetain(&context, device);
	cuCtxSetCurrent(context);
}

result end(result code)
{
	if (code && code != NOT_READY)
		last = code;
	return code;
}

static result forget(void)
{
	result code = last;
	last = OK;
	return code;
}

CALL(cudaGetDeviceCount, (int *out), cuInit(0), end(cuDeviceGetCount(out)))
CALL(cudaGetDevice, (int *out), *out = device, OK)
CALL(cudaSetDevice, (int d), device = d, begin(), OK)
CALL(cudaDeviceGetAttribute, (int *out, int attribute, int d), end(cuDeviceGetAttribute(out, attribute, d)))
CALL(cudaDeviceGetPCIBusId, (char *out, int n, int d), end(cuDeviceGetPCIBusId(out, n, d)))
CALL(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest), *least = 0, *greatest = -5, OK)
CALL(cudaDeviceCanAccessPeer, (int *out, int a, int b), *out = 0, OK)
CALL(cudaDeviceEnablePeerAccess, (int d, unsigned flags), OK)
CALL(cudaDriverGetVersion, (int *out), *out = 13020, OK)
CALL(cudaRuntimeGetVersion, (int *out), *out = 13020, OK)
CALL(cudaGetDriverEntryPointByVersion, (const char *name, ptr *out, unsigned version, uint64_t flags, int *status),
     end(cuGetProcAddress_v2(name, out, version, flags, status)))

API result cudaGetDeviceProperties(char *out, int d)
{
	COUNT_ONLY();
	// Offset in CUDA 13's cudaDeviceProp, bytes, and value, of an H100.
	static const struct {
		int at, bytes;
		uint64_t value;
	} fields[] = {
		{ 288, 8, 80ull << 30 }, { 296, 8, 49152 },      { 304, 4, 65536 },  { 308, 4, 32 },
		{ 312, 8, 2147483647 },  { 320, 4, 1024 },       { 324, 4, 1024 },   { 328, 4, 1024 },
		{ 332, 4, 64 },          { 336, 4, 2147483647 }, { 340, 4, 65535 },  { 344, 4, 65535 },
		{ 352, 8, 65536 },       { 360, 4, 9 },          { 364, 4, 0 },      { 368, 8, 512 },
		{ 376, 8, 32 },          { 384, 4, 132 },        { 392, 4, 1 },      { 560, 4, 1 },
		{ 584, 4, 3 },           { 588, 4, 1 },          { 592, 4, 5120 },   { 596, 4, 52428800 },
		{ 600, 4, 32768 },       { 604, 4, 2048 },       { 624, 8, 233472 }, { 632, 4, 65536 },
		{ 636, 4, 1 },           { 656, 4, 1 },          { 668, 4, 1 },      { 672, 8, 232448 },
		{ 688, 4, 32 },          { 696, 8, 1024 },       { 720, 4, 1 },      { 748, 4, 1 },
	};
	enum { BYTES = 1008, UUID = 256, PCI_BUS_ID = 568 };
	memset(out, 0, BYTES);
	strcpy(out, "Stand-in GPU");
	memset(out + UUID, 0x42 + d, 16);
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
		memcpy(out + fields[i].at, &fields[i].value, fields[i].bytes);
	*(int *)(out + PCI_BUS_ID) = d + 1;
	return OK;
}

CALL(cudaGetLastError, (void), forget())
CALL(cudaPeekAtLastError, (void), last)

API const char *cudaGetErrorString(int code)
{
	return "an error of the stand-in";
}

API const char *cudaGetErrorName(int code)
{
	return "cudaErrorStandIn";
}

#define NONE(name) CALL(name, (), end(INVALID))
NONE(cudaIpcCloseMemHandle)
NONE(cudaIpcGetEventHandle)
NONE(cudaIpcGetMemHandle)
NONE(cudaIpcOpenEventHandle)
NONE(cudaIpcOpenMemHandle)
NONE(cudaLibraryGetGlobal)
NONE(cudaLibraryGetKernel)
NONE(cudaLibraryGetKernelCount)
NONE(cudaLibraryGetManaged)
NONE(cudaLibraryGetUnifiedFunction)
NONE(cudaLibraryLoadData)
NONE(cudaLibraryLoadFromFile)
NONE(cudaLibraryUnload)
CALL(cudaProfilerStart, (void), OK)
CALL(cudaProfilerStop, (void), OK)
