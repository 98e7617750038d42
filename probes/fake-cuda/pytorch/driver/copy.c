// Copies are done at once, and the GPU is busy with them for as long as its bus would take.
#include "driver.h"

static const double ns_per_byte = 1 / 25.0, ns_per_copy = 1500;

static result copy(ptr to, const void *from, size_t bytes, struct stream *stream, int waits)
{
	stream = stream_of(stream);
	if (stream->graph) {
		stream->graph->kernels++;
		return OK;
	}
	enqueue(stream, ns_per_copy + bytes * ns_per_byte);
	if (waits)
		wait_until(stream->busy);
	memmove(to, from, bytes);
	return OK;
}

static result fill(ptr to, size_t bytes, int value, struct stream *stream)
{
	result code = submit(stream, 1);
	if (!stream_of(stream)->graph)
		memset(to, value, bytes);
	return code;
}

CALL(cuMemcpy, (ptr d, ptr s, size_t n), copy(d, s, n, NULL, 1))
CALL(cuMemcpyHtoD_v2, (ptr d, ptr s, size_t n), copy(d, s, n, NULL, 1))
CALL(cuMemcpyDtoH_v2, (ptr d, ptr s, size_t n), copy(d, s, n, NULL, 1))
CALL(cuMemcpyDtoD_v2, (ptr d, ptr s, size_t n), copy(d, s, n, NULL, 0))
// An asynchronous copy of memory that is not pinned is done when the call returns.
CALL(cuMemcpyAsync, (ptr d, ptr s, size_t n, struct stream *q), copy(d, s, n, q, !fake_kind(d) || !fake_kind(s)))
CALL(cuMemcpyHtoDAsync_v2, (ptr d, ptr s, size_t n, struct stream *q), copy(d, s, n, q, !fake_kind(s)))
CALL(cuMemcpyDtoHAsync_v2, (ptr d, ptr s, size_t n, struct stream *q), copy(d, s, n, q, !fake_kind(d)))
CALL(cuMemcpyDtoDAsync_v2, (ptr d, ptr s, size_t n, struct stream *q), copy(d, s, n, q, 0))
CALL(cuMemsetD8_v2, (ptr d, unsigned char v, size_t n), fill(d, n, v, NULL))
CALL(cuMemsetD8Async, (ptr d, unsigned char v, size_t n, struct stream *q), fill(d, n, v, q))
CALL(cuMemsetD32_v2, (ptr d, unsigned v, size_t n), fill(d, n * 4, v, NULL))
CALL(cuMemsetD32Async, (ptr d, unsigned v, size_t n, struct stream *q), fill(d, n * 4, v, q))
