// Time, and waits for it.
#include "driver.h"
#include <poll.h>
#include <time.h>

uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

void spin_until(uint64_t end)
{
	while (now() < end)
#ifdef __x86_64__
		__builtin_ia32_pause();
#else
		;
#endif
}

void sleep_until(uint64_t end)
{
	for (uint64_t t = now(); t < end; t = now()) {
		struct timespec left = { (end - t) / 1000000000, (end - t) % 1000000000 };
		ppoll(NULL, 0, &left, NULL);
	}
}

// NVIDIA's driver polls by default where a host has more CPUs than contexts, and sleeps in poll(2) with cudaDeviceScheduleBlockingSync.
void wait_until(uint64_t end)
{
	static int blocking = -1;
	if (blocking < 0)
		blocking = getenv("FAKE_BLOCKING") != NULL;
	if (blocking)
		sleep_until(end);
	else
		spin_until(end);
}
