// Memory and copies.
#include "runtime.h"

RUNTIME(cudaMalloc, (ptr * out, size_t n), cuMemAlloc_v2(out, n))
RUNTIME(cudaMallocManaged, (ptr * out, size_t n, unsigned flags), cuMemAlloc_v2(out, n))
RUNTIME(cudaFree, (ptr at), at ? cuMemFree_v2(at) : OK)
RUNTIME(cudaMallocAsync, (ptr * out, size_t n, ptr q), cuMemAllocAsync(out, n, q))
RUNTIME(cudaFreeAsync, (ptr at, ptr q), cuMemFreeAsync(at, q))
RUNTIME(cudaHostAlloc, (ptr * out, size_t n, unsigned flags), cuMemHostAlloc(out, n, flags))
RUNTIME(cudaMallocHost, (ptr * out, size_t n), cuMemHostAlloc(out, n, 0))
RUNTIME(cudaFreeHost, (ptr at), cuMemFreeHost(at))
RUNTIME(cudaHostRegister, (ptr at, size_t n, unsigned flags), cuMemHostRegister_v2(at, n, flags))
RUNTIME(cudaHostUnregister, (ptr at), cuMemHostUnregister(at))
RUNTIME(cudaMemGetInfo, (size_t * unused, size_t *total), cuMemGetInfo_v2(unused, total))

// cudaPointerAttributes: type, device, device pointer, host pointer.
struct attributes {
	int type, device;
	const void *of_device, *of_host;
	char reserved[64];
};

API result cudaPointerGetAttributes(struct attributes *out, const void *at)
{
	COUNT_ONLY();
	int kind = fake_kind(at);
	*out = (struct attributes){ kind, kind == 2 ? fake_device(at) : device, kind ? at : NULL,
				    kind != 2 ? at : NULL };
	return OK;
}

enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST, DEVICE_TO_DEVICE };

static result copy(ptr d, ptr s, size_t n, int kind)
{
	switch (kind) {
	case HOST_TO_DEVICE:
		return cuMemcpyHtoD_v2(d, s, n);
	case DEVICE_TO_HOST:
		return cuMemcpyDtoH_v2(d, s, n);
	case DEVICE_TO_DEVICE:
		return cuMemcpyDtoD_v2(d, s, n);
	}
	return cuMemcpy(d, s, n);
}

static result copy_async(ptr d, ptr s, size_t n, int kind, ptr q)
{
	switch (kind) {
	case HOST_TO_DEVICE:
		return cuMemcpyHtoDAsync_v2(d, s, n, q);
	case DEVICE_TO_HOST:
		return cuMemcpyDtoHAsync_v2(d, s, n, q);
	case DEVICE_TO_DEVICE:
		return cuMemcpyDtoDAsync_v2(d, s, n, q);
	}
	return cuMemcpyAsync(d, s, n, q);
}

RUNTIME(cudaMemcpy, (ptr d, ptr s, size_t n, int kind), copy(d, s, n, kind))
RUNTIME(cudaMemcpyAsync, (ptr d, ptr s, size_t n, int kind, ptr q), copy_async(d, s, n, kind, q))
RUNTIME(cudaMemcpyPeerAsync, (ptr d, int to, ptr s, int from, size_t n, ptr q), cuMemcpyDtoDAsync_v2(d, s, n, q))
RUNTIME(cudaMemset, (ptr d, int v, size_t n), cuMemsetD8_v2(d, v, n))
RUNTIME(cudaMemsetAsync, (ptr d, int v, size_t n, ptr q), cuMemsetD8Async(d, v, n, q))
CALL(cudaMemcpyToSymbol, (const void *symbol, ptr s, size_t n, size_t offset, int kind), OK)

API result cudaMemcpy2DAsync(char *d, size_t d_pitch, char *s, size_t s_pitch, size_t width, size_t height, int kind,
			     ptr q)
{
	COUNT_ONLY();
	for (size_t row = 0; row < height; row++)
		memcpy(d + row * d_pitch, s + row * s_pitch, width);
	return OK;
}

// No kernel reads a symbol: all have one place.
API result cudaGetSymbolAddress(ptr *out, const void *symbol)
{
	COUNT_ONLY();
	static ptr place;
	begin();
	if (!place)
		cuMemAlloc_v2(&place, 1 << 20);
	*out = place;
	return OK;
}

CALL(cudaDeviceGetDefaultMemPool, (ptr * out, int d), *out = (ptr)0x2000, OK)
CALL(cudaMemPoolGetAttribute, (ptr pool, int attribute, uint64_t *out), *out = 0, OK)
CALL(cudaMemPoolSetAttribute, (ptr pool, int attribute, ptr value), OK)
CALL(cudaMemPoolSetAccess, (ptr pool, ptr list, size_t n), OK)
CALL(cudaMemPoolTrimTo, (ptr pool, size_t n), OK)
