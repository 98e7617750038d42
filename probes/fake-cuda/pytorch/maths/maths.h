// What functions of NVIDIA's maths libraries must do for PyTorch to go on, shared by what is written and what is generated.
#pragma once
#include "../fake.h"

struct handle {
	ptr stream;
	int pointer_mode, math_mode;
	unsigned calls;
	ptr workspace;
};

int cuLaunchKernelEx(const struct launch_config *, ptr, ptr *, ptr *);
// The calls of the driver that a product of cuBLAS makes, on this stream.
int product(struct handle *handle, ptr stream);
// The same, on the stream of the handle.
int compute(struct handle *handle);
