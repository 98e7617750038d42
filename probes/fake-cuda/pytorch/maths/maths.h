// NVIDIA's maths libraries must do this for PyTorch to go on. Functions that are written and generated ones share it.
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
// Makes the calls of a product, on the stream of the handle.
int compute(struct handle *handle);
