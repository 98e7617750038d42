// Graphs: what is captured is counted, and launched as so many kernels.
#include "driver.h"

static _Atomic uint64_t captures;

API result cuStreamBeginCapture_v2(struct stream *stream, int mode)
{
	COUNT_ONLY();
	stream = stream_of(stream);
	stream->graph = calloc(1, sizeof *stream->graph);
	stream->capture = ++captures;
	return OK;
}

API result cuStreamEndCapture(struct stream *stream, struct graph **out)
{
	COUNT_ONLY();
	struct graph *graph = stream_of(stream)->graph;
	for (struct stream *each = streams; each; each = each->next)
		if (each->graph == graph) {
			each->graph = NULL;
			each->capture = 0;
		}
	*out = graph;
	return OK;
}

CALL(cuStreamIsCapturing, (struct stream * stream, int *out), *out = stream_of(stream)->graph != NULL, OK)

API result cuStreamGetCaptureInfo_v3(struct stream *stream, int *status, uint64_t *id, struct graph **graph,
				     const ptr **dependencies, const ptr **edges, size_t *count)
{
	COUNT_ONLY();
	stream = stream_of(stream);
	*status = stream->graph != NULL;
	if (id)
		*id = stream->capture;
	if (graph)
		*graph = stream->graph;
	if (dependencies)
		*dependencies = NULL;
	if (edges)
		*edges = NULL;
	if (count)
		*count = 0;
	return OK;
}

API result cuGraphInstantiateWithFlags(struct graph **out, struct graph *graph, uint64_t flags)
{
	COUNT_ONLY();
	*out = malloc(sizeof **out);
	**out = *graph;
	return OK;
}

CALL(cuGraphLaunch, (struct graph * graph, struct stream *stream), spin_until(now() + launch_ns),
     submit(stream, graph->kernels))

API result cuGraphGetNodes(struct graph *graph, ptr *nodes, size_t *count)
{
	COUNT_ONLY();
	if (!nodes)
		*count = graph->kernels;
	return OK;
}
