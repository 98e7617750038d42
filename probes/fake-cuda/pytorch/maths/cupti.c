#include "maths.h"

CALL(cuptiGetVersion, (unsigned *out), *out = 130200, 0)
CALL(cuptiGetResultString, (int code, const char **out), *out = "an error of the stand-in", 0)
