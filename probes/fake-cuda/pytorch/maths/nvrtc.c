#include "maths.h"

CALL(nvrtcVersion, (int *major, int *minor), *major = 13, *minor = 2, 0)

API const char *nvrtcGetErrorString(int code)
{
	return "an error of the stand-in";
}
