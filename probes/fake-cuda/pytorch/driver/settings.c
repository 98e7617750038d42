// Settings of the environment, and the script of delays.
#include "driver.h"

uint64_t kernel_ns = 3000, launch_ns = 2000;
int devices = 1;

enum { NONE, SPIN, SLEEP };
API unsigned char fake_scripted[FAKE_NAMES];
static struct {
	uint64_t ns, every;
} delays[FAKE_NAMES];

API void fake_delay(int id, uint64_t call)
{
	if (call % delays[id].every)
		return;
	uint64_t end = now() + delays[id].ns;
	if (fake_scripted[id] == SPIN)
		spin_until(end);
	else
		sleep_until(end);
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

// One delay: NAME=spin:TIME or NAME=sleep:TIME, with /N for each Nth call only.
static void delay(char *entry)
{
	char *how = strchr(entry, '='), *time = how ? strchr(how, ':') : NULL;
	if (!time) {
		fprintf(stderr, "stand-in: no delay: %s; expected NAME=spin:TIME[/N] or NAME=sleep:TIME[/N]\n", entry);
		abort();
	}
	*how++ = *time++ = 0;
	int id = fake_name(entry);
	delays[id].ns = nanoseconds(time, &time);
	delays[id].every = *time == '/' ? strtoull(time + 1, NULL, 10) : 1;
	fake_scripted[id] = delays[id].ns ? !strcmp(how, "sleep") ? SLEEP : SPIN : NONE;
}

// A list of delays, with commas between them; one of 0 ns ends an earlier one. Programs may call it at any time.
API void fake_script(const char *script)
{
	char *copy = strdup(script), *left = copy, *entry;
	while ((entry = strsep(&left, ",")))
		if (*entry)
			delay(entry);
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
	if (getenv("FAKE_DELAY"))
		fake_script(getenv("FAKE_DELAY"));
}
