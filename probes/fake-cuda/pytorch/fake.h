// The stand-ins share results, the count of calls by thread, and how a function of CUDA is written.
#pragma once
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

typedef int result;
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_FOUND = 500, NOT_READY = 600 };

// A handle or an address whose type no stand-in needs.
typedef void *ptr;
typedef struct {
	unsigned x, y, z;
} dim3;

#define FAKE_NAMES 1024
struct fake_thread {
	int tid;
	struct fake_thread *next;
	uint64_t calls[FAKE_NAMES];
};
// The number of a name, which all libraries of the process share.
int fake_name(const char *name);
struct fake_thread *fake_thread(void);
// Where not 0: what the script says of a call with this number.
extern unsigned char fake_scripted[FAKE_NAMES];
// Does that, and returns the error that the call is to have, or 0.
result fake_act(int id, uint64_t call);

// Counts a call, and is the error that it is to have.
#define COUNT()                                                                                                        \
	({                                                                                                             \
		static int id_;                                                                                        \
		if (__builtin_expect(!id_, 0))                                                                         \
			id_ = fake_name(__func__);                                                                     \
		uint64_t call_ = ++fake_thread()->calls[id_];                                                          \
		__builtin_expect(fake_scripted[id_], 0) ? fake_act(id_, call_) : OK;                                   \
	})

// Counts a call of a function that cannot fail: a script that wants it to fail is wrong.
#define COUNT_ONLY()                                                                                                   \
	do {                                                                                                           \
		if (COUNT()) {                                                                                         \
			fprintf(stderr, "stand-in: %s has no error\n", __func__);                                         \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

// A function of CUDA that is counted and returns the value of expressions, the last of them, unless it is to fail.
#define CALL(name, parameters, ...)                                                                                    \
	API result name parameters                                                                                     \
	{                                                                                                              \
		result scripted_ = COUNT();                                                                            \
		return scripted_ ? scripted_ : (__VA_ARGS__);                                                          \
	}

// CUlaunchConfig.
struct launch_config {
	unsigned grid[3], block[3], shared;
	ptr stream, attributes;
	unsigned attributes_count;
};
