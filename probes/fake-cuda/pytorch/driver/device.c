// Devices, which are all alike, and their contexts.
#include "driver.h"

struct context {
	int device, retained;
};
static struct context contexts[MAX_DEVICES];
static __thread struct context *stack[16];
static __thread int depth;

static struct context *current(void)
{
	return stack[depth];
}

int current_device(void)
{
	return current() ? current()->device : 0;
}

static struct context *retain(int device)
{
	contexts[device].device = device;
	contexts[device].retained = 1;
	return &contexts[device];
}

CALL(cuInit, (unsigned flags), OK)
CALL(cuDriverGetVersion, (int *out), *out = 13020, OK)
CALL(cuDeviceGetCount, (int *out), *out = devices, OK)
CALL(cuDeviceGet, (int *out, int ordinal), *out = ordinal, ordinal < devices ? OK : INVALID)
CALL(cuDeviceGetName, (char *out, int bytes, int d), snprintf(out, bytes, "Stand-in GPU"), OK)
CALL(cuDeviceGetUuid_v2, (char *out, int d), memset(out, 0x42 + d, 16), OK)
CALL(cuDeviceTotalMem_v2, (size_t * out, int d), *out = DEVICE_BYTES, OK)
CALL(cuDeviceGetPCIBusId, (char *out, int bytes, int d), snprintf(out, bytes, "00000000:%02x:00.0", d + 1), OK)

API result cuDeviceGetAttribute(int *out, int attribute, int d)
{
	COUNT_ONLY();
	// CUdevice_attribute and its value, of an H100.
	static const int values[][2] = {
		{ 1, 1024 },     { 2, 1024 },   { 3, 1024 },      { 4, 64 },    { 5, 2147483647 },  { 6, 65535 },
		{ 7, 65535 },    { 8, 49152 },  { 9, 65536 },     { 10, 32 },   { 11, 2147483647 }, { 12, 65536 },
		{ 13, 1980000 }, { 14, 512 },   { 15, 1 },        { 16, 132 },  { 19, 1 },          { 31, 1 },
		{ 36, 2619000 }, { 37, 5120 },  { 38, 52428800 }, { 39, 2048 }, { 40, 3 },          { 41, 1 },
		{ 75, 9 },       { 76, 0 },     { 78, 1 },        { 79, 1 },    { 80, 1 },          { 81, 233472 },
		{ 82, 65536 },   { 83, 1 },     { 90, 1 },        { 95, 1 },    { 97, 232448 },     { 106, 32 },
		{ 108, 32768 },  { 111, 1024 }, { 115, 1 },       { 120, 1 },
	};
	enum { PCI_BUS_ID = 33 };
	*out = attribute == PCI_BUS_ID ? d + 1 : 0;
	for (size_t i = 0; i < sizeof values / sizeof *values; i++)
		if (values[i][0] == attribute)
			*out = values[i][1];
	return OK;
}

CALL(cuDevicePrimaryCtxRetain, (struct context * *out, int d), *out = retain(d), OK)
CALL(cuDevicePrimaryCtxRelease_v2, (int d), OK)
CALL(cuDevicePrimaryCtxGetState, (int d, unsigned *flags, int *active), *flags = 0, *active = contexts[d].retained, OK)
CALL(cuCtxGetCurrent, (struct context * *out), *out = current(), OK)
CALL(cuCtxSetCurrent, (struct context * context), stack[depth] = context, OK)
CALL(cuCtxPushCurrent_v2, (struct context * context), depth < 15 ? stack[++depth] = context, OK : INVALID)
CALL(cuCtxGetDevice, (int *out), *out = current_device(), OK)
CALL(cuCtxGetLimit, (size_t * out, int limit), *out = 1 << 20, OK)
CALL(cuCtxSetLimit, (int limit, size_t value), OK)
CALL(cuCtxGetStreamPriorityRange, (int *least, int *greatest), *least = 0, *greatest = -5, OK)

API result cuCtxPopCurrent_v2(struct context **out)
{
	COUNT_ONLY();
	if (out)
		*out = current();
	stack[depth] = NULL;
	if (depth)
		depth--;
	return OK;
}
