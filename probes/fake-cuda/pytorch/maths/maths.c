#include "maths.h"

int cuKernelGetFunction(ptr *, ptr);
int cuMemsetD32Async(ptr, unsigned, size_t, ptr);
int cuMemAlloc_v2(ptr *, size_t);

// On an H200, cuBLAS asks for the kernel's function, clears its workspace now and then, and launches.
int product(struct handle *handle, ptr stream)
{
	static char kernel[64];
	enum { EXECUTION_FAILED = 13 };
	ptr function;
	cuKernelGetFunction(&function, kernel);
	if (++handle->calls % 4 == 0) {
		if (!handle->workspace)
			cuMemAlloc_v2(&handle->workspace, 1 << 16);
		cuMemsetD32Async(handle->workspace, 0, 1024, stream);
	}
	struct launch_config config = { { 1, 1, 1 }, { 128, 1, 1 }, 0, stream, NULL, 0 };
	return cuLaunchKernelEx(&config, function, NULL, NULL) ? EXECUTION_FAILED : 0;
}

int compute(struct handle *handle)
{
	return product(handle, handle->stream);
}
