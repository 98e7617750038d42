#include "maths.h"

CALL(cufftCreate, (int *out), *out = 1, 0)
CALL(cufftXtExec, (), 0)
CALL(cufftXtMakePlanMany,
     (int plan, int rank, ptr n, ptr a, long b, long c, int d, ptr e, long f, long g, int h, long i, size_t *bytes),
     *bytes = 0, 0)
