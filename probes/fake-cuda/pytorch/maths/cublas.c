#include "maths.h"

CALL(cublasSetStream_v2, (struct handle * handle, ptr stream), handle->stream = stream, 0)
CALL(cublasGetMathMode, (struct handle * handle, int *out), *out = handle->math_mode, 0)
CALL(cublasSetMathMode, (struct handle * handle, int mode), handle->math_mode = mode, 0)
CALL(cublasGetPointerMode_v2, (struct handle * handle, int *out), *out = handle->pointer_mode, 0)
CALL(cublasSetPointerMode_v2, (struct handle * handle, int mode), handle->pointer_mode = mode, 0)
