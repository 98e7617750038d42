// Memory: that of each device, and pinned memory, are ranges of addresses, which the kernel backs as they are touched.
#include "driver.h"
#include <pthread.h>
#include <sys/mman.h>

struct block {
	char *at;
	size_t bytes;
	int used;
};
struct heap {
	char *base;
	size_t bytes, top, live;
	struct block *blocks;
	size_t count, capacity;
};
static struct heap device_heaps[MAX_DEVICES], pinned_heap;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct heap *device_heap(void)
{
	return &device_heaps[current_device()];
}

static void reserve(struct heap *heap)
{
	heap->bytes = heap == &pinned_heap ? 16ull << 30 : DEVICE_BYTES;
	heap->base =
		mmap(NULL, heap->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (heap->base == MAP_FAILED)
		abort();
}

// A freed block of the same size, or a new one.
static struct block *block_of(struct heap *heap, size_t bytes)
{
	for (size_t i = 0; i < heap->count; i++)
		if (!heap->blocks[i].used && heap->blocks[i].bytes == bytes)
			return &heap->blocks[i];
	if (heap->top + bytes > heap->bytes)
		return NULL;
	if (heap->count == heap->capacity) {
		heap->capacity = heap->capacity * 2 + 64;
		heap->blocks = realloc(heap->blocks, heap->capacity * sizeof *heap->blocks);
	}
	struct block *block = &heap->blocks[heap->count++];
	*block = (struct block){ heap->base + heap->top, bytes, 0 };
	heap->top += bytes;
	return block;
}

static result take(struct heap *heap, ptr *out, size_t bytes)
{
	bytes = bytes ? (bytes + 4095) & ~4095ull : 4096;
	pthread_mutex_lock(&lock);
	if (!heap->base)
		reserve(heap);
	struct block *block = block_of(heap, bytes);
	if (block) {
		block->used = 1;
		heap->live += bytes;
		*out = block->at;
	}
	pthread_mutex_unlock(&lock);
	return block ? OK : NO_MEMORY;
}

static int within(struct heap *heap, const void *at)
{
	return heap->base && (char *)at >= heap->base && (char *)at < heap->base + heap->bytes;
}

static struct heap *heap_of(const void *at)
{
	for (int device = 0; device < devices; device++)
		if (within(&device_heaps[device], at))
			return &device_heaps[device];
	return within(&pinned_heap, at) ? &pinned_heap : NULL;
}

static result give_back(ptr at)
{
	struct heap *heap = heap_of(at);
	if (!at || !heap)
		return at ? INVALID : OK;
	result code = INVALID;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < heap->count; i++) {
		struct block *block = &heap->blocks[i];
		if (block->at != at || !block->used)
			continue;
		block->used = 0;
		heap->live -= block->bytes;
		madvise(at, block->bytes, MADV_DONTNEED);
		code = OK;
		break;
	}
	pthread_mutex_unlock(&lock);
	return code;
}

API int fake_kind(const void *at)
{
	struct heap *heap = heap_of(at);
	return !heap ? 0 : heap == &pinned_heap ? 1 : 2;
}

API int fake_device(const void *at)
{
	struct heap *heap = heap_of(at);
	return heap && heap != &pinned_heap ? heap - device_heaps : 0;
}

CALL(cuMemAlloc_v2, (ptr * out, size_t bytes), take(device_heap(), out, bytes))
CALL(cuMemAllocAsync, (ptr * out, size_t bytes, struct stream *stream), take(device_heap(), out, bytes))
CALL(cuMemHostAlloc, (ptr * out, size_t bytes, unsigned flags), take(&pinned_heap, out, bytes))
CALL(cuMemFree_v2, (ptr at), give_back(at))
CALL(cuMemFreeAsync, (ptr at, struct stream *stream), give_back(at))
CALL(cuMemFreeHost, (ptr at), give_back(at))
CALL(cuMemHostRegister_v2, (ptr at, size_t bytes, unsigned flags), OK)
CALL(cuMemHostUnregister, (ptr at), OK)
CALL(cuMemGetInfo_v2, (size_t * unused, size_t *total), *total = DEVICE_BYTES,
     *unused = DEVICE_BYTES - device_heap()->live, OK)

API result cuPointerGetAttribute(ptr out, int attribute, ptr at)
{
	COUNT_ONLY();
	int kind = fake_kind(at);
	if (!kind)
		return INVALID;
	memset(out, 0, 4);
	enum { MEMORY_TYPE = 2, DEVICE_POINTER = 3, HOST_POINTER = 4, DEVICE_ORDINAL = 9 };
	if (attribute == MEMORY_TYPE)
		*(int *)out = kind;
	if (attribute == DEVICE_POINTER || attribute == HOST_POINTER)
		*(ptr *)out = at;
	if (attribute == DEVICE_ORDINAL)
		*(int *)out = fake_device(at);
	return OK;
}

API result cuPointerGetAttributes(unsigned count, int *attributes, ptr *out, ptr at)
{
	COUNT_ONLY();
	for (unsigned i = 0; i < count; i++)
		cuPointerGetAttribute(out[i], attributes[i], at);
	return OK;
}
