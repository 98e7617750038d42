// Declarations that the files of the runtime share.
#pragma once
#include "../fake.h"
#include "driver_calls.h"

// The device of this thread.
extern __thread int device;
// Makes its context current, as NVIDIA's runtime does in a thread's first call.
void begin(void);
// Keeps an error for cudaGetLastError.
result end(result code);

// The kernel of a host function (kernels.c).
struct kernel {
	const void *host;
	const char *name;
};
struct kernel *kernel_of(const void *host);

// A function that does with the driver what its expressions do; the last one is its result.
#define RUNTIME(name, parameters, ...) CALL(name, parameters, begin(), end((__VA_ARGS__)))
