// How libraries find functions of the driver.
#include "driver.h"
#include <dlfcn.h>

static result other(void)
{
	return OK;
}

API result cuGetProcAddress_v2(const char *name, ptr *out, int version, uint64_t flags, int *status)
{
	COUNT_ONLY();
	static const char *const suffixes[] = { "_v3", "_v2", "" };
	ptr self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	*out = NULL;
	for (int i = 0; i < 3 && !*out; i++) {
		char symbol[256];
		snprintf(symbol, sizeof symbol, "%s%s", name, suffixes[i]);
		*out = dlsym(self, symbol);
	}
	// PyTorch asks for more than it calls.
	if (!*out) {
		if (getenv("FAKE_TRACE"))
			fprintf(stderr, "stand-in: no %s\n", name);
		*out = (ptr)other;
	}
	if (status)
		*status = 0;
	return OK;
}

CALL(cuGetProcAddress, (const char *name, ptr *out, int version, uint64_t flags),
     cuGetProcAddress_v2(name, out, version, flags, NULL))
// Private tables of NVIDIA's own libraries, among them one that checks the origin of the driver: this one has none.
CALL(cuGetExportTable, (ptr * out, const unsigned char *id), NOT_FOUND)
CALL(cuGetErrorString, (int code, const char **out), *out = "an error of the stand-in", OK)
CALL(cuGetErrorName, (int code, const char **out), *out = "CUDA_ERROR_STAND_IN", OK)
