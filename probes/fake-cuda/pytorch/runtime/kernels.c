// Kernels by the address of their host functions, which PyTorch registers as it is loaded: some 50,000.
#include "runtime.h"
#include <pthread.h>

// A power of two of twice as many: handles are given out, so that the table cannot move.
#define CAPACITY (1 << 20)
static struct kernel *kernels;
static size_t count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct kernel *place(const void *host)
{
	for (size_t at = ((uintptr_t)host >> 4) * 0x9e3779b97f4a7c15ull >> 20;; at++) {
		struct kernel *kernel = &kernels[at & (CAPACITY - 1)];
		if (!kernel->host || kernel->host == host)
			return kernel;
	}
}

struct kernel *kernel_of(const void *host)
{
	return place(host);
}

static void add(const void *host, const char *name)
{
	pthread_mutex_lock(&lock);
	if (!kernels)
		kernels = calloc(CAPACITY, sizeof *kernels);
	struct kernel *kernel = place(host);
	if (!kernel->host && ++count > CAPACITY / 2)
		abort();
	*kernel = (struct kernel){ host, name };
	pthread_mutex_unlock(&lock);
}

API ptr *__cudaRegisterFatBinary(ptr binary)
{
	COUNT_ONLY();
	return calloc(1, sizeof(ptr));
}

API void __cudaRegisterFatBinaryEnd(ptr *handle)
{
	COUNT_ONLY();
}

API void __cudaUnregisterFatBinary(ptr *handle)
{
	COUNT_ONLY();
}

API void __cudaRegisterVar(ptr *handle, char *host, char *address, const char *name, int ext, size_t size, int constant,
			   int global)
{
	COUNT_ONLY();
}

API void __cudaRegisterFunction(ptr *handle, const char *host, char *function, const char *name, int limit, ptr tid,
				ptr bid, ptr bdim, ptr gdim, int *warp)
{
	COUNT_ONLY();
	add(host, name);
}

CALL(__cudaGetKernel, (struct kernel * *out, const void *host), *out = kernel_of(host), OK)

// NVIDIA's occupancy and attribute functions answer for a kernel from the driver's part.
API result cudaFuncGetAttributes(char *out, const void *host)
{
	COUNT_ONLY();
	begin();
	// Offset in cudaFuncAttributes, and CU_FUNC_ATTRIBUTE_...
	static const int fields[][2] = { { 24, 0 }, { 28, 4 }, { 32, 5 }, { 36, 6 } };
	enum { MAX_DYNAMIC_SHARED = 44 };
	memset(out, 0, 144);
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
		cuKernelGetAttribute((int *)(out + fields[i][0]), fields[i][1], kernel_of(host), device);
	*(int *)(out + MAX_DYNAMIC_SHARED) = 49152;
	return OK;
}

static result occupancy(int *out, const void *host, int block, size_t shared, unsigned flags)
{
	ptr function;
	cuKernelGetFunction(&function, kernel_of(host));
	return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, function, block, shared, flags);
}

RUNTIME(cudaFuncSetAttribute, (const void *host, int attribute, int value),
	cuKernelSetAttribute(attribute, value, kernel_of(host), device))
RUNTIME(cudaKernelSetAttributeForDevice, (ptr kernel, int attribute, int value, int d),
	cuKernelSetAttribute(attribute, value, kernel, d))
RUNTIME(cudaOccupancyMaxActiveBlocksPerMultiprocessor, (int *out, const void *host, int block, size_t shared),
	occupancy(out, host, block, shared, 0))
RUNTIME(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
	(int *out, const void *host, int block, size_t shared, unsigned flags),
	occupancy(out, host, block, shared, flags))
