// Settings of the environment, and the script of delays and errors.
#include "driver.h"

uint64_t kernel_ns = 3000, launch_ns = 2000;
int devices = 1;

enum { NONE, SPIN, SLEEP, ERROR };
API unsigned char fake_scripted[FAKE_NAMES];
static struct {
	// How long a delay takes, or the error.
	uint64_t value, every;
	_Atomic uint64_t failed;
} script[FAKE_NAMES];

API result fake_act(int id, uint64_t call)
{
	if (call % script[id].every)
		return OK;
	switch (fake_scripted[id]) {
	case SPIN:
		spin_until(now() + script[id].value);
		return OK;
	case SLEEP:
		sleep_until(now() + script[id].value);
		return OK;
	default:
		script[id].failed++;
		return script[id].value;
	}
}

// Calls of this name that the script let fail.
API uint64_t fake_failed(const char *name)
{
	return script[fake_name(name)].failed;
}

static uint64_t nanoseconds(const char *text, char **rest)
{
	double value = strtod(text, rest);
	static const struct {
		const char *unit;
		double ns;
	} units[] = { { "ns", 1 }, { "us", 1e3 }, { "ms", 1e6 }, { "s", 1e9 } };
	for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
		size_t length = strlen(units[i].unit);
		if (!strncmp(*rest, units[i].unit, length)) {
			*rest += length;
			return value * units[i].ns;
		}
	}
	fprintf(stderr, "stand-in: no unit of time: %s\n", text);
	abort();
}

// One of NAME=spin:TIME, NAME=sleep:TIME and NAME=error:CODE, with /N for each Nth call of a thread only.
static void act(char *entry)
{
	static const char *const kinds[] = { [SPIN] = "spin", [SLEEP] = "sleep", [ERROR] = "error" };
	char *how = strchr(entry, '='), *value = how ? strchr(how, ':') : NULL;
	int kind = ERROR;
	if (value) {
		*how++ = *value++ = 0;
		while (kind && strcmp(how, kinds[kind]))
			kind--;
	}
	if (!value || !kind) {
		fprintf(stderr,
			"stand-in: not in a script: %s; expected NAME=spin:TIME, sleep:TIME or error:CODE, and /N\n",
			entry);
		abort();
	}
	int id = fake_name(entry);
	script[id].value = kind == ERROR ? strtoull(value, &value, 10) : nanoseconds(value, &value);
	script[id].every = *value == '/' ? strtoull(value + 1, NULL, 10) : 1;
	fake_scripted[id] = script[id].value ? kind : NONE;
}

// Acts with commas between them; one of 0 ends an earlier one. Programs may call it at any time.
API void fake_script(const char *text)
{
	char *copy = strdup(text), *left = copy, *entry;
	while ((entry = strsep(&left, ",")))
		if (*entry)
			act(entry);
	free(copy);
}

// So that a program can fit the simulated GPU to the speed of this host.
API void fake_kernel_ns(uint64_t ns)
{
	kernel_ns = ns;
}

static void number(const char *name, uint64_t *setting)
{
	const char *value = getenv(name);
	if (value)
		*setting = strtoull(value, NULL, 10);
}

__attribute__((constructor)) static void at_start(void)
{
	uint64_t count = devices;
	number("FAKE_KERNEL_NS", &kernel_ns);
	number("FAKE_LAUNCH_NS", &launch_ns);
	number("FAKE_DEVICES", &count);
	devices = count < MAX_DEVICES ? count : MAX_DEVICES;
	if (getenv("FAKE_SCRIPT"))
		fake_script(getenv("FAKE_SCRIPT"));
}
