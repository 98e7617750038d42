// Events: the time when the simulated GPU will have done what their stream had when they were recorded.
#include "driver.h"

CALL(cuEventCreate, (struct event * *out, unsigned flags), *out = calloc(1, sizeof **out), OK)
CALL(cuEventDestroy_v2, (struct event * event), free(event), OK)
CALL(cuEventQuery, (struct event * event), event->at <= now() ? OK : NOT_READY)
CALL(cuEventSynchronize, (struct event * event), wait_until(event->at), OK)
CALL(cuEventElapsedTime_v2, (float *ms, struct event *start, struct event *end), *ms = (end->at - start->at) / 1e6f, OK)

API result cuEventRecord(struct event *event, struct stream *stream)
{
	COUNT_ONLY();
	stream = stream_of(stream);
	event->graph = stream->graph;
	event->capture = stream->capture;
	uint64_t busy = stream->busy, t = now();
	event->at = busy > t ? busy : t;
	return OK;
}

CALL(cuEventRecordWithFlags, (struct event * event, struct stream *stream, unsigned flags),
     cuEventRecord(event, stream))
