// SPDX-License-Identifier: Apache-2.0
/* Runs commands on libraries: one a line of standard input, each answered with a line:
 *   open PATH            dlopen
 *   memfd PATH           dlopen of a copy in memory
 *   close                dlclose of what was opened last
 *   call SYMBOL N        calls a function N times with the arguments 0..N-1; answers with the sum of the results and the
 *                        time in nanoseconds
 *   cycle PATH SYMBOL ROUNDS N   open, call and close, again and again; answers with the sum
 *   map PATH             maps a file as code without loading it
 * With LINKED defined it has a CUDA function itself, as a program with the runtime linked in. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <time.h>

typedef unsigned (*function)(unsigned long);

#ifdef LINKED
unsigned cudaLaunchKernel(unsigned long value)
{
	return (unsigned)(value * 0);
}
#endif

static long long now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1000000000ll + at.tv_nsec;
}

static unsigned long long call(function called, unsigned long times)
{
	unsigned long long sum = 0;

	for (unsigned long i = 0; i < times; i++)
		sum += called(i);
	return sum;
}

static void cycle(const char *path, const char *symbol, unsigned long rounds, unsigned long times)
{
	unsigned long long sum = 0;

	for (unsigned long round = 0; round < rounds; round++) {
		void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		function called = library ? (function)dlsym(library, symbol) : NULL;

		if (!called) {
			printf("error %s\n", dlerror());
			return;
		}
		sum += call(called, times);
		dlclose(library);
	}
	printf("ok %llu\n", sum);
}

static void *open_in_memory(const char *path)
{
	char copy[64];
	int from = open(path, O_RDONLY), to = memfd_create(strrchr(path, '/') + 1, 0);

	while (sendfile(to, from, NULL, 1 << 20) > 0)
		;
	snprintf(copy, sizeof(copy), "/proc/self/fd/%d", to);
	return dlopen(copy, RTLD_NOW | RTLD_LOCAL);
}

static void map(const char *path)
{
	int file = open(path, O_RDONLY);
	void *code = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);

	printf(file < 0 || code == MAP_FAILED ? "error %m\n" : "ok\n");
}

int main(void)
{
	char line[8192], path[4096], symbol[256];
	unsigned long rounds, times;
	void *library = RTLD_DEFAULT;

	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "open %4095[^\n]", path) == 1) {
			library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
			library ? puts("ok") : printf("error %s\n", dlerror());
		} else if (sscanf(line, "memfd %4095[^\n]", path) == 1) {
			library = open_in_memory(path);
			library ? puts("ok") : printf("error %s\n", dlerror());
		} else if (sscanf(line, "call %255s %lu", symbol, &times) == 2) {
			function called = (function)dlsym(library, symbol);
			long long start = now();
			unsigned long long sum = called ? call(called, times) : 0;

			called ? printf("ok %llu %lld\n", sum, now() - start) : printf("error %s\n", dlerror());
		} else if (sscanf(line, "cycle %4095s %255s %lu %lu", path, symbol, &rounds, &times) == 4) {
			cycle(path, symbol, rounds, times);
		} else if (sscanf(line, "map %4095[^\n]", path) == 1) {
			map(path);
		} else if (!strcmp(line, "close\n")) {
			printf(dlclose(library) ? "error %s\n" : "ok\n", dlerror());
			library = RTLD_DEFAULT;
		} else {
			puts("error unknown command");
		}
	}
	return 0;
}
