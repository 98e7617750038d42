// Collectives launch a kernel and wait for nobody. Ranks agree on what all have in common, as what a rank gathers is its own.
#include "maths.h"

struct id {
	char bytes[128];
};
struct communicator {
	int rank, size;
};

static int join(struct communicator **out, int size, int rank)
{
	*out = calloc(1, sizeof **out);
	**out = (struct communicator){ rank, size };
	return 0;
}

static int collective(struct communicator *communicator, ptr stream)
{
	struct launch_config config = { { 16, 1, 1 }, { 512, 1, 1 }, 0, stream, NULL, 0 };
	return cuLaunchKernelEx(&config, communicator, NULL, NULL) ? 1 : 0;
}

CALL(ncclGetVersion, (int *out), *out = 23007, 0)
CALL(ncclGetUniqueId, (struct id * out), memset(out, 1, sizeof *out), 0)
CALL(ncclCommInitRank, (struct communicator * *out, int size, struct id id, int rank), join(out, size, rank))
CALL(ncclCommInitRankConfig, (struct communicator * *out, int size, struct id id, int rank, ptr config),
     join(out, size, rank))
CALL(ncclCommInitRankScalable, (struct communicator * *out, int size, int rank, int ids, struct id *id, ptr config),
     join(out, size, rank))
CALL(ncclCommSplit, (struct communicator * c, int color, int key, struct communicator **out, ptr config),
     join(out, c->size, c->rank))
CALL(ncclCommCount, (struct communicator * c, int *out), *out = c->size, 0)
CALL(ncclCommUserRank, (struct communicator * c, int *out), *out = c->rank, 0)
CALL(ncclCommGetAsyncError, (struct communicator * c, int *out), *out = 0, 0)

API const char *ncclGetErrorString(int code)
{
	return "an error of the stand-in";
}

API const char *ncclGetLastError(ptr c)
{
	return "";
}

CALL(ncclAllReduce, (ptr from, ptr to, size_t n, int type, int op, struct communicator *c, ptr stream),
     collective(c, stream))
CALL(ncclReduceScatter, (ptr from, ptr to, size_t n, int type, int op, struct communicator *c, ptr stream),
     collective(c, stream))
CALL(ncclReduce, (ptr from, ptr to, size_t n, int type, int op, int root, struct communicator *c, ptr stream),
     collective(c, stream))
CALL(ncclBroadcast, (ptr from, ptr to, size_t n, int type, int root, struct communicator *c, ptr stream),
     collective(c, stream))
CALL(ncclBcast, (ptr at, size_t n, int type, int root, struct communicator *c, ptr stream), collective(c, stream))

API int ncclAllGather(ptr from, char *to, size_t n, int type, struct communicator *c, ptr stream)
{
	COUNT_ONLY();
	// Bytes by ncclDataType_t.
	static const char sizes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };
	size_t bytes = n * sizes[type];
	for (int rank = 0; rank < c->size; rank++)
		memmove(to + rank * bytes, from, bytes);
	return collective(c, stream);
}
