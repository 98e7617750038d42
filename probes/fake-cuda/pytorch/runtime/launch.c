// Launches. CUDA 13's compilers call __cudaLaunchKernel, which in NVIDIA's runtime is a jump to the first instruction of
// cudaLaunchKernel, where probes count it. C has no such jump, so it is a function of its own here, which nothing probes,
// and gpucause counts the driver's launch below it.
#include "runtime.h"

static result launch(ptr kernel, dim3 grid, dim3 block, ptr *arguments, size_t shared, ptr stream)
{
	begin();
	return end(cuLaunchKernel(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream, arguments,
				  NULL));
}

CALL(__cudaLaunchKernel, (ptr kernel, dim3 grid, dim3 block, ptr *arguments, size_t shared, ptr stream),
     launch(kernel, grid, block, arguments, shared, stream))
CALL(cudaLaunchKernel, (const void *host, dim3 grid, dim3 block, ptr *arguments, size_t shared, ptr stream),
     launch(kernel_of(host), grid, block, arguments, shared, stream))
RUNTIME(cudaLaunchCooperativeKernel,
	(const void *host, dim3 grid, dim3 block, ptr *arguments, size_t shared, ptr stream),
	cuLaunchCooperativeKernel(kernel_of(host), grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream,
				  arguments))

// cudaLaunchConfig_t.
struct runtime_config {
	dim3 grid, block;
	size_t shared;
	ptr stream, attributes;
	unsigned count;
};

API result cudaLaunchKernelExC(const struct runtime_config *config, const void *host, ptr *arguments)
{
	COUNT_ONLY();
	begin();
	struct launch_config given = { { config->grid.x, config->grid.y, config->grid.z },
				       { config->block.x, config->block.y, config->block.z },
				       config->shared,
				       config->stream,
				       config->attributes,
				       config->count };
	return end(cuLaunchKernelEx(&given, kernel_of(host), arguments, NULL));
}

RUNTIME(cudaLaunchHostFunc, (ptr stream, void (*function)(ptr), ptr data), cuLaunchHostFunc(stream, function, data))
CALL(cudaStreamAddCallback, (ptr stream, void (*function)(ptr, int, ptr), ptr data, unsigned flags),
     function(stream, OK, data), OK)

// <<<...>>> pushes this before it calls the kernel's host function, which pops it.
struct configuration {
	dim3 grid, block;
	size_t shared;
	ptr stream;
};
static __thread struct configuration pushed[8];
static __thread int depth;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, ptr stream)
{
	COUNT_ONLY();
	if (depth == 8)
		return 1;
	pushed[depth++] = (struct configuration){ grid, block, shared, stream };
	return 0;
}

API result __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, ptr *stream)
{
	COUNT_ONLY();
	if (!depth)
		return INVALID;
	struct configuration *top = &pushed[--depth];
	*grid = top->grid;
	*block = top->block;
	*shared = top->shared;
	*stream = top->stream;
	return OK;
}
