// Modules, libraries and functions: each is a name that nothing runs.
#include "driver.h"

struct function {
	char *name;
};

static ptr image(void)
{
	return calloc(1, 64);
}

static struct function *function(const char *name)
{
	struct function *function = calloc(1, sizeof *function);
	function->name = strdup(name);
	return function;
}

// CU_FUNC_ATTRIBUTE_...: threads a block, registers, versions of PTX and of the binary.
static int attribute_of(int attribute)
{
	switch (attribute) {
	case 0:
		return 1024;
	case 4:
		return 32;
	case 5:
	case 6:
		return 90;
	}
	return 0;
}

CALL(cuModuleLoad, (ptr * out, const char *path), *out = image(), OK)
CALL(cuModuleLoadData, (ptr * out, ptr code), *out = image(), OK)
CALL(cuModuleLoadDataEx, (ptr * out, ptr code, unsigned n, ptr options, ptr values), *out = image(), OK)
CALL(cuModuleUnload, (ptr module), OK)
CALL(cuModuleGetFunction, (struct function * *out, ptr module, const char *name), *out = function(name), OK)
CALL(cuLibraryLoadData, (ptr * out, ptr code, ptr a, ptr b, unsigned c, ptr d, ptr e, unsigned f), *out = image(), OK)
CALL(cuLibraryUnload, (ptr library), OK)
CALL(cuLibraryGetKernel, (struct function * *out, ptr library, const char *name), *out = function(name), OK)
CALL(cuKernelGetFunction, (ptr * out, ptr kernel), *out = kernel, OK)
CALL(cuKernelGetAttribute, (int *out, int attribute, ptr kernel, int d), *out = attribute_of(attribute), OK)
CALL(cuKernelSetAttribute, (int attribute, int value, ptr kernel, int d), OK)
CALL(cuFuncGetAttribute, (int *out, int attribute, ptr function), *out = attribute_of(attribute), OK)
CALL(cuFuncSetAttribute, (ptr function, int attribute, int value), OK)
CALL(cuFuncSetCacheConfig, (ptr function, int config), OK)
CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *out, ptr function, int block, size_t shared),
     *out = block ? 2048 / block : 1, OK)
CALL(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
     (int *out, ptr function, int block, size_t shared, unsigned flags), *out = block ? 2048 / block : 1, OK)
CALL(cuOccupancyMaxActiveClusters, (int *out, ptr function, ptr config), *out = 132, OK)
CALL(cuTensorMapEncodeTiled, (), OK)
CALL(cuLinkCreate_v2, (), INVALID)
CALL(cuLinkAddData_v2, (), INVALID)
CALL(cuLinkComplete, (), INVALID)
