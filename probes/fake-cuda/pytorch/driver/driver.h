// Declarations that the files of the driver share.
#pragma once
#include "../fake.h"
#include <stdatomic.h>

#define MAX_DEVICES 8
#define DEVICE_BYTES (80ull << 30)

// Settings (settings.c).
extern uint64_t kernel_ns, launch_ns;
extern int devices;

// Time (wait.c).
uint64_t now(void);
void spin_until(uint64_t end);
void sleep_until(uint64_t end);
// Waits for the GPU as a synchronizing call does: on the CPU, or asleep with FAKE_BLOCKING=1.
void wait_until(uint64_t end);

// A captured graph is its number of kernels.
struct graph {
	unsigned kernels;
};
// A stream is the time when the simulated GPU will have done what it was given.
struct stream {
	_Atomic uint64_t busy;
	struct graph *graph;
	uint64_t capture;
	int priority, device;
	struct stream *next;
};
struct event {
	uint64_t at;
	struct graph *graph;
	uint64_t capture;
};
// All streams there ever were: a destroyed one stays, as another thread may be walking this list.
extern struct stream *_Atomic streams;
// The stream of a handle, where 0, 1 and 2 are the default stream of the current device.
struct stream *stream_of(struct stream *handle);
void enqueue(struct stream *stream, uint64_t ns);
// Gives the GPU so many kernels, or adds them to the graph that is being captured.
result submit(struct stream *stream, unsigned kernels);

// The device of this thread's current context (device.c).
int current_device(void);

// Memory (memory.c): 0 of nobody, 1 pinned, 2 of a device.
int fake_kind(const void *at);
int fake_device(const void *at);
