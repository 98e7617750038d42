// The truth that gpucause's counts are held against: the calls of each thread, by name.
#include "driver.h"
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *names[FAKE_NAMES];
static int names_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_thread *_Atomic threads;
static __thread struct fake_thread *own;

API int fake_name(const char *name)
{
	pthread_mutex_lock(&lock);
	int id = 1;
	while (id <= names_count && strcmp(names[id], name))
		id++;
	if (id == FAKE_NAMES)
		abort();
	if (id > names_count)
		names[names_count = id] = strdup(name);
	pthread_mutex_unlock(&lock);
	return id;
}

API struct fake_thread *fake_thread(void)
{
	if (__builtin_expect(!own, 0)) {
		own = calloc(1, sizeof *own);
		own->tid = syscall(SYS_gettid);
		own->next = threads;
		while (!atomic_compare_exchange_weak(&threads, &own->next, own)) {
		}
	}
	return own;
}

// Calls of this name, of all threads. Threads that ended are among them.
API uint64_t fake_calls(const char *name)
{
	int id = fake_name(name);
	uint64_t calls = 0;
	for (struct fake_thread *thread = threads; thread; thread = thread->next)
		calls += thread->calls[id];
	return calls;
}

// Lines of TID, NAME and CALLS.
API int fake_dump(const char *path)
{
	FILE *file = fopen(path, "w");
	if (!file)
		return 1;
	for (struct fake_thread *thread = threads; thread; thread = thread->next)
		for (int id = 1; id <= names_count; id++)
			if (thread->calls[id])
				fprintf(file, "%d %s %lu\n", thread->tid, names[id], (unsigned long)thread->calls[id]);
	return fclose(file);
}

// A child has its parent's memory, and not its threads.
static void forget(void)
{
	threads = NULL;
	own = NULL;
}

__attribute__((constructor)) static void at_start(void)
{
	pthread_atfork(NULL, NULL, forget);
}

__attribute__((destructor)) static void at_exit(void)
{
	const char *prefix = getenv("FAKE_COUNTS");
	char path[4096];
	if (!prefix || !threads)
		return;
	snprintf(path, sizeof path, "%s.%d", prefix, getpid());
	fake_dump(path);
}
