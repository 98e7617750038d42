// Streams: each knows when the simulated GPU will be done with it.
#include "driver.h"

// Work that a stream takes before a launch waits, as with NVIDIA's.
#define DEPTH 1024

static struct stream defaults[MAX_DEVICES];
static _Atomic uint64_t kernels_given;
struct stream *_Atomic streams;

static void add(struct stream *stream)
{
	stream->next = streams;
	while (!atomic_compare_exchange_weak(&streams, &stream->next, stream)) {
	}
}

__attribute__((constructor)) static void at_start(void)
{
	for (int device = 0; device < MAX_DEVICES; device++) {
		defaults[device].device = device;
		add(&defaults[device]);
	}
}

struct stream *stream_of(struct stream *handle)
{
	return (uintptr_t)handle <= 2 ? &defaults[current_device()] : handle;
}

void enqueue(struct stream *stream, uint64_t ns)
{
	uint64_t busy = atomic_load(&stream->busy), end;
	do {
		uint64_t t = now();
		end = (busy > t ? busy : t) + ns;
	} while (!atomic_compare_exchange_weak(&stream->busy, &busy, end));
}

result submit(struct stream *stream, unsigned kernels)
{
	stream = stream_of(stream);
	if (stream->graph) {
		stream->graph->kernels += kernels;
		return OK;
	}
	uint64_t busy = atomic_load(&stream->busy);
	if (busy > now() + DEPTH * kernel_ns)
		spin_until(busy - DEPTH * kernel_ns);
	enqueue(stream, kernels * kernel_ns);
	kernels_given += kernels;
	return OK;
}

// Kernels that the GPU was given, those of graphs too.
API uint64_t fake_kernels(void)
{
	return kernels_given;
}

API result cuStreamCreateWithPriority(struct stream **out, unsigned flags, int priority)
{
	COUNT_ONLY();
	*out = calloc(1, sizeof **out);
	(*out)->priority = priority;
	(*out)->device = current_device();
	add(*out);
	return OK;
}

CALL(cuStreamCreate, (struct stream * *out, unsigned flags), cuStreamCreateWithPriority(out, flags, 0))
CALL(cuStreamDestroy_v2, (struct stream * stream), OK)
CALL(cuStreamGetPriority, (struct stream * stream, int *out), *out = stream_of(stream)->priority, OK)
CALL(cuStreamSynchronize, (struct stream * stream), wait_until(stream_of(stream)->busy), OK)
CALL(cuStreamQuery, (struct stream * stream), stream_of(stream)->busy <= now() ? OK : NOT_READY)

API result cuCtxSynchronize(void)
{
	COUNT_ONLY();
	for (struct stream *stream = streams; stream; stream = stream->next)
		if (stream->device == current_device())
			wait_until(stream->busy);
	return OK;
}

API result cuStreamWaitEvent(struct stream *stream, struct event *event, unsigned flags)
{
	COUNT_ONLY();
	stream = stream_of(stream);
	// A stream that waits for an event of a captured one is captured with it.
	if (event->graph) {
		stream->graph = event->graph;
		stream->capture = event->capture;
		return OK;
	}
	uint64_t busy = atomic_load(&stream->busy);
	while (busy < event->at && !atomic_compare_exchange_weak(&stream->busy, &busy, event->at)) {
	}
	return OK;
}

// Not later, as NVIDIA's does on a thread of its own: what PyTorch gives it only frees memory.
CALL(cuLaunchHostFunc, (struct stream * stream, void (*function)(ptr), ptr data), function(data), OK)
