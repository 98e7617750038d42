// Launches take their time on the CPU, and the GPU theirs.
#include "driver.h"

static result launch(struct stream *stream)
{
	spin_until(now() + launch_ns);
	return submit(stream, 1);
}

CALL(cuLaunchKernel,
     (ptr function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
      struct stream *stream, ptr *arguments, ptr *extra),
     launch(stream))
CALL(cuLaunchKernelEx, (const struct launch_config *config, ptr function, ptr *arguments, ptr *extra),
     launch(config->stream))
CALL(cuLaunchCooperativeKernel,
     (ptr function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
      struct stream *stream, ptr *arguments),
     launch(stream))
