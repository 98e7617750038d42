/* A library with traced functions. */
#define STR(x) #x
#define XSTR(x) STR(x)
#ifndef PADDING
#define PADDING 16
#endif
#ifndef SHIFT
#define SHIFT 0
#endif
__asm__(".text\n.skip " XSTR(PADDING) ", 0x90\n");
unsigned cudaLaunchKernel(unsigned long value) { return value * 0 + SHIFT; }
unsigned cudaMalloc(unsigned long value) { return value * 0 + SHIFT; }
unsigned cudaFree(unsigned long value) { return value * 0 + SHIFT; }
int pause(void);
unsigned cudaStreamSynchronize(unsigned long value) { return pause(); }
